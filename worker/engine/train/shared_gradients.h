#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/dist/mesh.h"
#include "worker/engine/weights/param_placement.h"

namespace sft::engine {

// The sums of gradients over the ranks along the tensor axis that hold the same elements
// (ParamPlacement::sharers): norms and all else that is whole on each of them, factors of adapters
// that are not cut with their weight, and heads of keys that several have. Without it each rank
// would train its own. Thread-compatible.
class SharedGradients {
 public:
  // `placements`: of the gradients given to Sum, in their order. A collective where a group has to
  // be connected. Borrows `mesh`.
  SharedGradients(const Mesh& mesh, std::span<const ParamPlacement> placements);

  // Each gradient becomes the sum over the ranks that share it. A collective of the tensor group.
  void Sum(std::span<const at::Tensor> gradients) const;

 private:
  // Those of so many sharers.
  struct Group {
    Communicator* comm = nullptr;
    std::unique_ptr<Communicator> own;  // null: the mesh's
    std::vector<size_t> gradients;      // by position
  };
  static void SumTogether(std::span<const at::Tensor> gradients, Communicator& comm);

  std::map<int, Group> groups_;  // by the number of sharers
};

}  // namespace sft::engine
