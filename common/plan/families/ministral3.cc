#include "common/plan/families/family.h"
#include "common/plan/read_rope.h"

namespace sft::plan {
namespace {

// Mistral with a scale of queries that grows with their position, and no window where the key is
// missing.
void ReadMinistral3(const ConfigReader& config, ModelConfig& model) {
  const int64_t window = ReadWindow(config, 0);
  for (LayerOptions& layer : model.layer_options) layer.window = window;
  RopeOptions& rope = model.ropes[0];
  const auto parameters = RopeObject(config);
  if (!parameters) {
    rope = {.type = RopeType::kYarn,
            .theta = 1'000'000.0,
            .factor = 16.0,
            .original_max_positions = 16'384,
            .mscale = 1.0,
            .mscale_all_dim = 1.0};
    rope.query_scaling = 0.1;
  } else {
    rope.query_scaling = parameters->Get("llama_4_scaling_beta", 0.0);
    rope.original_max_positions = ReadOriginalPositions(*parameters, config);
  }
  model.max_positions = config.Size("max_position_embeddings", 262'144);  // scaling included
}

}  // namespace

const Family kMinistral3 = {.name = "ministral3",
                            .defaults = {.hidden = 4096,
                                         .intermediate = 14'336,
                                         .layers = 34,
                                         .heads = 32,
                                         .vocab = 131'072,
                                         .kv_heads = 8,
                                         .head_dim = 128,
                                         .max_positions = 262'144,
                                         .pad_token = 11,
                                         .epsilon = 1e-5},
                            .read = ReadMinistral3};

}  // namespace sft::plan
