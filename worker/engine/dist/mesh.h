#pragma once

#include <memory>

#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// The ranks of a job as the grid `replicate` x `shard`: rank r is in column r % shard of row
// r / shard. A row holds the model once, cut over its ranks; the ranks of a column hold one shard.
// Ranks of a node are consecutive, so with shard = GPUs of a node a row is a node.
// Thread-compatible.
class DataMesh {
 public:
  // Rows of `shard` ranks; with all ranks in one row nothing is connected. A collective; throws
  // InternalError when the rows do not fill the world, else as MakeSubgroup. Borrows `world`.
  DataMesh(Communicator& world, int shard);

  Communicator& world() const { return world_; }
  // This rank's row.
  Communicator& shard() const { return row_ ? *row_ : world_; }
  // This rank's column; null where there is one row.
  Communicator* replicas() const { return column_.get(); }

 private:
  Communicator& world_;
  std::unique_ptr<Communicator> row_, column_;
};

}  // namespace sft::engine
