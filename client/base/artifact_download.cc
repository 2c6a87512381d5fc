#include "client/base/artifact_download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>

#include "client/base/interrupt.h"
#include "client/output/format.h"
#include "client/output/text.h"
#include "common/base/plain_text.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "sft/v1/data_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr int kDownloadAttempts = 5;

// Converts an error of the local disk: a folder that cannot be made is a wrong -o, not a missing
// job.
absl::Status Local(const absl::Status& status) {
  if (status.ok()) return status;
  const bool wrong_folder =
      absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsAlreadyExists(status);
  return wrong_folder
             ? InvalidArgument(fmt::format("{}; choose another folder with -o", Message(status)))
             : Internal(Message(status));
}

// Downloads into DIR.partial and renames it at the end, so that a folder under its own name is
// complete. The next download continues a broken one.
class Downloader {
 public:
  Downloader(Connection& connection, const v1::Artifact& artifact, std::string folder)
      : connection_(connection),
        artifact_(artifact),
        folder_(std::move(folder)),
        partial_(folder_ + ".partial") {}

  absl::Status Run() {
    SFT_ASSIGN_OR_RETURN(const io::UniqueFd lock, Lock());
    for (const v1::ArtifactFile& file : artifact_.files()) {
      if (!io::IsSafeRelative(file.path()) || !IsPlain(file.path())) {
        return InvalidArgument(
            "the server names a file outside the artifact, or with control characters: " +
            OneLine(file.path()));
      }
      SFT_RETURN_IF_ERROR(Annotate(Fetch(file), file.path()));
    }
    // Only an empty folder may be replaced.
    std::error_code error;
    std::filesystem::remove(folder_, error);
    return Local(io::RenameDurably(partial_, folder_));
  }

 private:
  // Two downloads into one folder would take each other's bytes for their own.
  absl::StatusOr<io::UniqueFd> Lock() {
    SFT_RETURN_IF_ERROR(Local(io::MakeDirs(partial_)));
    io::UniqueFd fd(::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return Local(ErrnoStatus(fmt::format("cannot open {}", partial_), errno));
    // On a file system without locks nothing is locked.
    const bool busy = ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    // The other download may have ended meanwhile and renamed the folder.
    struct stat locked {
    }, there{};
    const bool same = ::fstat(fd.get(), &locked) == 0 && ::stat(partial_.c_str(), &there) == 0 &&
                      locked.st_ino == there.st_ino;
    if (!busy && same) return fd;
    return FailedPrecondition(
        fmt::format("another download writes into {}: wait for it, or choose another folder with "
                    "-o",
                    partial_));
  }

  absl::Status Fetch(const v1::ArtifactFile& file) {
    const std::string path = partial_ + "/" + file.path();
    SFT_RETURN_IF_ERROR(Local(io::MakeDirs(path.substr(0, path.rfind('/')))));
    grpc::Status status;
    for (int attempt = 0; attempt < kDownloadAttempts; ++attempt) {
      if (attempt > 0) connection_.clock().Sleep(std::chrono::milliseconds(200) * (1 << attempt));
      absl::StatusOr<io::AppendFile> opened = io::AppendFile::Open(path);
      SFT_RETURN_IF_ERROR(Local(opened.status()));
      io::AppendFile& out = *opened;
      if (out.size() > file.blob().size()) SFT_RETURN_IF_ERROR(Local(out.Truncate(0)));
      absl::Status disk;
      status = Stream(file, out, disk);
      SFT_RETURN_IF_ERROR(Local(disk));
      if (Interrupt::Raised())
        return absl::CancelledError("interrupted; the same command continues it");
      if (status.ok() && out.size() == file.blob().size()) {
        SFT_RETURN_IF_ERROR(Local(out.Sync()));
        return CheckHash(path, file);
      }
      if (!status.ok() && status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
    }
    if (status.ok()) return DataLoss("the server sent fewer bytes than it promised");
    return connection_.Describe(status);
  }

  grpc::Status Stream(const v1::ArtifactFile& file, io::AppendFile& out, absl::Status& disk) {
    grpc::ClientContext context;
    Interrupt interrupt(context);
    v1::DownloadArtifactFileRequest request;
    request.set_name(artifact_.name());
    request.set_path(file.path());
    request.set_offset(out.size());
    auto reader = connection_.To<v1::DataService>().DownloadArtifactFile(&context, request);
    v1::DownloadChunk chunk;
    while (reader->Read(&chunk)) {
      disk = out.Append(chunk.data());
      if (!disk.ok()) {
        context.TryCancel();
        break;
      }
    }
    return reader->Finish();
  }

  absl::Status CheckHash(const std::string& path, const v1::ArtifactFile& file) {
    if (file.blob().sha256().empty()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(path));
    if (hash.sha256 == file.blob().sha256()) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(io::RemoveAll(path));
    return DataLoss("its bytes do not have the promised hash; it was removed, download it again");
  }

  Connection& connection_;
  const v1::Artifact& artifact_;
  const std::string folder_;
  const std::string partial_;
};

}  // namespace

absl::Status CheckNewFolder(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> there = io::ListDir(folder);
  if (!io::Exists(folder) || (there.ok() && there->empty())) return absl::OkStatus();
  return AlreadyExists(folder + " exists and is not an empty folder; choose another with -o");
}

absl::Status DownloadArtifact(Connection& connection, const v1::Artifact& artifact,
                              const std::string& folder) {
  connection.console().err << fmt::format("downloading {} ({}, {} files) to {}\n",
                                          OneLine(artifact.kind()), Bytes(artifact.bytes()),
                                          artifact.files_size(), folder);
  return Downloader(connection, artifact, folder).Run();
}

}  // namespace sft::client
