#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace sft::engine {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };

// Rotary embedding as transformers' modeling_rope_utils.py computes it.
struct RopeOptions {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_positions = 0;  // llama3, yarn
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn
  std::optional<double> attention_factor;  // yarn; else from factor and the two below
  double mscale = 0.0;                     // yarn; 0: not given
  double mscale_all_dim = 0.0;
};

// Cosines and sines of the positions of one micro-batch.
struct RopeTables {
  at::Tensor cos;  // fp32 [T, D / 2]
  at::Tensor sin;
};

// The frequencies of one model; makes the tables of a micro-batch. Immutable.
class Rope {
 public:
  Rope(const RopeOptions& options, int64_t head_size, at::Device device);

  // `positions`: int64 [T] on the device.
  RopeTables Tables(const at::Tensor& positions) const;

  const at::Tensor& inverse_frequencies() const { return inverse_frequencies_; }  // fp32 [D / 2]
  // What cos and sin are multiplied with.
  double scaling() const { return scaling_; }

 private:
  at::Tensor inverse_frequencies_;
  double scaling_ = 1.0;
};

}  // namespace sft::engine
