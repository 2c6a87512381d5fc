#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/int8_format.h"
#include "worker/engine/kernels/int8_rows.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;

constexpr int64_t kGrainElements = 65536;

template <typename T>
__attribute__((always_inline)) inline void QuantizeRowAs(const T* weight, float inverse,
                                                         int64_t count, int8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    const float code = std::nearbyint(static_cast<float>(weight[i]) * inverse);
    // Only a NaN is beyond them.
    codes[i] = static_cast<int8_t>(std::max(-kInt8Largest, std::min(kInt8Largest, code)));
  }
}

SFT_SIMD_CLONES void QuantizeRow(const float* weight, float inverse, int64_t count, int8_t* codes) {
  QuantizeRowAs(weight, inverse, count, codes);
}

SFT_SIMD_CLONES void QuantizeRow(const c10::BFloat16* weight, float inverse, int64_t count,
                                 int8_t* codes) {
  QuantizeRowAs(weight, inverse, count, codes);
}

SFT_SIMD_CLONES void ExpandRow(const int8_t* codes, float scale, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(codes[i]) * scale;
}

SFT_SIMD_CLONES void ExpandRow(const int8_t* codes, float scale, int64_t count,
                               c10::BFloat16* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = c10::BFloat16(static_cast<float>(codes[i]) * scale);
  }
}

int64_t GrainRows(int64_t columns) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(columns, 1));
}

template <typename T>
void QuantizeAll(const Tensor& weight, const Tensor& absmax, Tensor& codes) {
  const T* source = weight.const_data_ptr<T>();
  const float* maxima = absmax.const_data_ptr<float>();
  int8_t* code = codes.mutable_data_ptr<int8_t>();
  const int64_t columns = weight.size(1);
  at::parallel_for(0, weight.size(0), GrainRows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float inverse = maxima[row] >= kInt8Smallest ? kInt8Largest / maxima[row] : 0.0f;
      QuantizeRow(source + row * columns, inverse, columns, code + row * columns);
    }
  });
}

template <typename T>
void DequantizeAll(Tensor& out, const Tensor& codes, const Tensor& scale) {
  T* target = out.mutable_data_ptr<T>();
  const int8_t* code = codes.const_data_ptr<int8_t>();
  const float* scales = scale.const_data_ptr<float>();
  const int64_t columns = codes.size(1), stride = out.stride(0);
  at::parallel_for(0, codes.size(0), GrainRows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      ExpandRow(code + row * columns, scales[row], columns, target + row * stride);
    }
  });
}

}  // namespace

Tensor Int8Quantize(const Tensor& weight, const Tensor& absmax) {
  CheckInt8Quantize(weight, absmax);
  Tensor codes = at::empty(weight.sizes(), weight.options().dtype(at::kChar));
  const auto run =
      weight.scalar_type() == at::kFloat ? QuantizeAll<float> : QuantizeAll<c10::BFloat16>;
  run(weight, absmax, codes);
  return codes;
}

void Int8Dequantize(Tensor& out, const Tensor& codes, const Tensor& scale) {
  CheckInt8Dequantize(out, codes, scale);
  const auto run =
      out.scalar_type() == at::kFloat ? DequantizeAll<float> : DequantizeAll<c10::BFloat16>;
  run(out, codes, scale);
}

}  // namespace sft::engine::cpu
