#include "client/base/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "client/base/interrupt.h"
#include "client/output/format.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "sft/v1/data_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr std::chrono::milliseconds kFirstPause{250};
constexpr std::chrono::seconds kMaxPause{5};
// How long an upload may make no progress: ours, or another client's, at whose end the server reads
// and checks the whole file.
constexpr Nanos kPatience = std::chrono::seconds(15);
constexpr Nanos kOtherPatience = std::chrono::minutes(10);

// Sends one stream from `offset` to the end; returns the answer's status.
grpc::Status SendFrom(Connection& connection, const LocalFile& file, const std::string& project,
                      int fd, int64_t offset) {
  grpc::ClientContext context;
  Interrupt interrupt(context);
  v1::UploadBlobResponse response;
  auto writer = connection.To<v1::DataService>().UploadBlob(&context, &response);
  std::string chunk(rpc::kChunkBytes, '\0');
  bool first = true;
  while (first || offset < file.size) {
    v1::UploadBlobRequest request;
    if (first) {
      request.set_sha256(file.sha256);
      request.set_size(file.size);
      request.set_offset(offset);
      request.set_purpose(v1::UploadBlobRequest::DATASET);
      request.set_project(project);
      request.set_display_name(std::filesystem::path(file.path).filename().string());
    }
    const absl::StatusOr<size_t> got =
        io::ReadAt(fd, offset, chunk.data(), chunk.size(), file.path);
    if (!got.ok()) return rpc::ToGrpc(got.status());
    if (*got == 0 && !first) return {grpc::StatusCode::INVALID_ARGUMENT, "became shorter"};
    request.set_data(chunk.data(), *got);
    if (!writer->Write(request)) break;  // the server has answered: Finish returns it
    offset += static_cast<int64_t>(*got);
    first = false;
  }
  writer->WritesDone();
  return writer->Finish();
}

}  // namespace

absl::StatusOr<LocalFile> HashLocalFile(const std::string& key, const std::string& path) {
  const absl::Status regular = io::CheckRegularFile(path);
  if (!regular.ok()) return InvalidArgument(fmt::format("{}: {}", key, Message(regular)));
  const absl::StatusOr<io::FileHash> hash = io::HashFile(path);
  if (!hash.ok()) return InvalidArgument(fmt::format("{}: {}", key, Message(hash.status())));
  return LocalFile{path, hash->sha256, hash->size, ""};
}

bool IsUploaded(Connection& connection, const LocalFile& file, const std::string& project) {
  v1::StatBlobRequest request;
  request.set_sha256(file.sha256);
  request.set_purpose(v1::UploadBlobRequest::DATASET);
  request.set_project(project);
  const auto known = connection.Call(&v1::DataService::Stub::StatBlob, request);
  return known.ok() && known->complete();
}

absl::Status UploadDataset(Connection& connection, const LocalFile& file,
                           const std::string& project) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(file.path));
  MonoTime moved = connection.clock().Mono();
  int64_t most = -1;
  bool told_upload = false, told_wait = false;
  for (Nanos pause = kFirstPause;; pause = std::min<Nanos>(2 * pause, kMaxPause)) {
    v1::StatBlobRequest request;
    request.set_sha256(file.sha256);
    request.set_purpose(v1::UploadBlobRequest::DATASET);
    request.set_project(project);
    SFT_ASSIGN_OR_RETURN(const v1::StatBlobResponse known,
                         connection.Call(&v1::DataService::Stub::StatBlob, request));
    if (known.complete()) return absl::OkStatus();
    const MonoTime now = connection.clock().Mono();
    if (known.received() != most) {
      most = known.received();
      moved = now;
    }
    if (!told_upload) {
      connection.console().err << fmt::format("uploading {} ({})\n", file.shown(),
                                              Bytes(file.size));
      told_upload = true;
    }
    const grpc::Status status = SendFrom(connection, file, project, fd.get(), known.received());
    if (status.ok()) return absl::OkStatus();
    // Another client is uploading the same file, which is just as good.
    const bool another = status.error_code() == grpc::StatusCode::ABORTED;
    const bool again = another || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::OUT_OF_RANGE;
    if (Interrupt::Raised())
      return absl::CancelledError("interrupted; the same command continues it");
    if (!again || now - moved > (another ? kOtherPatience : kPatience)) {
      return Annotate(connection.Describe(status), file.shown());
    }
    if (another && !told_wait) {
      connection.console().err << "it is being uploaded by another call already: waiting\n";
      told_wait = true;
    }
    connection.clock().Sleep(pause);
  }
}

}  // namespace sft::client
