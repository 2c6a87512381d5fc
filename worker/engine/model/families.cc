#include "worker/engine/model/families.h"

#include <utility>

#include "common/plan/tensors.h"
#include "worker/engine/base/error.h"

namespace sft::engine {

namespace {

ParamRole RoleOf(plan::TensorRole role) {
  switch (role) {
    case plan::TensorRole::kEmbedding:
      return ParamRole::kEmbedding;
    case plan::TensorRole::kNorm:
      return ParamRole::kNorm;
    case plan::TensorRole::kLinear:
      return ParamRole::kLinear;
    case plan::TensorRole::kBias:
      return ParamRole::kBias;
    case plan::TensorRole::kHead:
      return ParamRole::kHead;
    case plan::TensorRole::kConstant:
      return ParamRole::kConstant;
    case plan::TensorRole::kRouter:
      return ParamRole::kRouter;
    case plan::TensorRole::kMixer:
      return ParamRole::kMixer;
  }
  throw InternalError("unknown role of a tensor");
}

}  // namespace

ModelLayout MakeLayout(const ModelConfig& config) {
  ModelLayout layout;
  layout.in_files = plan::NamesInFiles(config);
  layout.named = plan::NamedModulesOf(config);
  layout.stored = config.stored;
  for (plan::TensorUnit& tensors : plan::TensorsOf(config)) {
    UnitInfo unit{std::move(tensors.name), {}, std::move(tensors.shared_matrices)};
    for (plan::TensorInfo& tensor : tensors.tensors) {
      unit.params.push_back({.name = std::move(tensor.name),
                             .shape = std::move(tensor.shape),
                             .role = RoleOf(tensor.role),
                             .transposed = tensor.transposed,
                             .experts = tensor.experts,
                             .exact = tensor.exact,
                             .parts = std::move(tensor.parts),
                             .single_parts = std::move(tensor.single_parts),
                             .joined = std::move(tensor.joined)});
    }
    layout.units.push_back(std::move(unit));
  }
  return layout;
}

}  // namespace sft::engine
