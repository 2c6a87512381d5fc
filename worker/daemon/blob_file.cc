#include "worker/daemon/blob_file.h"

#include <fmt/format.h>

#include "common/io/file.h"
#include "common/io/sha256.h"

namespace sft::worker {

absl::StatusOr<BlobFile> MakeBlobFile(const std::string& path, const std::string& display_name) {
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(path));
  return BlobFile{path, hash.sha256, hash.size, display_name};
}

v1::ArtifactFile ToArtifactFile(const BlobFile& file, const std::string& relative) {
  v1::ArtifactFile entry;
  entry.set_path(relative);
  entry.mutable_blob()->set_sha256(file.sha256);
  entry.mutable_blob()->set_size(file.size);
  return entry;
}

absl::Status FetchBlob(ServerApi& server, const std::string& sha256, int64_t size,
                       const std::string& path, const std::string& what, const StopCheck& stop) {
  SFT_ASSIGN_OR_RETURN(io::AppendFile out, io::AppendFile::Open(path));
  if (out.size() > size) SFT_RETURN_IF_ERROR(out.Truncate(0));
  if (out.size() < size) {
    absl::Status appended;
    const absl::Status fetched = server.Download(
        sha256, out.size(),
        [&](std::string_view bytes) {
          appended = stop() ? Aborted("the download was stopped") : out.Append(bytes);
          return appended;
        },
        stop);
    if (absl::IsResourceExhausted(appended)) {
      // Nobody goes on with it soon: it would only keep the disk full.
      SFT_RETURN_IF_ERROR(io::RemoveAll(path));
    } else if (absl::IsResourceExhausted(fetched)) {
      // The server's word, of too many calls: no disk is full here.
      return Unavailable(Message(Annotate(fetched, "the server is busy")));
    }
    SFT_RETURN_IF_ERROR(fetched);
  }
  SFT_RETURN_IF_ERROR(out.Sync());
  SFT_ASSIGN_OR_RETURN(const io::FileHash hash, io::HashFile(path));
  if (hash.sha256 == sha256) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(io::RemoveAll(path));
  return Unavailable(fmt::format("{} arrived broken ({} bytes of {}); it is fetched again", what,
                                 hash.size, size));
}

}  // namespace sft::worker
