#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/hub/http.h"
#include "common/hub/hub.h"

namespace sft::worker {

// A file of a model as another node of the fleet sends it.
struct PeerFile {
  std::string node;
  std::unique_ptr<hub::HttpBody> body;
};

// Other nodes that have a model. The hub is still who says which files there are and what their
// hashes are: nothing that a node sends is believed. Thread-safe.
class ModelPeers {
 public:
  virtual ~ModelPeers() = default;
  // The file's bytes from `offset`. NOT_FOUND: no other node that can be reached has it; any other
  // error: it cannot be had from one now.
  virtual absl::StatusOr<PeerFile> Open(const std::string& id, const std::string& commit,
                                        const std::string& path, int64_t offset,
                                        const hub::StopCheck& stop) = 0;
};

}  // namespace sft::worker
