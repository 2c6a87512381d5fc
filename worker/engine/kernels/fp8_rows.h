#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/op_types.h"
#include "worker/engine/kernels/rows.h"

// Checks and the choice of a row's scale in FP8, shared by the CPU and CUDA implementations. To
// divide by a scale is to multiply by its reciprocal, in fp32; a NaN becomes 0x7f.

namespace sft::engine {

inline constexpr float kFp8Largest = 448.0f;
// Below it the reciprocal would overflow.
inline constexpr float kFp8SmallestScale = std::numeric_limits<float>::min();

// Throws unless `x` is float8 rows [rows, width] on the device of `like`.
inline void CheckFp8Rows(const at::Tensor& x, int64_t rows, int64_t width, const at::Tensor& like,
                         const char* name) {
  TORCH_CHECK(x.scalar_type() == at::kFloat8_e4m3fn && x.device() == like.device(), name, " is ",
              x.scalar_type(), " on ", x.device(), ", must be float8_e4m3fn on ", like.device());
  CheckRows(x, rows, width, x, name);
}

// Throws unless `scale` is one dense float a row of `out`, beside it.
inline void CheckRowScale(const at::Tensor& scale, const at::Tensor& out, const char* name) {
  TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.is_contiguous() &&
                  scale.numel() == out.size(0) && scale.device() == out.device(),
              name, " is ", scale.scalar_type(), scale.sizes(), ", must be fp32 [", out.size(0),
              "], dense, beside the rows");
}

inline void CheckFp8Quantize(const at::Tensor& out, const at::Tensor& x, const at::Tensor& scale,
                             const char* operation) {
  TORCH_CHECK(x.dim() == 2, operation, ": x is ", x.sizes(), ", must be [rows, width]");
  CheckRows(x, x.size(0), x.size(1), x, operation);
  CheckFp8Rows(out, x.size(0), x.size(1), x, operation);
  CheckRowScale(scale, out, operation);
}

inline void CheckFp8QuantizeColumns(const at::Tensor& out, const at::Tensor& x,
                                    const at::Tensor& scale) {
  constexpr const char* kName = "Fp8QuantizeColumns";
  TORCH_CHECK(x.dim() == 2 && out.dim() == 2 && out.size(1) >= x.size(0), kName, ": no place in ",
              out.sizes(), " for the transpose of ", x.sizes());
  CheckRows(x, x.size(0), x.size(1), x, kName);
  CheckFp8Rows(out, x.size(1), out.size(1), x, kName);
  CheckRowScale(scale, out, kName);
}

// Returns true if an operation that makes the rows x is to write them in FP8 too. Throws where
// `fp8` does not fit x.
inline bool WantsFp8(const ops::Fp8Rows& fp8, const at::Tensor& x, const char* operation) {
  TORCH_CHECK(fp8.values.defined() == fp8.scale.defined(), operation,
              ": rows in FP8 and their scale come together");
  if (fp8.values.defined()) CheckFp8Quantize(fp8.values, x, fp8.scale, operation);
  return fp8.values.defined();
}

// Checks the arguments of Fp8FromNf4; returns true if the absmax are nested.
inline bool CheckFp8FromNf4(const at::Tensor& out, const at::Tensor& codes,
                            const at::Tensor& absmax_codes, const at::Tensor& nested_absmax,
                            const at::Tensor& offset, const at::Tensor& scale) {
  constexpr const char* kName = "Fp8FromNf4";
  TORCH_CHECK(out.dim() == 2, kName, ": out is ", out.sizes(), ", must be [rows, width]");
  CheckFp8Rows(out, out.size(0), out.size(1), codes, kName);
  CheckRowScale(scale, out, kName);
  const int64_t n = out.numel(), blocks = (n + kNf4Block - 1) / kNf4Block;
  TORCH_CHECK(
      codes.scalar_type() == at::kByte && codes.is_contiguous() && codes.numel() == (n + 1) / 2,
      kName, ": ", n, " elements need ", (n + 1) / 2, " dense bytes of codes, got ", codes.numel());
  const bool nested = nested_absmax.defined();
  TORCH_CHECK(nested == offset.defined(), kName, ": nested absmax and offset come together");
  TORCH_CHECK(absmax_codes.scalar_type() == (nested ? at::kByte : at::kFloat) &&
                  absmax_codes.is_contiguous() && absmax_codes.numel() == blocks &&
                  absmax_codes.device() == codes.device(),
              kName, ": got ", absmax_codes.numel(), " absmax of ", absmax_codes.scalar_type(),
              " for ", n, " elements");
  if (!nested) return false;
  CheckVector(nested_absmax, (blocks + kNestedBlock - 1) / kNestedBlock, scale, kName);
  CheckVector(offset, 1, scale, kName);
  return true;
}

// The places of Fp8PlaceFactors' members, checked. With `transposed` the matrix is [K, N + R].
inline FactorPlaces CheckFp8Factors(const at::Tensor& matrix, const at::Tensor& row_scale,
                                    at::TensorList a, at::TensorList b, at::IntArrayRef first_row,
                                    bool transposed) {
  constexpr const char* kName = "Fp8PlaceFactors";
  TORCH_CHECK(!a.empty() && a.size() == b.size() && a.size() == first_row.size(), kName, ": ",
              a.size(), " a, ", b.size(), " b and ", first_row.size(),
              " rows must be as many, and not none");
  TORCH_CHECK(matrix.dim() == 2 && a[0].dim() == 2, kName, ": matrix is ", matrix.sizes(),
              ", a[0] is ", a[0].sizes());
  CheckFp8Rows(matrix, matrix.size(0), matrix.size(1), a[0], kName);
  CheckRowScale(row_scale, matrix, kName);
  FactorPlaces places{.columns = a[0].size(1)};
  for (const at::Tensor& factor : a) places.rank += factor.size(0);
  places.rows = transposed ? matrix.size(1) - places.rank : matrix.size(0);
  const int64_t columns = transposed ? matrix.size(0) : matrix.size(1) - places.rank;
  TORCH_CHECK(places.rows >= 0 && columns == places.columns, kName, ": no place in ",
              matrix.sizes(), " for rank ", places.rank, " beside ", places.columns, " inputs");
  for (size_t i = 0; i < a.size(); ++i) {
    TORCH_CHECK(b[i].dim() == 2, kName, ": b is ", b[i].sizes());
    CheckRows(a[i], a[i].size(0), places.columns, a[0], kName);
    CheckRows(b[i], b[i].size(0), a[i].size(0), a[0], kName);
    TORCH_CHECK(first_row[i] >= 0 && first_row[i] + b[i].size(0) <= places.rows, kName, ": rows ",
                first_row[i], " to ", first_row[i] + b[i].size(0), " of a weight that has ",
                places.rows);
  }
  return places;
}

}  // namespace sft::engine
