#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace sft::plan {

// The sizes of a decoder that decide its parameters, from a Hugging Face config.json.
struct ModelShape {
  std::string family;  // "llama", "mistral", "qwen2", "qwen3"
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;
  int64_t vocab = 0;
  bool tied_head = false;  // the output head is the embedding
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over each query and key head
};

// InvalidArgument names the key that is missing or wrong, or the family that is not known.
absl::StatusOr<ModelShape> ParseModelShape(std::string_view config_json);

}  // namespace sft::plan
