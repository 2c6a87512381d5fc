#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <utility>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

// An activation, or the gradient of one, on its way to the product that reads it: rows [T, C], with
// columns to spare for the adapters of that product (EmptyRows), and what who makes the rows writes
// beside them in the same pass: the rows in FP8 where the product is in FP8, and of a gradient the
// sums of its columns, which are that of a bias. Projection gives out what its products read.
// Shares its tensors.
struct Activation {
  Activation() = default;
  Activation(at::Tensor rows, ops::Fp8Rows fp8 = {})  // rows alone are an activation
      : rows(std::move(rows)), fp8(std::move(fp8)) {}

  at::Tensor rows;
  ops::Fp8Rows fp8;
  at::Tensor sums;  // fp32 [C]; undefined: not made
};

// Rows [tokens, columns], uninitialised, with room for `spare` columns more in each: the product of
// an adapter's first factor goes there, so that its second factor is part of the weight's product.
at::Tensor EmptyRows(int64_t tokens, int64_t columns, int64_t spare, const at::Tensor& like);

// The same rows with `spare` of their spare columns. Throws InternalError where they have too few.
at::Tensor Widened(const at::Tensor& rows, int64_t spare);

// The `spare` columns alone. Throws as Widened does.
at::Tensor SpareColumns(const at::Tensor& rows, int64_t spare);

// table[rows[i]] += values[i], table fp32, in an order that does not depend on the threads.
void AddRows(at::Tensor& table, const at::Tensor& rows, const at::Tensor& values);

// The sigmoids of x, fp32 and dense, each by itself: ATen's on a CPU rounds what fills a vector
// register otherwise than the rest, so that a token's would depend on the tokens beside it.
at::Tensor Sigmoids(const at::Tensor& x);

// `value` as a number of `type`.
double RoundedTo(double value, at::ScalarType type);

// `part`, or a copy of it where it would keep the storage of `rows` alive.
at::Tensor ApartFrom(const at::Tensor& rows, const at::Tensor& part);

// run(x), which may be of the first dimension's rows one by one, where `alone`: ATen's elementwise
// operations on a CPU round what fills a vector register otherwise than the rest, so that a row's
// bits would depend on the rows beside it.
template <typename Run>
at::Tensor ByRow(const at::Tensor& x, bool alone, const Run& run) {
  if (!alone || !x.is_cpu()) return run(x);
  at::Tensor y = at::empty(x.sizes(), x.options());
  for (int64_t row = 0; row < x.size(0); ++row) y.select(0, row).copy_(run(x.select(0, row)));
  return y;
}

}  // namespace sft::engine
