#pragma once

#include "worker/base/setup.h"
#include "worker/hub/model_peers.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Files of models from other nodes, through the server: nodes need not reach one another.
class PeerModels : public ModelPeers {
 public:
  // Both are borrowed.
  PeerModels(const NodeSetup& setup, ServerApi& server) : setup_(setup), server_(server) {}
  absl::StatusOr<PeerFile> Open(const std::string& id, const std::string& commit,
                                const std::string& path, int64_t offset,
                                const hub::StopCheck& stop) override;

 private:
  const NodeSetup& setup_;
  ServerApi& server_;
};

}  // namespace sft::worker
