#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/plan/model_config.h"

namespace sft::engine {

using plan::RopeOptions;
using plan::RopeType;

// Cosines and sines of the positions of one micro-batch.
struct RopeTables {
  // Undefined where the layer sees no positions.
  at::Tensor cos;  // fp32 [T, R / 2], of the R elements of a head that are rotated
  at::Tensor sin;
  // fp32 [T]: what rotated queries are multiplied by; undefined where that is 1.
  at::Tensor query_scale;
};

// The frequencies of one model; makes the tables of a micro-batch. Immutable.
class Rope {
 public:
  Rope(const RopeOptions& options, int64_t head_dim, at::Device device);

  // `positions`: int64 [T] on the device; `lengths`: int64 [T], the length of each token's
  // document, which is read only where depends_on_length().
  RopeTables Tables(const at::Tensor& positions, const at::Tensor& lengths = {}) const;
  // True if documents longer than the model was first trained for turn at other frequencies.
  bool depends_on_length() const { return long_frequencies_.defined(); }

  const at::Tensor& inverse_frequencies() const { return inverse_frequencies_; }  // fp32 [R / 2]
  // The factor that cos and sin are multiplied by.
  double scaling() const { return scaling_; }

 private:
  at::Tensor inverse_frequencies_;
  at::Tensor long_frequencies_;  // longrope; else undefined
  double scaling_ = 1.0;
  bool rotates_ = true;
  double query_scaling_ = 0.0;
  int64_t original_max_positions_ = 0;
};

}  // namespace sft::engine
