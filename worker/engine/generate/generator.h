#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/generate/batch_generator.h"
#include "worker/engine/model/decoder.h"
#include "worker/engine/weights/quant_format.h"

namespace sft::engine {

// Options of generation.
struct GeneratorOptions {
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;  // PEFT layout; empty: the base alone
  at::Device device = at::kCPU;
  // Undefined type (the default): fp32 on a CPU, bf16 on a GPU.
  at::ScalarType compute = at::ScalarType::Undefined;
  bool nf4 = false;  // hold the linear layers in NF4, as QLoRA trains beside them
  // The linear layers are what this format leaves of them, expanded; null: as they are.
  const QuantFormat* quantized = nullptr;
};

// A model opened to answer prompts. An adapter is applied beside the base, not merged.
// Thread-compatible.
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

  // Answers requests together, with this model's weights; it must outlive what it gives.
  std::unique_ptr<BatchGenerator> MakeBatch(const BatchOptions& options);

  // Whether requests may do without the adapter: it takes the place of no whole tensor.
  bool optional_adapters() const { return optional_adapters_; }

  // TokenBytesOf and StateBytesOf (paged_decoder.h).
  int64_t CacheTokenBytes() const;
  int64_t StateBytes() const;

  // Logits of every token of one document [T, V].
  at::Tensor Logits(std::span<const int32_t> tokens);

  const ModelConfig& config() const { return config_; }

 private:
  GeneratorOptions options_;
  ModelConfig config_;
  ModelLayout layout_;
  bool optional_adapters_ = true;  // the base's own tensors are all there
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace sft::engine
