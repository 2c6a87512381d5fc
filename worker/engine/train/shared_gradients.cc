#include "worker/engine/train/shared_gradients.h"

#include <ATen/ops/cat.h>

#include <numeric>

namespace sft::engine {

using at::Tensor;

namespace {

// Gradients up to so many elements travel together, in messages of about as many.
constexpr int64_t kMessage = int64_t{1} << 20;

}  // namespace

SharedGradients::SharedGradients(const Mesh& mesh, std::span<const ParamPlacement> placements) {
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].sharers > 1) groups_[placements[i].sharers].gradients.push_back(i);
  }
  Communicator& all = mesh.Group(Axis::kTensor);
  for (auto& [sharers, group] : groups_) {
    group.comm = &all;
    if (sharers == all.world()) continue;
    std::vector<int> members(static_cast<size_t>(sharers));
    std::iota(members.begin(), members.end(), all.rank() / sharers * sharers);
    group.own = MakeSubgroup(all, members);
    group.own->NameAxis(NameOf(Axis::kTensor));
    group.comm = group.own.get();
  }
}

void SharedGradients::SumTogether(std::span<const Tensor> gradients, Communicator& comm) {
  if (gradients.empty()) return;
  const Tensor message = at::cat(gradients);
  comm.AllReduceSum(message);
  int64_t begin = 0;
  for (const Tensor& gradient : gradients) {
    gradient.copy_(message.narrow(0, begin, gradient.numel()));
    begin += gradient.numel();
  }
}

void SharedGradients::Sum(std::span<const Tensor> gradients) const {
  for (const auto& [sharers, group] : groups_) {
    std::vector<Tensor> small;
    int64_t elements = 0;
    for (const size_t i : group.gradients) {
      const Tensor& gradient = gradients[i];
      if (gradient.numel() >= kMessage) {
        group.comm->AllReduceSum(gradient);
        continue;
      }
      small.push_back(gradient);
      elements += gradient.numel();
      if (elements < kMessage) continue;
      SumTogether(small, *group.comm);
      small.clear();
      elements = 0;
    }
    SumTogether(small, *group.comm);
  }
}

}  // namespace sft::engine
