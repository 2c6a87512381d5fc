#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

// Rows [tokens, columns], uninitialised, with room for `spare` columns more in each: the product of
// an adapter's first factor goes there, so that its second factor is part of the weight's product.
at::Tensor EmptyRows(int64_t tokens, int64_t columns, int64_t spare, const at::Tensor& like);

// The same in FP8, beside `like`.
ops::Fp8Rows EmptyFp8Rows(int64_t tokens, int64_t columns, int64_t spare, const at::Tensor& like);

// The same rows with `spare` of their spare columns. Throws InternalError where they have too few.
at::Tensor Widened(const at::Tensor& rows, int64_t spare);

// Those `spare` columns alone. Throws as Widened.
at::Tensor SpareColumns(const at::Tensor& rows, int64_t spare);

// `part`, or a copy of it where it would keep the storage of `rows` alive.
at::Tensor ApartFrom(const at::Tensor& rows, const at::Tensor& part);

}  // namespace sft::engine
