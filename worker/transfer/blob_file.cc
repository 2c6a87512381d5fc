#include "worker/transfer/blob_file.h"

#include <fmt/format.h>

#include "common/io/file.h"
#include "common/io/sha256.h"

namespace sft::worker {

absl::StatusOr<BlobFile> MakeBlobFile(const std::string& path, const std::string& display_name,
                                      const std::optional<RankUser>& reader,
                                      const StopCheck& stop) {
  const RankRights rights(reader);
  SFT_RETURN_IF_ERROR(io::OpenForRead(path, io::Links::kRefuse).status());
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(path, stop));
  return BlobFile{path, hash.sha256, hash.size, display_name, reader};
}

v1::ArtifactFile ToArtifactFile(const BlobFile& file, const std::string& relative) {
  v1::ArtifactFile entry;
  entry.set_path(relative);
  entry.mutable_blob()->set_sha256(file.sha256);
  entry.mutable_blob()->set_size(file.size);
  return entry;
}

namespace {

constexpr char kProgressed[] = "sft/progressed";

// Translates the server's status of a download by what the caller should do.
absl::Status AsServerError(const absl::Status& said, const std::string& what) {
  switch (said.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:  // by this end's own stop
      return said;
    case absl::StatusCode::kResourceExhausted:  // of too many calls: no disk is full here
      return Unavailable(Message(Annotate(said, "the server is busy")));
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kOutOfRange:  // it has less than arrived before
      return Unavailable(Message(said));
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
      return DataLoss(fmt::format("{}: {}", what, Message(said)));
    default:
      return Internal(fmt::format("{}: the server refuses it: {}", what, Message(said)));
  }
}

// Translates a disk error of this node: never the submitter's fault.
absl::Status AsDiskError(const absl::Status& said) {
  const bool as_it_is = said.ok() || absl::IsResourceExhausted(said) || absl::IsUnavailable(said) ||
                        absl::IsAborted(said);
  return as_it_is ? said : Internal(Message(said));
}

// Continues from the end of the file.
absl::Status Download(ServerApi& server, const std::string& sha256, const std::string& path,
                      const std::string& what, io::AppendFile& out, const StopCheck& stop) {
  const int64_t begin = out.size();
  absl::Status appended;
  const absl::Status fetched = server.Download(
      sha256, out.size(),
      [&](std::string_view bytes) {
        appended = stop() ? Aborted("the download was stopped") : out.Append(bytes);
        return appended;
      },
      stop);
  // After a full disk nobody would resume soon, and the part would only keep the disk full. If the
  // server's copy is damaged or shorter, there is nothing to resume.
  const bool useless = absl::IsResourceExhausted(appended) || absl::IsDataLoss(fetched) ||
                       absl::IsOutOfRange(fetched);
  if (useless) SFT_RETURN_IF_ERROR(AsDiskError(io::RemoveAll(path)));
  absl::Status result = appended.ok() ? AsServerError(fetched, what) : AsDiskError(appended);
  if (!result.ok() && !useless && out.size() > begin) result.SetPayload(kProgressed, absl::Cord());
  return result;
}

}  // namespace

absl::Status FetchBlob(ServerApi& server, const std::string& sha256, int64_t size,
                       const std::string& path, const std::string& what, const StopCheck& stop) {
  absl::StatusOr<io::AppendFile> out = io::AppendFile::Open(path);
  if (!out.ok()) return AsDiskError(out.status());
  if (out->size() > size) SFT_RETURN_IF_ERROR(AsDiskError(out->Truncate(0)));
  if (out->size() < size) {
    SFT_RETURN_IF_ERROR(Download(server, sha256, path, what, *out, stop));
  }
  SFT_RETURN_IF_ERROR(AsDiskError(out->Sync()));
  const absl::StatusOr<io::FileHash> hash = io::HashFile(path, stop);
  if (!hash.ok()) return AsDiskError(hash.status());
  if (hash->sha256 == sha256) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(AsDiskError(io::RemoveAll(path)));
  return absl::UnknownError(
      fmt::format("{} arrived broken: its hash differs ({} bytes of {})", what, hash->size, size));
}

bool HasProgressed(const absl::Status& fetched) {
  return fetched.GetPayload(kProgressed).has_value();
}

}  // namespace sft::worker
