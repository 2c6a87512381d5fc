// FP8 as a reference for the kernels of a GPU, with the same bits.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/fp8_rows.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using Fp8 = c10::Float8_e4m3fn;

constexpr int64_t kGrainRows = 16;

// LibTorch's conversion rounds to nearest even, but makes a NaN of what is too large.
Fp8 ToFp8(float x) {
  if (std::isnan(x)) return Fp8(0x7f, Fp8::from_bits());
  return Fp8(std::clamp(x, -kFp8Largest, kFp8Largest));
}

template <typename T>
float ScaleOf(const T* row, int64_t width) {
  float largest = 0.0f;
  for (int64_t i = 0; i < width; ++i) {
    largest = std::max(largest, std::fabs(static_cast<float>(row[i])));
  }
  if (largest == 0.0f) return 1.0f;
  return std::max(largest * (ops::kFp8Room / kFp8Largest), kFp8SmallestScale);
}

// `scale_of(row)` gives the scale of a row.
template <typename T, typename RowScale>
void QuantizeRows(Tensor& out, const Tensor& x, const RowScale& scale_of) {
  const T* from = x.const_data_ptr<T>();
  Fp8* to = out.mutable_data_ptr<Fp8>();
  const int64_t width = x.size(1), stride = x.stride(0), out_stride = out.stride(0);
  at::parallel_for(0, x.size(0), kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float inverse = 1.0f / scale_of(row);
      for (int64_t i = 0; i < width; ++i) {
        to[row * out_stride + i] = ToFp8(static_cast<float>(from[row * stride + i]) * inverse);
      }
    }
  });
}

template <typename T>
void QuantizeAs(Tensor& out, Tensor& scale, const Tensor& x) {
  const T* from = x.const_data_ptr<T>();
  float* scales = scale.mutable_data_ptr<float>();
  QuantizeRows<T>(out, x, [&](int64_t row) {
    return scales[row] = ScaleOf(from + row * x.stride(0), x.size(1));
  });
}

template <typename T>
void QuantizeWithAs(Tensor& out, const Tensor& x, const Tensor& scale) {
  const float* scales = scale.const_data_ptr<float>();
  QuantizeRows<T>(out, x, [scales](int64_t row) { return scales[row]; });
}

// Columns [first, first + rank) of all rows of the matrix: one member's.
template <typename T>
void PlaceBesideAs(Tensor& matrix, const float* row_scale, const Tensor& b, int64_t first_row,
                   int64_t first, float scale) {
  const T* up = b.const_data_ptr<T>();
  Fp8* values = matrix.mutable_data_ptr<Fp8>();
  const int64_t rank = b.size(1);
  for (int64_t row = 0; row < matrix.size(0); ++row) {
    Fp8* to = values + row * matrix.stride(0) + first;
    const int64_t from = row - first_row;
    if (from < 0 || from >= b.size(0)) {
      std::fill_n(to, rank, ToFp8(0.0f));
      continue;
    }
    const float inverse = 1.0f / row_scale[row];
    for (int64_t r = 0; r < rank; ++r) {
      to[r] = ToFp8(static_cast<float>(up[from * b.stride(0) + r]) * scale * inverse);
    }
  }
}

template <typename T>
void PlaceTransposedAs(Tensor& matrix, const float* row_scale, const Tensor& a, int64_t first) {
  const T* down = a.const_data_ptr<T>();
  Fp8* values = matrix.mutable_data_ptr<Fp8>();
  for (int64_t row = 0; row < matrix.size(0); ++row) {
    const float inverse = 1.0f / row_scale[row];
    for (int64_t r = 0; r < a.size(0); ++r) {
      values[row * matrix.stride(0) + first + r] =
          ToFp8(static_cast<float>(down[r * a.stride(0) + row]) * inverse);
    }
  }
}

template <typename T>
void PlaceFactorsAs(Tensor& matrix, const float* row_scale, at::TensorList a, at::TensorList b,
                    at::IntArrayRef first_row, float scale, bool transposed,
                    const FactorPlaces& places) {
  int64_t first = transposed ? places.rows : places.columns;
  for (size_t i = 0; i < a.size(); ++i) {
    if (transposed) {
      PlaceTransposedAs<T>(matrix, row_scale, a[i], first);
    } else {
      PlaceBesideAs<T>(matrix, row_scale, b[i], first_row[i], first, scale);
    }
    first += a[i].size(0);
  }
}

void CheckType(const Tensor& x, const char* operation) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, operation, ": ",
              x.scalar_type(), " is neither fp32 nor bf16");
}

}  // namespace

void Fp8Quantize(Tensor& out, Tensor& scale, const Tensor& x) {
  CheckFp8Quantize(out, x, scale, "Fp8Quantize");
  CheckType(x, "Fp8Quantize");
  const auto run = x.scalar_type() == at::kFloat ? QuantizeAs<float> : QuantizeAs<c10::BFloat16>;
  run(out, scale, x);
}

void Fp8QuantizeWith(Tensor& out, const Tensor& x, const Tensor& scale) {
  CheckFp8Quantize(out, x, scale, "Fp8QuantizeWith");
  CheckType(x, "Fp8QuantizeWith");
  const auto run =
      x.scalar_type() == at::kFloat ? QuantizeWithAs<float> : QuantizeWithAs<c10::BFloat16>;
  run(out, x, scale);
}

void Fp8QuantizeColumns(Tensor& out, Tensor& scale, const Tensor& x) {
  CheckFp8QuantizeColumns(out, x, scale);
  const int64_t tokens = x.size(0);
  Tensor own = out.narrow(1, 0, tokens);
  Fp8Quantize(own, scale, x.t().contiguous());
  out.narrow(1, tokens, out.size(1) - tokens).zero_();
}

void Fp8QuantizeToo(const ops::Fp8Rows& fp8, const Tensor& x, const char* operation) {
  if (!WantsFp8(fp8, x, operation)) return;
  Tensor values = fp8.values, scale = fp8.scale;
  Fp8Quantize(values, scale, x);
}

void Fp8FromNf4(Tensor& out, const Tensor& codes, const Tensor& absmax_codes,
                const Tensor& nested_absmax, const Tensor& offset, const Tensor& scale,
                bool transposed) {
  const bool nested = CheckFp8FromNf4(out, codes, absmax_codes, nested_absmax, offset, scale);
  const int64_t rows = out.size(0), columns = out.size(1);
  Tensor weight = at::empty({transposed ? columns : rows, transposed ? rows : columns}, at::kFloat);
  if (nested) {
    Nf4DequantizeNested(weight, codes, absmax_codes, nested_absmax, offset);
  } else {
    Nf4Dequantize(weight, codes, absmax_codes);
  }
  if (transposed) weight = weight.t().contiguous();
  Fp8QuantizeWith(out, weight, scale);
}

void Fp8PlaceFactors(Tensor& matrix, const Tensor& row_scale, at::TensorList a, at::TensorList b,
                     at::IntArrayRef first_row, double scale, bool transposed) {
  const FactorPlaces places = CheckFp8Factors(matrix, row_scale, a, b, first_row, transposed);
  CheckType(a[0], "Fp8PlaceFactors");
  const auto run =
      a[0].scalar_type() == at::kFloat ? PlaceFactorsAs<float> : PlaceFactorsAs<c10::BFloat16>;
  run(matrix, row_scale.const_data_ptr<float>(), a, b, first_row, static_cast<float>(scale),
      transposed, places);
}

}  // namespace sft::engine::cpu
