#pragma once

#include "worker/engine/model/config.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// The parameters of a model (common/plan/tensors.h), all frozen and none quantised.
ModelLayout MakeLayout(const ModelConfig& config);

}  // namespace sft::engine
