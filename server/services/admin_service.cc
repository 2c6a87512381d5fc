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

absl::Status SendCheckpoints(const std::string& folder, Writer& writer) {
  if (!io::IsDirectory(folder + "/checkpoints")) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto parts, io::ListDir(folder + "/checkpoints"));
  for (const std::string& part : parts) {
    const std::string below = "checkpoints/" + part;
    SFT_ASSIGN_OR_RETURN(const auto names, io::ListDir(folder + "/" + below));
    for (const std::string& name : names) {
      SFT_RETURN_IF_ERROR(SendFile(folder, below + "/" + name, writer));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AdminService::AddTo(Methods& methods) {
  methods.ServerStream(
      {"AdminService.Backup", Caller::kUser, Role::kAdmin, Place::kServer, Audit::kChange}, this,
      &AdminService::Backup);
}

absl::Status AdminService::Backup(CallContext& call, const v1::BackupRequest& request,
                                  Writer& sink) {
  if (request.download() && !request.to().empty()) {
    return InvalidArgument("a backup is downloaded or kept under a path, not both");
  }
  v1::BackupResponse response;
  auto made = backups_.Make(request.to(), [&](int64_t done, int64_t total) {
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
  if (sent.ok()) sent = SendCheckpoints(folder, sink);
  const absl::Status removed = io::RemoveAll(folder);
  return sent.ok() ? removed : sent;
}

}  // namespace sft::server
