#include "worker/engine/train/flops.h"

#include "common/plan/attention_calls.h"
#include "common/plan/attention_cost.h"

namespace sft::engine {

StepFlops::StepFlops(const ModelConfig& config, const ModelLayout& layout) {
  const int first = layout.first_trainable();
  for (int unit = 1; unit < layout.head_unit(); ++unit) {
    const plan::LayerShape layer = config.Layer(unit - 1);
    for (const ParamInfo& param : layout.units[unit].params) {
      if (param.shape.size() < 2) continue;
      const double products = 1.0 + (unit >= first) + param.trainable;
      const int64_t passed =
          param.experts > 0 ? param.numel() / param.experts * layer.chosen : param.numel();
      per_token_ += 2.0 * static_cast<double>(passed) * products;
    }
    if (layer.delta) {
      // The backward has twice the work, and what it makes again does not count.
      const double passes = unit >= first ? 3.0 : 1.0;
      per_token_ += plan::DeltaFlops(config.delta) * passes;
      continue;
    }
    // Scores and values forward, twice that backward.
    const double pair = 4.0 * static_cast<double>(config.heads * config.Layer(unit - 1).head_dim) *
                        (unit >= first ? 3.0 : 1.0);
    windows_.emplace_back(config.layer_options[unit - 1].window, pair);
  }
  // The layers' own inputs are made of the embeddings by one product.
  const auto inputs = static_cast<double>(config.layers * config.layer_input * config.hidden);
  per_token_ += 2.0 * inputs * (first == 0 ? 3.0 : 1.0);
  const ParamInfo& head =
      config.tied_head ? layout.units[0].params[0] : layout.units[layout.head_unit()].params.back();
  per_target_ = 2.0 * static_cast<double>(head.numel()) *
                (1.0 + (first < layout.head_unit()) + head.trainable);
}

Flops StepFlops::Of(std::span<const int64_t> lengths, int64_t targets) const {
  Flops flops{.products = per_target_ * static_cast<double>(targets)};
  for (int64_t length : lengths) {
    flops.products += per_token_ * static_cast<double>(length);
    for (const auto& [window, pair] : windows_)
      flops.attention += pair * plan::SeenPairs(length, window);
  }
  return flops;
}

}  // namespace sft::engine
