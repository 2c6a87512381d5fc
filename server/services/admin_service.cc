#include "server/services/admin_service.h"

#include "common/io/file.h"
#include "common/rpc/channel.h"

namespace sft::server {
namespace {

using Writer = Sink<v1::BackupResponse>;

absl::Status SendFile(const std::string& folder, const std::string& name, Writer& writer) {
  const std::string path = folder + "/" + name;
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  std::string chunk(rpc::kChunkBytes, '\0');
  v1::BackupResponse response;
  response.set_file(name);
  for (int64_t offset = 0;; offset += rpc::kChunkBytes) {
    SFT_ASSIGN_OR_RETURN(const size_t got,
                         io::ReadAt(fd.get(), offset, chunk.data(), chunk.size(), path));
    response.set_data(chunk.substr(0, got));
    if (!writer.Write(response)) return absl::CancelledError("the reader is gone");
    if (got < chunk.size()) return absl::OkStatus();
  }
}

// Sends the files of the folder `below` of a backup and of all folders in it.
absl::Status SendTree(const std::string& folder, const std::string& below, Writer& writer) {
  if (!io::IsDirectory(folder + "/" + below)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto names, io::ListDir(folder + "/" + below));
  for (const std::string& name : names) {
    const std::string path = below + "/" + name;
    SFT_RETURN_IF_ERROR(io::IsDirectory(folder + "/" + path) ? SendTree(folder, path, writer)
                                                             : SendFile(folder, path, writer));
  }
  return absl::OkStatus();
}

}  // namespace

void AdminService::AddTo(Methods& methods) {
  methods.ServerStream(
      {"AdminService.Backup", Caller::kUser, Role::kAdmin, Place::kServer, Audit::kChange}, this,
      &AdminService::Backup);
  methods.ServerStream({"AdminService.ReadFile", Caller::kUser, Role::kAdmin, Place::kServer}, this,
                       &AdminService::ReadFile);
  methods.Unary(
      {"AdminService.Retire", Caller::kUser, Role::kAdmin, Place::kServer, Audit::kChange}, this,
      &AdminService::Retire);
}

absl::Status AdminService::Backup(CallContext& call, const v1::BackupRequest& request,
                                  Writer& sink) {
  if (request.download() && !request.to().empty()) {
    return InvalidArgument("a backup is downloaded or kept under a path, not both");
  }
  if (request.download() && request.with_keys()) {
    return InvalidArgument(
        "the fleet's keys are not sent over the network: make a backup with keys on the server's "
        "machine (--to), or copy tls/ there");
  }
  // A standby makes one every minute, which would push all else out of the audit.
  if (request.listed()) call.NothingChanged();
  v1::BackupResponse response;
  auto made = backups_.Make(request, [&](int64_t done, int64_t total) {
    response.set_pages_done(done);
    response.set_pages_total(total);
    return !call.Gone();
  });
  if (!made.ok()) return made.status();
  const std::string folder = made->path();
  if (request.download()) made->clear_path();
  *response.mutable_result() = *made;
  absl::Status sent = sink.Write(response) ? absl::OkStatus() : absl::CancelledError("gone");
  if (!request.download()) return sent;
  for (const char* name : {"manifest.json", "server.db"}) {
    if (sent.ok()) sent = SendFile(folder, name, sink);
  }
  for (const char* tree : {"checkpoints", "blobs", "logs", "metrics"}) {
    if (sent.ok()) sent = SendTree(folder, tree, sink);
  }
  const absl::Status removed = io::RemoveAll(folder);
  return sent.ok() ? removed : sent;
}

absl::Status AdminService::ReadFile(CallContext&, const v1::ReadFileRequest& request,
                                    Sink<v1::ReadFileResponse>& sink) {
  return backups_.ReadFile(request,
                           [&](const v1::ReadFileResponse& piece) { return sink.Write(piece); });
}

absl::StatusOr<v1::RetireResponse> AdminService::Retire(CallContext&,
                                                        const v1::RetireRequest& request) {
  SFT_RETURN_IF_ERROR(generation_.Retire(request.generation(), request.address()));
  v1::RetireResponse response;
  response.set_generation(generation_.number());
  return response;
}

}  // namespace sft::server
