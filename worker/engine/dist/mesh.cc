#include "worker/engine/dist/mesh.h"

#include <fmt/format.h>

#include <vector>

#include "worker/engine/base/error.h"

namespace sft::engine {

DataMesh::DataMesh(Communicator& world, int shard) : world_(world) {
  if (shard < 1 || world.world() % shard != 0) {
    throw InternalError(
        fmt::format("{} ranks cannot be laid out in rows of {}", world.world(), shard));
  }
  if (shard == world.world()) return;
  std::vector<int> row, column;
  const int first = world.rank() / shard * shard;
  for (int i = 0; i < shard; ++i) row.push_back(first + i);
  for (int rank = world.rank() % shard; rank < world.world(); rank += shard) column.push_back(rank);
  row_ = MakeSubgroup(world, row);
  column_ = MakeSubgroup(world, column);
  row_->NameAxis("shard");
  column_->NameAxis("replicate");
}

}  // namespace sft::engine
