#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "worker/engine/weights/quant_format.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Expands a unit's quantised weights for the computation: lays them out in a buffer of bytes and
// fills it. Weights stand in their shared matrices, with room for the adapters.
// Thread-compatible.
class UnitExpansion {
 public:
  // The quantised bytes of a parameter, whole.
  using Bytes = std::function<QuantizedPart(int param)>;

  virtual ~UnitExpansion() = default;
  // Size of the buffer.
  virtual int64_t bytes() const = 0;
  // Writes what `use` needs. Returns what the buffer serves by that: `use`, or more.
  virtual WeightUse Fill(const at::Tensor& buffer, WeightUse use, const Bytes& quantized) = 0;
  // True if one writing serves forward and backward alike.
  virtual bool serves_both() const = 0;
  // Views of a filled buffer.
  virtual void Give(const at::Tensor& buffer, UnitWeights& weights) const = 0;
};

// De-quantised to `compute`. Serves forward and backward alike. Borrows both.
std::unique_ptr<UnitExpansion> MakePlainExpansion(const UnitInfo& unit, const QuantFormat& format,
                                                  at::ScalarType compute);

// FP8 with a scale a row (kernels/ops.h), once as the forward reads it and once transposed, as the
// gradient of the input needs it. The scales are those of the de-quantised weights; stacks of
// experts are as frozen_fp8.h has them, and are de-quantised in bf16 for a while. Borrows both;
// every quantised parameter must be a linear layer's weight. Throws UserError as CheckFp8Sizes
// does.
std::unique_ptr<UnitExpansion> MakeFp8Expansion(const UnitInfo& unit, const QuantFormat& format);

}  // namespace sft::engine
