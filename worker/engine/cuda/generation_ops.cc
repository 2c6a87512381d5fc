#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>

#include "worker/engine/cuda/kernels/paged_attention.h"
#include "worker/engine/cuda/kernels/row_product.h"
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

// As RowProduct, by cuBLAS.
void TileProducts(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                  double alpha, int64_t tile) {
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

// `rows` start at multiples of 16 bytes.
bool IsAligned(const Tensor& rows) {
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0 &&
         rows.stride(0) * rows.element_size() % 16 == 0;
}

// Makes a product by our own kernels, a launch for each tile: of rows [first, first + count).
void LaunchTiles(int64_t rows, int64_t tile,
                 const std::function<cudaError_t(int64_t first, int64_t count)>& launch) {
  for (int64_t first = 0; first < rows; first += tile) {
    C10_CUDA_CHECK(launch(first, std::min(tile, rows - first)));
  }
}

ConstRows ReadFrom(const Tensor& rows, int64_t first) {
  return rows.defined() ? Read(rows.narrow(0, first, rows.size(0) - first)) : ConstRows();
}

// Elements of a weight that is not worth dividing over cuBLAS's kernels: an adapter's.
constexpr int64_t kSmallWeight = int64_t{2} << 20;

bool IsSmallProduct(const Tensor& out, const Tensor& a, const Tensor& weight, int64_t tile) {
  return tile <= kMostProductRows && weight.numel() <= kSmallWeight &&
         a.scalar_type() == at::kBFloat16 && out.scalar_type() == at::kBFloat16 &&
         HasRowProduct(a.size(1)) && IsAligned(a) && IsAligned(weight);
}

// Outputs with those that fill the last tile of NF4.
int64_t InTiles(int64_t outputs) { return Nf4TilesOf(outputs) * kNf4TileOutputs; }

// The rows of a weight with zeros behind them up to whole tiles.
Tensor WholeTiles(const Tensor& rows) {
  const int64_t count = InTiles(rows.size(0));
  return count == rows.size(0) ? rows : WithZeros(rows, count);
}

}  // namespace

void RowProduct(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                double alpha, int64_t tile) {
  CheckRowProduct(out, a, weight, addend);
  TORCH_CHECK(tile > 0, "RowProduct: tiles of ", tile, " rows");
  if (out.numel() == 0) return;
  if (IsSmallProduct(out, a, weight, tile)) {
    const LaunchScope scope(a);
    LaunchTiles(a.size(0), tile, [&](int64_t first, int64_t count) {
      const RowProductShape shape{count, weight.size(0), a.size(1), static_cast<float>(alpha)};
      Tensor results = out.narrow(0, first, count);
      return LaunchRowProduct(shape, ReadFrom(a, first), Read(weight), ReadFrom(addend, first),
                              Write(results), scope.stream());
    });
    return;
  }
  TileProducts(out, a, weight, addend, alpha, tile);
}

ops::Nf4Codes Nf4Prepack(const Tensor& codes, const Tensor& absmax) {
  const int64_t inputs = codes.size(1) * 2, steps = inputs / kNf4TileInputs;
  if (!HasNf4RowProduct(inputs)) return {codes, absmax};
  const Tensor bytes = WholeTiles(codes), scales = WholeTiles(absmax);
  const int64_t tiles = bytes.size(0) / kNf4TileOutputs;
  // [tile, half, output, step, block, quarter, byte] and [tile, half, output, step, block]
  return {
      bytes.view({tiles, 2, 8, steps, 2, 4, 8})
          .permute({0, 3, 1, 2, 5, 4, 6})
          .contiguous()
          .view_as(bytes),
      scales.view({tiles, 2, 8, steps, 2}).permute({0, 3, 2, 1, 4}).contiguous().view_as(scales)};
}

void Nf4RowProduct(Tensor& out, const Tensor& a, const Tensor& codes, const Tensor& absmax,
                   const Tensor& addend, int64_t tile) {
  const bool tiles = HasNf4RowProduct(a.size(1));
  CheckNf4Rows(out, a, codes, absmax, tiles ? InTiles(out.size(1)) : out.size(1));
  if (out.numel() == 0) return;
  if (tiles && tile <= kMostProductRows && a.scalar_type() == at::kBFloat16 &&
      out.scalar_type() == at::kBFloat16 && IsAligned(a)) {
    const LaunchScope scope(a);
    LaunchTiles(a.size(0), tile, [&](int64_t first, int64_t count) {
      const RowProductShape shape{count, out.size(1), a.size(1)};
      Tensor results = out.narrow(0, first, count);
      return LaunchNf4RowProduct(shape, ReadFrom(a, first), codes.const_data_ptr<uint8_t>(),
                                 absmax.const_data_ptr<float>(), ReadFrom(addend, first),
                                 Write(results), scope.stream());
    });
    return;
  }
  Tensor weight = at::empty({out.size(1), a.size(1)}, a.options());
  if (tiles) {
    const LaunchScope scope(a);
    C10_CUDA_CHECK(LaunchNf4TilesDequantize(
        TypeOf(a, "Nf4RowProduct"), weight.size(0), weight.size(1), codes.const_data_ptr<uint8_t>(),
        absmax.const_data_ptr<float>(), weight.mutable_data_ptr(), scope.stream()));
  } else {
    Nf4Dequantize(weight, codes.view({-1}), absmax.view({-1}));
  }
  // Not by a kernel that starts to load its weight before the one that writes it has ended.
  TileProducts(out, a, weight, addend, 1.0, tile);
}

void WritePages(Tensor& k_pages, Tensor& v_pages, const Tensor& slots, const Tensor& keys,
                const Tensor& values) {
  CheckHeads(keys, slots.size(0), k_pages.size(3), k_pages, "WritePages: keys");
  CheckHeads(values, slots.size(0), v_pages.size(3), v_pages, "WritePages: values");
  TORCH_CHECK(keys.size(1) == k_pages.size(2) && values.size(1) == v_pages.size(2) &&
                  k_pages.is_contiguous() && v_pages.is_contiguous() && slots.is_contiguous() &&
                  slots.scalar_type() == at::kLong,
              "WritePages: heads ", keys.sizes(), " for pages ", k_pages.sizes());
  if (keys.numel() == 0) return;
  const LaunchScope scope(keys);
  C10_CUDA_CHECK(LaunchWritePages(TypeOf(keys, "WritePages"), keys.size(0),
                                  keys.size(1) * keys.size(2), slots.const_data_ptr<int64_t>(),
                                  Read(keys), Read(values), k_pages.mutable_data_ptr(),
                                  v_pages.mutable_data_ptr(), scope.stream()));
}

void PagedAttention(Tensor& out, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                    const Tensor& tables, const Tensor& places, double scale, int64_t window,
                    bool pieces, const Tensor& sinks) {
  CheckPagedAttention(out, q, k_pages, v_pages, tables, places, sinks);
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
                         .scale = static_cast<float>(scale),
                         .sinks = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr};
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
