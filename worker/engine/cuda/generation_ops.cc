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

// One tile of a product: all its rows, in the same memory whatever the tile. Products of one shape,
// in memory of one alignment, are made by one kernel, in which all rows are summed alike.
void TileProduct(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                 double alpha) {
  if (!addend.defined() || addend.is_alias_of(out)) {
    Gemm(out, a, weight.t(), alpha, addend.defined() ? 1.0 : 0.0);
  } else if (alpha == 1.0) {
    GemmAdd(out, a, weight.t(), addend, {});
  } else {
    out.copy_(addend);
    Gemm(out, a, weight.t(), alpha, 1.0);
  }
}

Tensor WithZeros(const Tensor& rows, int64_t count) {
  Tensor all = at::zeros({count, rows.size(1)}, rows.options());
  all.narrow(0, 0, rows.size(0)).copy_(rows);
  return all;
}

}  // namespace

void RowProduct(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                double alpha, int64_t tile) {
  CheckRowProduct(out, a, weight, addend);
  TORCH_CHECK(tile > 0, "RowProduct: tiles of ", tile, " rows");
  for (int64_t first = 0; first < a.size(0); first += tile) {
    const int64_t count = std::min(tile, a.size(0) - first);
    const Tensor rows = a.narrow(0, first, count);
    Tensor results = out.narrow(0, first, count);
    const Tensor added = addend.defined() ? addend.narrow(0, first, count) : Tensor();
    if (count == tile) {
      TileProduct(results, rows, weight, added, alpha);
      continue;
    }
    Tensor all = at::empty({tile, weight.size(0)}, out.options());
    TileProduct(all, WithZeros(rows, tile), weight,
                added.defined() ? WithZeros(added, tile) : Tensor(), alpha);
    results.copy_(all.narrow(0, 0, count));
  }
}

namespace {

bool IsAligned(const Tensor& heads) {
  return reinterpret_cast<uintptr_t>(heads.const_data_ptr()) % 16 == 0 &&
         heads.stride(0) * heads.element_size() % 16 == 0;
}

}  // namespace

void PagedAttention(Tensor& out, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                    const Tensor& tables, const Tensor& places, double scale, int64_t window,
                    bool pieces) {
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
  const bool fast = q.scalar_type() == at::kBFloat16 && IsAligned(q) && IsAligned(out);
  if (fast && pieces && HasPagedPrefill(shape)) {
    C10_CUDA_CHECK(LaunchPagedPrefill(shape, Read(q), k_pages.const_data_ptr(),
                                      v_pages.const_data_ptr(), tables.const_data_ptr<int32_t>(),
                                      places.const_data_ptr<int64_t>(), Write(out),
                                      scope.stream()));
    return;
  }
  if (const int64_t floats = fast && !pieces ? PagedDecodeScratch(shape) : 0; floats > 0) {
    Tensor scratch = at::empty({floats}, q.options().dtype(at::kFloat));
    C10_CUDA_CHECK(
        LaunchPagedDecode(shape, Read(q), k_pages.const_data_ptr(), v_pages.const_data_ptr(),
                          tables.const_data_ptr<int32_t>(), places.const_data_ptr<int64_t>(),
                          scratch.mutable_data_ptr<float>(), Write(out), scope.stream()));
    return;
  }
  C10_CUDA_CHECK(
      LaunchPagedAttention(TypeOf(q, "PagedAttention"), shape, Read(q), k_pages.const_data_ptr(),
                           v_pages.const_data_ptr(), tables.const_data_ptr<int32_t>(),
                           places.const_data_ptr<int64_t>(), Write(out), scope.stream()));
}

}  // namespace sft::engine::cuda
