#pragma once

#include <string>

#include "common/base/status.h"
#include "sft/v1/artifact.pb.h"
#include "worker/transfer/server_api.h"

// Upload and download of files as blobs of the server.

namespace sft::worker {

// Hash and size of a file, read with the rights of `reader`. A link is refused. ABORTED when `stop`
// returned true.
absl::StatusOr<BlobFile> MakeBlobFile(const std::string& path, const std::string& display_name,
                                      const std::optional<RankUser>& reader, const StopCheck& stop);
// Describes it as a file of a delivery or a checkpoint, under its path there.
v1::ArtifactFile ToArtifactFile(const BlobFile& file, const std::string& relative);

// Downloads a blob into the file `path`, resuming what an earlier try left there, and verifies it.
// `what` names it in messages. UNAVAILABLE and DEADLINE_EXCEEDED of the transport, and UNAVAILABLE
// when the server has too much to do: the next call resumes. UNKNOWN when the bytes do not match
// the hash: the next call begins anew. DATA_LOSS when the server has lost the blob, or its copy is
// damaged; INTERNAL for any other error of the server, and for a fault of this node's disk. A full
// disk (RESOURCE_EXHAUSTED) keeps nothing.
absl::Status FetchBlob(ServerApi& server, const std::string& sha256, int64_t size,
                       const std::string& path, const std::string& what, const StopCheck& stop);
// True when the fetch that ended with this error received bytes from which the next one resumes.
bool HasProgressed(const absl::Status& fetched);

}  // namespace sft::worker
