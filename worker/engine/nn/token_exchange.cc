#include "worker/engine/nn/token_exchange.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;

namespace {

// The rows with all that lies between the beginning of one and of the next; a dense copy where that
// reaches behind their memory.
Tensor Dense(const Tensor& rows) {
  const int64_t stride = rows.stride(0), count = rows.size(0);
  const auto held = static_cast<int64_t>(rows.storage().nbytes() / rows.element_size());
  const bool fits = rows.stride(1) == 1 && stride >= rows.size(1) &&
                    rows.storage_offset() + count * stride <= held;
  return fits ? rows.as_strided({count, stride}, {stride, 1}) : rows.contiguous();
}

}  // namespace

Tensor TokenExchange::Gather(const Tensor& rows) const {
  const Tensor own = Dense(rows);
  const Tensor all = at::empty({own.size(0) * ranks(), own.size(1)}, own.options());
  group_.AllGather(all, own);
  return all.narrow(1, 0, rows.size(1));
}

Tensor TokenExchange::ScatterSum(const Tensor& rows) const {
  if (rows.size(0) % ranks() != 0) {
    throw InternalError("tokens that cannot be divided over the ranks that share matrices");
  }
  const Tensor all = Dense(rows);
  const Tensor own = at::empty({all.size(0) / ranks(), all.size(1)}, all.options());
  group_.ReduceScatterSum(own, all, std::vector<int64_t>(ranks(), own.numel()));
  return own.narrow(1, 0, rows.size(1));
}

}  // namespace sft::engine
