#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/model/decoder.h"

namespace sft::engine {

// Options of generation.
struct GeneratorOptions {
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;  // PEFT layout; empty: the base alone
  at::Device device = at::kCPU;
  // Undefined type (the default): fp32 on a CPU, bf16 on a GPU.
  at::ScalarType compute = at::ScalarType::Undefined;
};

// Greedy decoding of one sequence with cached keys and values. The base is held whole, not
// quantised; an adapter is applied beside it, not merged. Thread-compatible.
class Generator {
 public:
  // Throws UserError: model or adapter cannot be used, or do not belong together.
  explicit Generator(const GeneratorOptions& options);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // The most probable continuation of `prompt` (not empty), token by token: ends after one of
  // `stop_ids` (which is not returned) or `max_tokens`. `on_token` (optional) sees each token as it
  // is made and ends the generation by returning false.
  std::vector<int32_t> Generate(std::span<const int32_t> prompt, int max_tokens,
                                std::span<const int32_t> stop_ids,
                                const std::function<bool(int32_t)>& on_token = nullptr);

  // Logits of every token of one document [T, V].
  at::Tensor Logits(std::span<const int32_t> tokens);

  const ModelConfig& config() const { return config_; }

 private:
  // Keys and values of the tokens so far, [tokens, key heads, D]; the tail is not yet used.
  struct LayerCache {
    at::Tensor k, v;
  };

  // Runs `tokens` at positions [past, past + n) and returns the logits of the last one [V].
  at::Tensor Step(std::span<const int32_t> tokens, int64_t past, std::vector<LayerCache>& cache);

  GeneratorOptions options_;
  ModelConfig config_;
  ModelLayout layout_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace sft::engine
