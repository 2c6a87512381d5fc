#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/row_kernels.h"
#include "worker/engine/kernels/rows.h"

// Operations of generation whose rows do not depend on their neighbours: every sum has one order,
// however many rows there are and whichever thread takes them.

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

// kLanes partial sums; the compiler cuts them into the registers that there are.
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

constexpr int kTileRows = 4;
constexpr int64_t kColumns = 32;  // of one piece of work: their weights stay in the cache

SFT_INLINE void LoadLanes(const float* x, Lanes* lanes) { std::memcpy(lanes, x, sizeof(*lanes)); }
SFT_INLINE void LoadLanes(const BFloat16* x, Lanes* lanes) {
  for (int lane = 0; lane < kLanes; ++lane) (*lanes)[lane] = static_cast<float>(x[lane]);
}

struct ProductShape {
  int64_t rows, inner;
  int64_t a_stride, weight_stride, out_stride, addend_stride;
  float alpha;
};

// Columns [begin, end) of kRows rows.
template <int kRows, typename T, typename Out>
SFT_INLINE void ProductTile(const T* a, const T* weight, const Out* addend, Out* out,
                            const ProductShape& shape, int64_t begin, int64_t end) {
  const int64_t whole = shape.inner / kLanes * kLanes;
  for (int64_t column = begin; column < end; ++column) {
    const T* w = weight + column * shape.weight_stride;
    Lanes sums[kRows] = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      Lanes factors, x;
      LoadLanes(w + i, &factors);
      for (int row = 0; row < kRows; ++row) {
        LoadLanes(a + row * shape.a_stride + i, &x);
        sums[row] += x * factors;
      }
    }
    for (int row = 0; row < kRows; ++row) {
      float lanes[kLanes];
      std::memcpy(lanes, &sums[row], sizeof(lanes));
      for (int64_t i = whole; i < shape.inner; ++i) {
        lanes[i - whole] +=
            static_cast<float>(a[row * shape.a_stride + i]) * static_cast<float>(w[i]);
      }
      float sum = 0.0f;
      for (const float lane : lanes) sum += lane;
      sum *= shape.alpha;
      if (addend != nullptr) {
        sum += static_cast<float>(addend[row * shape.addend_stride + column]);
      }
      out[row * shape.out_stride + column] = static_cast<Out>(sum);
    }
  }
}

template <typename T, typename Out>
SFT_INLINE void ProductColumns(const T* a, const T* weight, const Out* addend, Out* out,
                               const ProductShape& shape, int64_t begin, int64_t end) {
  int64_t row = 0;
  const auto next = [&](int64_t count) {
    a += count * shape.a_stride;
    out += count * shape.out_stride;
    if (addend != nullptr) addend += count * shape.addend_stride;
    row += count;
  };
  while (row + kTileRows <= shape.rows) {
    ProductTile<kTileRows>(a, weight, addend, out, shape, begin, end);
    next(kTileRows);
  }
  while (row < shape.rows) {
    ProductTile<1>(a, weight, addend, out, shape, begin, end);
    next(1);
  }
}

SFT_SIMD_CLONES void Columns(const float* a, const float* weight, const float* addend, float* out,
                             const ProductShape& shape, int64_t begin, int64_t end) {
  ProductColumns(a, weight, addend, out, shape, begin, end);
}
SFT_SIMD_CLONES void Columns(const BFloat16* a, const BFloat16* weight, const BFloat16* addend,
                             BFloat16* out, const ProductShape& shape, int64_t begin, int64_t end) {
  ProductColumns(a, weight, addend, out, shape, begin, end);
}
SFT_SIMD_CLONES void Columns(const BFloat16* a, const BFloat16* weight, const float* addend,
                             float* out, const ProductShape& shape, int64_t begin, int64_t end) {
  ProductColumns(a, weight, addend, out, shape, begin, end);
}

template <typename T, typename Out>
void RowProductAs(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                  const ProductShape& shape) {
  const T* rows = a.const_data_ptr<T>();
  const T* factors = weight.const_data_ptr<T>();
  const Out* added = addend.defined() ? addend.const_data_ptr<Out>() : nullptr;
  Out* results = out.mutable_data_ptr<Out>();
  const int64_t columns = weight.size(0), pieces = (columns + kColumns - 1) / kColumns;
  const int64_t work = std::max<int64_t>(1, shape.rows * shape.inner * kColumns);
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 17) / work);
  at::parallel_for(0, pieces, grain, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      Columns(rows, factors, added, results, shape, piece * kColumns,
              std::min(columns, (piece + 1) * kColumns));
    }
  });
}

struct PagesShape {
  int64_t heads, kv_heads, size, page;
  float scale;
};

// The keys (or values) of one key head of a request: those of position p start at
// pages + (table[p / page] * page + p % page) * kv_heads * size.
template <typename T>
struct HeadPages {
  const T* pages;
  const int32_t* table;

  SFT_INLINE const T* At(int64_t position, const PagesShape& shape) const {
    const int64_t page = table[position / shape.page];
    return pages + (page * shape.page + position % shape.page) * shape.kv_heads * shape.size;
  }
};

// One query head over the keys of positions [first, last], and its sink, -infinity where it has
// none; `scores` and `sums` are scratch.
template <typename T>
SFT_INLINE void AttendHead(const T* q, const HeadPages<T>& keys, const HeadPages<T>& values,
                           const PagesShape& shape, int64_t first, int64_t last, float sink,
                           float* scores, float* sums, T* out) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t position = first; position <= last; ++position) {
    const T* key = keys.At(position, shape);
    const float score = shape.scale * LaneSum(shape.size, [=](int64_t i) {
                          return static_cast<float>(q[i]) * static_cast<float>(key[i]);
                        });
    scores[position - first] = score;
    largest = std::max(largest, score);
  }
  float total = 0.0f;
  std::fill_n(sums, shape.size, 0.0f);
  for (int64_t position = first; position <= last; ++position) {
    const float weight = std::exp(scores[position - first] - largest);
    const T* value = values.At(position, shape);
    total += weight;
    for (int64_t i = 0; i < shape.size; ++i) sums[i] += weight * static_cast<float>(value[i]);
  }
  total += std::exp(sink - largest);
  for (int64_t i = 0; i < shape.size; ++i) out[i] = static_cast<T>(sums[i] / total);
}

SFT_SIMD_CLONES void Attend(const float* q, const HeadPages<float>& keys,
                            const HeadPages<float>& values, const PagesShape& shape, int64_t first,
                            int64_t last, float sink, float* scores, float* sums, float* out) {
  AttendHead(q, keys, values, shape, first, last, sink, scores, sums, out);
}
SFT_SIMD_CLONES void Attend(const BFloat16* q, const HeadPages<BFloat16>& keys,
                            const HeadPages<BFloat16>& values, const PagesShape& shape,
                            int64_t first, int64_t last, float sink, float* scores, float* sums,
                            BFloat16* out) {
  AttendHead(q, keys, values, shape, first, last, sink, scores, sums, out);
}

template <typename T>
void PagedAttentionAs(Tensor& out, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                      const Tensor& tables, const Tensor& places, const PagesShape& shape,
                      int64_t window, const Tensor& sinks) {
  const float* sink = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr;
  const int64_t group = shape.heads / shape.kv_heads;
  const auto* place = places.const_data_ptr<int64_t>();
  const auto* table = tables.const_data_ptr<int32_t>();
  const T* keys = k_pages.const_data_ptr<T>();
  const T* values = v_pages.const_data_ptr<T>();
  const T* queries = q.const_data_ptr<T>();
  T* results = out.mutable_data_ptr<T>();
  at::parallel_for(0, q.size(0) * shape.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(static_cast<size_t>(tables.size(1) * shape.page));
    std::vector<float> sums(static_cast<size_t>(shape.size));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t token = task / shape.heads, head = task % shape.heads;
      const int64_t last = place[2 * token + 1];
      if (last < 0) {
        std::fill_n(results + token * out.stride(0) + head * shape.size, shape.size, T(0.0f));
        continue;
      }
      const int64_t first = window > 0 ? std::max<int64_t>(0, last + 1 - window) : 0;
      const int32_t* pages = table + place[2 * token] * tables.size(1);
      const int64_t offset = head / group * shape.size;
      Attend(queries + token * q.stride(0) + head * shape.size, {keys + offset, pages},
             {values + offset, pages}, shape, first, last,
             sink != nullptr ? sink[head] : -std::numeric_limits<float>::infinity(), scores.data(),
             sums.data(), results + token * out.stride(0) + head * shape.size);
    }
  });
}

}  // namespace

void RowProduct(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                double alpha, int64_t /*tile*/) {
  CheckRowProduct(out, a, weight, addend);
  const ProductShape shape{.rows = a.size(0),
                           .inner = a.size(1),
                           .a_stride = a.stride(0),
                           .weight_stride = weight.stride(0),
                           .out_stride = out.stride(0),
                           .addend_stride = addend.defined() ? addend.stride(0) : 0,
                           .alpha = static_cast<float>(alpha)};
  if (a.scalar_type() == at::kFloat) {
    RowProductAs<float, float>(out, a, weight, addend, shape);
  } else if (out.scalar_type() == at::kFloat) {
    RowProductAs<BFloat16, float>(out, a, weight, addend, shape);
  } else {
    RowProductAs<BFloat16, BFloat16>(out, a, weight, addend, shape);
  }
}

ops::Nf4Codes Nf4Prepack(const Tensor& codes, const Tensor& absmax) { return {codes, absmax}; }

void Nf4RowProduct(Tensor& out, const Tensor& a, const Tensor& codes, const Tensor& absmax,
                   const Tensor& addend, int64_t tile) {
  CheckNf4Rows(out, a, codes, absmax, out.size(1));
  Tensor weight = at::empty({codes.size(0), a.size(1)}, a.options());
  Nf4Dequantize(weight, codes.view({-1}), absmax.view({-1}));
  RowProduct(out, a, weight, addend, 1.0, tile);
}

void WritePages(Tensor& k_pages, Tensor& v_pages, const Tensor& slots, const Tensor& keys,
                const Tensor& values) {
  k_pages.flatten(0, 1).index_copy_(0, slots, keys);
  v_pages.flatten(0, 1).index_copy_(0, slots, values);
}

void PagedAttention(Tensor& out, const Tensor& q, const Tensor& k_pages, const Tensor& v_pages,
                    const Tensor& tables, const Tensor& places, double scale, int64_t window,
                    bool /*pieces*/, const Tensor& sinks) {
  CheckPagedAttention(out, q, k_pages, v_pages, tables, places, sinks);
  const PagesShape shape{.heads = q.size(1),
                         .kv_heads = k_pages.size(2),
                         .size = q.size(2),
                         .page = k_pages.size(1),
                         .scale = static_cast<float>(scale)};
  if (q.scalar_type() == at::kFloat) {
    PagedAttentionAs<float>(out, q, k_pages, v_pages, tables, places, shape, window, sinks);
  } else {
    PagedAttentionAs<BFloat16>(out, q, k_pages, v_pages, tables, places, shape, window, sinks);
  }
}

}  // namespace sft::engine::cpu
