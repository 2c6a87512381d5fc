#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/nn/rope.h"

namespace sft::engine {

// A decoder-only transformer, whatever its family: what config.json says in one vocabulary.
// Options, not subclasses.
struct DecoderConfig {
  std::string family;  // config.json's model_type
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  int64_t max_positions = 0;
  double norm_epsilon = 1e-6;
  RopeOptions rope;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool mlp_bias = false;
  bool head_norm = false;        // norm of each query and key head
  bool tied_head = false;        // the head is the embedding
  // The token whose lookups do not train the embedding, as nn.Embedding's padding_idx; -1: none.
  int64_t pad_token = -1;
  std::vector<int64_t> windows;  // by layer; 0: full attention

  // Reads <model_dir>/config.json. Throws UserError naming the file and the key: missing or broken
  // file, an architecture or option that is not supported (with the list of those that are).
  static DecoderConfig Read(const std::filesystem::path& model_dir);
  // The same from text; `origin` names it in messages.
  static DecoderConfig Parse(std::string_view json, const std::string& origin);
};

// "llama, mistral, qwen2, qwen3"
std::string SupportedFamilies();

}  // namespace sft::engine
