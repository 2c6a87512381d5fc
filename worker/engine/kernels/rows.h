#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/engine/kernels/mxfp4_format.h"

// Checks that the implementations of ops.h share, whatever the device.

namespace sft::engine {

// Throws unless `x` is rows [rows, width] of the type and device of `like`. `name` is the operation
// and the argument, as in "RmsNorm: y".
inline void CheckRows(const at::Tensor& x, int64_t rows, int64_t width, const at::Tensor& like,
                      const char* name) {
  TORCH_CHECK(x.dim() == 2 && x.size(0) == rows && x.size(1) == width, name, " is ", x.sizes(),
              ", must be [", rows, ", ", width, "]");
  TORCH_CHECK((width <= 1 || x.stride(1) == 1) && (rows <= 1 || x.stride(0) >= width), name,
              " has strides ", x.strides(), ", rows must be dense and apart");
  TORCH_CHECK(x.scalar_type() == like.scalar_type() && x.device() == like.device(), name, " is ",
              x.scalar_type(), " on ", x.device(), ", must be ", like.scalar_type(), " on ",
              like.device());
}

// Throws unless `x` is a dense vector of `count` elements of the type and device of `like`.
inline void CheckVector(const at::Tensor& x, int64_t count, const at::Tensor& like,
                        const char* name) {
  TORCH_CHECK(x.is_contiguous() && x.numel() == count, name, " is ", x.sizes(), ", must be [",
              count, "], dense");
  TORCH_CHECK(x.scalar_type() == like.scalar_type() && x.device() == like.device(), name, " is ",
              x.scalar_type(), " on ", x.device(), ", must be ", like.scalar_type(), " on ",
              like.device());
}

// Throws unless `sums` can hold one sum for each column of the rows `x`.
inline void CheckColumnSums(const at::Tensor& sums, const at::Tensor& x, const char* operation) {
  TORCH_CHECK(x.dim() == 2, operation, ": x is ", x.sizes(), ", must be rows");
  CheckRows(x, x.size(0), x.size(1), x, operation);
  TORCH_CHECK(sums.is_contiguous() && sums.numel() == x.size(1) && sums.device() == x.device() &&
                  sums.scalar_type() == at::kFloat,
              operation, ": sums must be fp32 [", x.size(1), "], dense, beside x");
}

// Throws unless `part` can be added up in `sum` (ops::Accumulate).
inline void CheckAccumulate(const at::Tensor& sum, const at::Tensor& part) {
  TORCH_CHECK(sum.is_contiguous() && part.is_contiguous() && sum.numel() == part.numel() &&
                  sum.device() == part.device() && sum.scalar_type() == at::kFloat,
              "Accumulate: sum must be fp32 [", part.numel(), "], dense, on ", part.device());
}

// Throws unless `x` is [tokens, heads, size] with dense heads, of the type and device of `like`.
inline void CheckHeads(const at::Tensor& x, int64_t tokens, int64_t size, const at::Tensor& like,
                       const char* name) {
  TORCH_CHECK(x.dim() == 3 && x.size(0) == tokens && x.size(2) == size, name, " is ", x.sizes(),
              ", must be [", tokens, ", heads, ", size, "]");
  TORCH_CHECK((size <= 1 || x.stride(2) == 1) && (x.size(1) <= 1 || x.stride(1) == size) &&
                  (tokens <= 1 || x.stride(0) >= x.size(1) * size),
              name, " has strides ", x.strides(), ", heads must be dense");
  TORCH_CHECK(x.scalar_type() == like.scalar_type() && x.device() == like.device(), name, " is ",
              x.scalar_type(), " on ", x.device(), ", must be ", like.scalar_type(), " on ",
              like.device());
}

// Throws unless cos and sin are the tables of `tokens` for heads of `size`, on the device of
// `like`.
// `size`: of the part of a head that is rotated.
inline void CheckAngles(const at::Tensor& cos, const at::Tensor& sin, int64_t tokens, int64_t size,
                        const at::Tensor& like, const char* operation) {
  TORCH_CHECK(size % 2 == 0, operation, ": heads of ", size, " cannot be halved");
  for (const at::Tensor* table : {&cos, &sin}) {
    TORCH_CHECK(table->is_contiguous() && table->dim() == 2 && table->size(0) == tokens &&
                    table->size(1) == size / 2 && table->scalar_type() == at::kFloat &&
                    table->device() == like.device(),
                operation, ": cos and sin must be fp32 [", tokens, ", ", size / 2,
                "], dense, beside the tokens");
  }
}

// Checks the arguments of LayerNorm and of its backward.
inline void CheckLayerNorm(const at::Tensor& x, const at::Tensor& weight, const char* operation) {
  TORCH_CHECK(x.dim() == 2, operation, ": x is ", x.sizes(), ", must be [tokens, width]");
  CheckRows(x, x.size(0), x.size(1), x, operation);
  CheckVector(weight, x.size(1), x, operation);
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, operation,
              ": x must be fp32 or bf16");
}
inline void CheckLayerNormBackward(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& weight, const at::Tensor& statistics,
                                   const at::Tensor& residual) {
  constexpr const char* kName = "LayerNormBackward";
  CheckLayerNorm(x, weight, kName);
  for (const at::Tensor& rows : {dx, dy, residual.defined() ? residual : dy}) {
    CheckRows(rows, x.size(0), x.size(1), x, kName);
  }
  TORCH_CHECK(statistics.is_contiguous() && statistics.dim() == 2 && statistics.size(0) == 2 &&
                  statistics.size(1) == x.size(0) && statistics.scalar_type() == at::kFloat &&
                  statistics.device() == x.device(),
              kName, ": statistics must be fp32 [2, ", x.size(0), "], dense, beside x");
}

// How many elements of each head angles like `cos` rotate, of heads of `size`.
inline int64_t RotatedSize(const at::Tensor& cos, int64_t size, const char* operation) {
  TORCH_CHECK(cos.dim() == 2 && 2 * cos.size(1) <= size, operation, ": angles ", cos.sizes(),
              " for heads of ", size);
  return 2 * cos.size(1);
}

// Checks the arguments that NormRope and its backward share. `heads` and `kv_heads` stand first in
// qkv.
inline void CheckNormRope(const at::Tensor& qkv, const at::Tensor& q_weight,
                          const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin,
                          int64_t heads, int64_t kv_heads, const char* operation) {
  const int64_t size = q_weight.numel();
  TORCH_CHECK(qkv.dim() == 2 && size > 0, operation, ": qkv is ", qkv.sizes(), ", q_weight is ",
              q_weight.sizes());
  TORCH_CHECK(qkv.size(1) >= (heads + kv_heads) * size, operation, ": qkv is ", qkv.sizes(),
              ", must have ", heads, " + ", kv_heads, " heads of ", size);
  CheckRows(qkv, qkv.size(0), qkv.size(1), qkv, operation);
  CheckVector(q_weight, size, qkv, operation);
  CheckVector(k_weight, size, qkv, operation);
  CheckAngles(cos, sin, qkv.size(0), size, qkv, operation);
}

// Checks the arguments of Mxfp4Dequantize.
inline void CheckMxfp4(const at::Tensor& out, const at::Tensor& codes, const at::Tensor& scales) {
  constexpr const char* kName = "Mxfp4Dequantize";
  const int64_t n = out.numel();
  TORCH_CHECK(out.is_contiguous() && codes.is_contiguous() && scales.is_contiguous(), kName,
              ": tensors must be dense");
  TORCH_CHECK(out.scalar_type() == at::kFloat || out.scalar_type() == at::kBFloat16, kName,
              ": out must be fp32 or bf16");
  TORCH_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == at::kByte &&
                  codes.numel() >= (n + 1) / 2 &&
                  scales.numel() >= (n + kMxfp4Block - 1) / kMxfp4Block,
              kName, ": ", codes.numel(), " bytes of codes and ", scales.numel(), " scales for ", n,
              " elements");
}

// Checks the arguments of Nf4RowProduct, whose codes have `rows` rows.
inline void CheckNf4Rows(const at::Tensor& out, const at::Tensor& a, const at::Tensor& codes,
                         const at::Tensor& absmax, int64_t rows) {
  TORCH_CHECK(a.dim() == 2 && out.dim() == 2 && a.size(1) % 64 == 0 && codes.is_contiguous() &&
                  absmax.is_contiguous() && codes.dim() == 2 && absmax.dim() == 2 &&
                  codes.size(0) == rows && codes.size(0) == absmax.size(0) &&
                  codes.size(1) * 2 == a.size(1) && absmax.size(1) * 64 == a.size(1) &&
                  codes.scalar_type() == at::kByte && absmax.scalar_type() == at::kFloat &&
                  codes.device() == a.device() && absmax.device() == a.device(),
              "Nf4RowProduct: codes ", codes.sizes(), " and absmax ", absmax.sizes(), " for rows ",
              a.sizes(), " and results ", out.sizes());
}

// Checks the arguments of RowProduct.
inline void CheckRowProduct(const at::Tensor& out, const at::Tensor& a, const at::Tensor& weight,
                            const at::Tensor& addend) {
  TORCH_CHECK(a.dim() == 2 && weight.dim() == 2, "RowProduct: a is ", a.sizes(), ", weight is ",
              weight.sizes());
  TORCH_CHECK(a.scalar_type() == at::kFloat || a.scalar_type() == at::kBFloat16,
              "RowProduct: a must be fp32 or bf16");
  CheckRows(a, a.size(0), a.size(1), a, "RowProduct: a");
  CheckRows(weight, weight.size(0), a.size(1), a, "RowProduct: weight");
  TORCH_CHECK(out.scalar_type() == a.scalar_type() || out.scalar_type() == at::kFloat,
              "RowProduct: out is ", out.scalar_type(), " of ", a.scalar_type());
  CheckRows(out, a.size(0), weight.size(0), out, "RowProduct: out");
  if (addend.defined()) CheckRows(addend, a.size(0), weight.size(0), out, "RowProduct: addend");
}

// Checks the arguments of PagedAttention; what tables and places hold is not read.
inline void CheckPagedAttention(const at::Tensor& out, const at::Tensor& q,
                                const at::Tensor& k_pages, const at::Tensor& v_pages,
                                const at::Tensor& tables, const at::Tensor& places,
                                const at::Tensor& sinks) {
  constexpr const char* kName = "PagedAttention";
  TORCH_CHECK(!sinks.defined() ||
                  (sinks.dim() == 1 && sinks.size(0) == q.size(1) && sinks.is_contiguous() &&
                   sinks.scalar_type() == at::kFloat && sinks.device() == q.device()),
              kName, ": sinks must be fp32 [heads], dense, beside q");
  TORCH_CHECK(q.dim() == 3 && k_pages.dim() == 4, kName, ": q is ", q.sizes(), ", k_pages are ",
              k_pages.sizes());
  TORCH_CHECK(q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16, kName,
              ": q must be fp32 or bf16");
  CheckHeads(q, q.size(0), q.size(2), q, kName);
  CheckHeads(out, q.size(0), q.size(2), q, kName);
  TORCH_CHECK(out.size(1) == q.size(1) && k_pages.size(2) > 0 && q.size(1) % k_pages.size(2) == 0 &&
                  k_pages.size(3) == q.size(2),
              kName, ": q ", q.sizes(), ", out ", out.sizes(), ", k_pages ", k_pages.sizes());
  for (const at::Tensor* pages : {&k_pages, &v_pages}) {
    TORCH_CHECK(pages->sizes() == k_pages.sizes() && pages->is_contiguous() &&
                    pages->scalar_type() == q.scalar_type() && pages->device() == q.device(),
                kName, ": pages must be dense, of one shape, of the type and device of q");
  }
  TORCH_CHECK(tables.dim() == 2 && tables.is_contiguous() && tables.scalar_type() == at::kInt &&
                  tables.device() == q.device(),
              kName, ": tables must be int32 [requests, pages], dense, beside q");
  TORCH_CHECK(places.dim() == 2 && places.size(0) == q.size(0) && places.size(1) == 2 &&
                  places.is_contiguous() && places.scalar_type() == at::kLong &&
                  places.device() == q.device(),
              kName, ": places must be int64 [", q.size(0), ", 2], dense, beside q");
}

// The places of PlaceFactors' members in the matrix, checked.
struct FactorPlaces {
  int64_t rows = 0;     // N
  int64_t columns = 0;  // K
  int64_t rank = 0;     // R
};
inline FactorPlaces CheckFactors(const at::Tensor& matrix, at::TensorList a, at::TensorList b,
                                 at::IntArrayRef first_row) {
  TORCH_CHECK(!a.empty() && a.size() == b.size() && a.size() == first_row.size(),
              "PlaceFactors: ", a.size(), " a, ", b.size(), " b and ", first_row.size(),
              " rows must be as many, and not none");
  TORCH_CHECK(matrix.dim() == 2 && a[0].dim() == 2, "PlaceFactors: matrix is ", matrix.sizes(),
              ", a[0] is ", a[0].sizes());
  FactorPlaces places{.columns = a[0].size(1)};
  for (const at::Tensor& factor : a) places.rank += factor.size(0);
  places.rows = matrix.size(0) - places.rank;
  CheckRows(matrix, matrix.size(0), matrix.size(1), matrix, "PlaceFactors: matrix");
  TORCH_CHECK(places.rows >= 0 && matrix.size(1) >= places.columns + places.rank,
              "PlaceFactors: no place in ", matrix.sizes(), " for rank ", places.rank, " beside ",
              places.columns, " columns");
  for (size_t i = 0; i < a.size(); ++i) {
    TORCH_CHECK(b[i].dim() == 2, "PlaceFactors: b is ", b[i].sizes());
    CheckRows(a[i], a[i].size(0), places.columns, matrix, "PlaceFactors: a");
    CheckRows(b[i], b[i].size(0), a[i].size(0), matrix, "PlaceFactors: b");
    TORCH_CHECK(first_row[i] >= 0 && first_row[i] + b[i].size(0) <= places.rows,
                "PlaceFactors: rows ", first_row[i], " to ", first_row[i] + b[i].size(0),
                " of a weight that has ", places.rows);
  }
  return places;
}

}  // namespace sft::engine
