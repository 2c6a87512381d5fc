#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/plan/config_reader.h"
#include "common/plan/model_config.h"
#include "common/plan/tensors.h"

// A family of models as a description: what its config.json means where it differs from Llama's.
// Each file of this folder describes a family or a few close ones; table.cc lists them. Defaults
// are those of transformers' configuration classes.

namespace sft::plan {

// Llama's names, which most families took over.
inline constexpr TensorNames kLlamaNames = {
    .embedding = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .block = "model.layers",
    .attention_norm = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .mlp_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

// Beyond this, numbers of weights and bytes would leave 64 bits.
inline constexpr double kMostWeights = 1e15;

// The names of the keys that not all families call the same.
struct ConfigKeys {
  const char* hidden = "hidden_size";
  const char* intermediate = "intermediate_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* max_positions = "max_position_embeddings";
  const char* epsilon = "rms_norm_eps";
  const char* activation = "hidden_act";
};

// The values of keys that config.json leaves out.
struct ConfigDefaults {
  // 0: the key is required.
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t intermediate_per_hidden = 0;  // instead, a multiple of the hidden size
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t vocab = 0;
  int64_t kv_heads = 0;       // 0: as many as heads
  int64_t head_dim = 0;       // 0: hidden / heads
  int64_t max_positions = 0;  // 0: not known
  int64_t pad_token = -1;     // -1: none
  double theta = 10000.0;
  double epsilon = 1e-6;
  bool tied_head = false;
};

// What sets a family apart.
struct Family {
  std::string_view name;  // model_type
  ConfigKeys keys;
  ConfigDefaults defaults;
  std::string_view activation = "silu";  // where its key is missing
  bool qkv_bias = false;                 // always present (Qwen2), not an option
  bool has_attention_bias = false;       // the key attention_bias counts
  bool has_mlp_bias = false;             // the key mlp_bias counts
  QkNorm qk_norm = QkNorm::kNone;
  NormKind norm = NormKind::kRms;
  TensorNames names = kLlamaNames;
  bool reads_rope = false;  // `read` reads the rope by itself
  // Reads what this family alone has, once the rest of `model` is read: ropes holds the rope of the
  // top level, layer_options has a default entry for each layer. Null: nothing.
  void (*read)(const ConfigReader& config, ModelConfig& model) = nullptr;
};

// The descriptions.
extern const Family kLlama, kMistral, kQwen2, kQwen3, kGranite, kSmolLm3, kGemma3, kGemma4, kOlmo2,
    kOlmo3, kMinistral, kMinistral3, kPhi3, kGpt2, kQwen3Moe, kMixtral, kGptOss, kGlm4Moe, kQwen35,
    kQwen35Moe, kQwen3Next, kGranite4;

// A multimodal model whose decoder is of a family above: config.json has it under "text_config".
struct Wrapper {
  std::string_view name;         // model_type of the whole
  std::string_view text_family;  // where text_config has no model_type
  std::string_view prefix;       // ModelShape::prefix
};

// Null if there is none of that model_type.
const Family* FindFamily(std::string_view name);
const Wrapper* FindWrapper(std::string_view name);
// "llama, mistral, ...", the model_types that are read, wrappers included.
std::string FamilyNames();
// Why a model_type that is not read is not: the nearest family and what differs from it, or the
// family whose name is nearly that, or what the keys of `config` tell; empty if nothing is known.
std::string ReasonAgainst(std::string_view name, const ConfigReader& config);

// For descriptions.

// Reads `layer_types`, one entry a layer: "sliding_attention" sets `window`, "full_attention" none.
void ReadLayerTypes(const ConfigReader& config, int64_t window, ModelConfig& model);
// The window of sliding_window; an explicit null is none, 0.
int64_t ReadWindow(const ConfigReader& config, int64_t fallback);
// Sliding layers but for every `interval`-th, or as layer_types says.
void ReadSlidingLayers(const ConfigReader& config, int64_t window, int64_t interval,
                       ModelConfig& model);
// One rope for full layers and one for sliding ones, from rope_parameters by layer type; without it
// full layers keep the rope of the top level, sliding ones rotate unscaled with `sliding_theta`.
// `theta` is the base of full layers where neither they nor the top level give one.
void ReadRopesByLayerType(const ConfigReader& config, double theta, double sliding_theta,
                          ModelConfig& model);

}  // namespace sft::plan
