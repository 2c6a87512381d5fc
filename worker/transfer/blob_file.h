#pragma once

#include <string>

#include "common/base/status.h"
#include "sft/v1/artifact.pb.h"
#include "worker/transfer/server_api.h"

// Files that go to the server as blobs, and come from there.

namespace sft::worker {

// The file with its hash and size, read with the rights of `reader`. A link is none. ABORTED when
// `stop` said so.
absl::StatusOr<BlobFile> MakeBlobFile(const std::string& path, const std::string& display_name,
                                      const std::optional<RankUser>& reader, const StopCheck& stop);
// As a file of a delivery or a checkpoint, under its path there.
v1::ArtifactFile ToArtifactFile(const BlobFile& file, const std::string& relative);

// Brings a blob into the file `path`, going on with what an earlier try left there, and checks it.
// `what` names it in messages. UNAVAILABLE and DEADLINE_EXCEEDED of the transport, and UNAVAILABLE
// when the server has too much to do: the next call goes on. UNKNOWN when the bytes do not match
// the hash: the next call begins anew. DATA_LOSS when the server has lost it, or its copy is
// damaged; INTERNAL for anything else that the server says, and for what is wrong with this node's
// disk. A full disk (RESOURCE_EXHAUSTED) keeps nothing.
absl::Status FetchBlob(ServerApi& server, const std::string& sha256, int64_t size,
                       const std::string& path, const std::string& what, const StopCheck& stop);
// Whether the fetch that ended with this error has brought something that the next one goes on
// from.
bool HasProgressed(const absl::Status& fetched);

}  // namespace sft::worker
