#include "server/app/standby_source.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <map>

#include "common/io/file.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/status.h"
#include "sft/v1/admin_service.grpc.pb.h"

namespace sft::server {
namespace {

// Of what a standby asks for, as pieces of a backup.
bool IsOfListed(const std::string& file) { return file == "server.db" || file == "manifest.json"; }

// Takes the pieces of a listed backup into the folder.
absl::Status TakePieces(grpc::ClientReader<v1::BackupResponse>& reader, const std::string& folder) {
  std::map<std::string, io::AppendFile> files;
  v1::BackupResponse piece;
  while (reader.Read(&piece)) {
    if (piece.file().empty()) continue;
    // Of an earlier release, which sends all: as little as possible is taken.
    if (!IsOfListed(piece.file())) break;
    auto file = files.find(piece.file());
    if (file == files.end()) {
      SFT_ASSIGN_OR_RETURN(io::AppendFile made, io::AppendFile::Open(folder + "/" + piece.file()));
      file = files.emplace(piece.file(), std::move(made)).first;
    }
    SFT_RETURN_IF_ERROR(file->second.Append(piece.data()));
  }
  return absl::OkStatus();
}

}  // namespace

class RemoteSource::Call {
 public:
  explicit Call(RemoteSource& source) : source_(source) {
    const MutexLock lock(source_.mutex_);
    source_.context_ = &context_;
    if (source_.cancelled_) context_.TryCancel();
  }
  ~Call() {
    const MutexLock lock(source_.mutex_);
    source_.context_ = nullptr;
  }
  grpc::ClientContext& context() { return context_; }

 private:
  RemoteSource& source_;
  grpc::ClientContext context_;
};

void RemoteSource::Cancel() {
  const MutexLock lock(mutex_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

absl::Status RemoteSource::Fetch(const std::string& folder) {
  Call call(*this);
  v1::BackupRequest request;
  request.set_download(true);
  request.set_listed(true);
  request.set_without_logs(true);
  const auto stub = v1::AdminService::NewStub(channel_);
  const auto reader = stub->Backup(&call.context(), request);
  const absl::Status taken = TakePieces(*reader, folder);
  if (!taken.ok()) call.context().TryCancel();
  v1::BackupResponse rest;
  if (taken.ok() && reader->Read(&rest)) call.context().TryCancel();
  const grpc::Status status = reader->Finish();
  SFT_RETURN_IF_ERROR(taken);
  if (!status.ok() && io::Exists(folder + "/server.db") &&
      status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::OkStatus();  // what was taken tells whether it is enough
  }
  return rpc::FromGrpc(status);
}

absl::Status RemoteSource::ReadFile(const std::string& path, int64_t offset,
                                    const std::string& sha256_before, const Sink& sink) {
  Call call(*this);
  v1::ReadFileRequest request;
  request.set_path(path);
  request.set_offset(offset);
  request.set_sha256_before(sha256_before);
  const auto stub = v1::AdminService::NewStub(channel_);
  const auto reader = stub->ReadFile(&call.context(), request);
  v1::ReadFileResponse piece;
  absl::Status taken;
  while (taken.ok() && reader->Read(&piece)) taken = sink(piece.offset(), piece.data());
  if (!taken.ok()) call.context().TryCancel();
  const grpc::Status status = reader->Finish();
  SFT_RETURN_IF_ERROR(taken);
  return rpc::FromGrpc(status);
}

absl::Status RemoteSource::Retire(int64_t generation, const std::string& address) {
  Call call(*this);
  rpc::SetDeadline(call.context(), rpc::kUnaryDeadline);
  v1::RetireRequest request;
  request.set_generation(generation);
  request.set_address(address);
  v1::RetireResponse response;
  return rpc::FromGrpc(
      v1::AdminService::NewStub(channel_)->Retire(&call.context(), request, &response));
}

absl::StatusOr<rpc::Security> SecurityOfStandby(const std::string& of, const std::string& data_dir,
                                                const std::string& token_file) {
  SFT_ASSIGN_OR_RETURN(const rpc::Endpoint endpoint, rpc::ParseEndpoint(of));
  rpc::Security security;
  const std::string authority = data_dir + "/tls/ca.crt";
  if (io::Exists(authority)) {
    SFT_ASSIGN_OR_RETURN(security.authority_pem, io::ReadFile(authority, 1 << 16));
  } else if (!rpc::IsLoopback(endpoint.host)) {
    return FailedPrecondition(fmt::format(
        "{} is missing: copy the server's tls/ into this standby's data folder, by hand, for it is "
        "the fleet's secret; then `sft-server renew --data-dir {} --name HOST` adds this machine's "
        "names to the certificate",
        authority, data_dir));
  }
  if (!token_file.empty()) {
    SFT_ASSIGN_OR_RETURN(security.token, io::ReadFile(token_file, 4096));
    security.token.erase(security.token.find_last_not_of(" \r\n\t") + 1);
  } else if (!security.authority_pem.empty()) {
    return FailedPrecondition(
        "--token-file is missing: a standby asks the server with the token of an admin (`sftctl "
        "admin token create admin --expires never > standby.token`)");
  }
  return security;
}

}  // namespace sft::server
