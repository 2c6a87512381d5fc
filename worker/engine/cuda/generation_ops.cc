#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "worker/engine/cuda/kernels/paged_attention.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cuda {

using at::Tensor;

namespace {

// Rows of one product. Products of one shape, in memory of one alignment, are made by one kernel,
// in which all rows are summed alike.
constexpr int64_t kProductRows = 64;

}  // namespace

void RowProduct(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                double alpha) {
  CheckRowProduct(out, a, weight, addend);
  for (int64_t first = 0; first < a.size(0); first += kProductRows) {
    const int64_t count = std::min(kProductRows, a.size(0) - first);
    Tensor rows = at::zeros({kProductRows, a.size(1)}, a.options());
    rows.narrow(0, 0, count).copy_(a.narrow(0, first, count));
    Tensor products = addend.defined() ? at::zeros({kProductRows, weight.size(0)}, out.options())
                                       : at::empty({kProductRows, weight.size(0)}, out.options());
    if (addend.defined()) products.narrow(0, 0, count).copy_(addend.narrow(0, first, count));
    Gemm(products, rows, weight.t(), alpha, addend.defined() ? 1.0 : 0.0);
    out.narrow(0, first, count).copy_(products.narrow(0, 0, count));
  }
}

void PagedAttention(Tensor& out, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                    const Tensor& tables, const Tensor& places, double scale, int64_t window) {
  CheckPagedAttention(out, q, k_pages, v_pages, tables, places);
  TORCH_CHECK(q.size(2) <= kMostPagedHead, "PagedAttention: heads of ", q.size(2), " are over ",
              kMostPagedHead);
  if (q.numel() == 0) return;
  const PagedShape shape{.tokens = q.size(0),
                         .heads = static_cast<int32_t>(q.size(1)),
                         .kv_heads = static_cast<int32_t>(k_pages.size(2)),
                         .size = static_cast<int32_t>(q.size(2)),
                         .page = static_cast<int32_t>(k_pages.size(1)),
                         .table_width = tables.size(1),
                         .window = window,
                         .scale = static_cast<float>(scale)};
  const LaunchScope scope(q);
  C10_CUDA_CHECK(
      LaunchPagedAttention(TypeOf(q, "PagedAttention"), shape, Read(q), k_pages.const_data_ptr(),
                           v_pages.const_data_ptr(), tables.const_data_ptr<int32_t>(),
                           places.const_data_ptr<int64_t>(), Write(out), scope.stream()));
}

}  // namespace sft::engine::cuda
