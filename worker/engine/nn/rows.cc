#include "worker/engine/nn/rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>

#include <cmath>
#include <string>

#include "common/plan/parameters.h"
#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;

Tensor EmptyRows(int64_t tokens, int64_t columns, int64_t spare, const Tensor& like) {
  const int64_t stride = plan::RowStride(columns, spare);
  return at::empty({tokens, stride}, like.options()).narrow(1, 0, columns);
}

Tensor Widened(const Tensor& rows, int64_t spare) {
  const int64_t columns = rows.size(1) + spare;
  if (rows.stride(0) < columns) {
    throw InternalError("an activation has no room for an adapter of rank " +
                        std::to_string(spare));
  }
  return rows.as_strided({rows.size(0), columns}, {rows.stride(0), 1});
}

Tensor SpareColumns(const Tensor& rows, int64_t spare) {
  return Widened(rows, spare).narrow(1, rows.size(1), spare);
}

Tensor ApartFrom(const Tensor& rows, const Tensor& part) {
  const bool shares = part.defined() && rows.defined() && part.is_alias_of(rows);
  return shares ? part.clone() : part;
}

void AddRows(Tensor& table, const Tensor& rows, const Tensor& values) {
  if (table.is_cpu()) {
    table.index_add_(0, rows, values.to(at::kFloat));
  } else {
    table.index_put_({rows}, values.to(at::kFloat), /*accumulate=*/true);  // sorts: repeatable
  }
}

Tensor Sigmoids(const Tensor& x) {
  if (!x.is_cpu()) return at::sigmoid(x);
  Tensor sigmoids = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  float* to = sigmoids.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = 1.0F / (1.0F + std::exp(-from[i]));
  });
  return sigmoids;
}

double RoundedTo(double value, at::ScalarType type) {
  return at::scalar_tensor(value, at::TensorOptions().dtype(type)).item<double>();
}

}  // namespace sft::engine
