#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/delta_checks.h"
#include "worker/engine/kernels/row_kernels.h"

// A few columns at a time through all documents: sums over tokens have one order, whatever the
// threads.

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int64_t kTaps = kShortConvWidth;
constexpr int64_t kColumns = 64;  // of one task

// Dense rows that start every `stride` elements.
template <typename T>
struct ConvRows {
  T* data = nullptr;
  int64_t stride = 0;
  SFT_INLINE T* at(int64_t row, int64_t column) const { return data + row * stride + column; }
};

template <typename T>
struct ConvArguments {
  ConvRows<const T> x, dy;  // dy: of the backward
  ConvRows<T> out;          // of the backward: dx
  const float* weight;      // [C, kTaps]
  at::IntArrayRef lengths;
  float* dweight = nullptr;  // [C, kTaps]; null: not wanted
};

// The weights of a task's columns, those of one tap side by side.
struct Taps {
  SFT_INLINE Taps(const float* weight, int64_t first, int64_t count) {
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t m = 0; m < kTaps; ++m) at[m][c] = weight[(first + c) * kTaps + m];
    }
  }
  float at[kTaps][kColumns];
};

// sums[c] = the convolution of column first + c at `row`; the document starts at row `start`.
template <typename T>
SFT_INLINE void Convolve(const ConvRows<const T>& x, const Taps& taps, int64_t start, int64_t row,
                         int64_t first, int64_t count, float* sums) {
  for (int64_t c = 0; c < count; ++c) sums[c] = 0.0f;
  for (int64_t m = std::max<int64_t>(0, kTaps - 1 - (row - start)); m < kTaps; ++m) {
    const T* from = x.at(row - (kTaps - 1) + m, first);
    for (int64_t c = 0; c < count; ++c) sums[c] += taps.at[m][c] * static_cast<float>(from[c]);
  }
}

template <typename T>
SFT_INLINE void ForwardColumns(const ConvArguments<T>& a, int64_t first, int64_t count) {
  const Taps taps(a.weight, first, count);
  float sums[kColumns];
  int64_t start = 0;
  for (int64_t length : a.lengths) {
    for (int64_t row = start; row < start + length; ++row) {
      Convolve(a.x, taps, start, row, first, count, sums);
      T* to = a.out.at(row, first);
      for (int64_t c = 0; c < count; ++c) {
        to[c] = static_cast<T>(sums[c] / (1.0f + std::exp(-sums[c])));
      }
    }
    start += length;
  }
}

// Turns `sums`, the convolution at a row, into its gradient.
template <typename T>
SFT_INLINE void ThroughSilu(const T* dy, int64_t count, float* sums) {
  for (int64_t c = 0; c < count; ++c) {
    const float share = 1.0f / (1.0f + std::exp(-sums[c]));
    sums[c] = static_cast<float>(dy[c]) * share * (1.0f + sums[c] * (1.0f - share));
  }
}

template <typename T>
SFT_INLINE void BackwardColumns(const ConvArguments<T>& a, int64_t first, int64_t count) {
  const Taps taps(a.weight, first, count);
  float dweight[kTaps][kColumns] = {};
  float ring[kTaps][kColumns];  // gradients of the convolution at the last rows
  int64_t start = 0;
  for (int64_t length : a.lengths) {
    for (auto& gradients : ring) std::fill_n(gradients, kColumns, 0.0f);
    const int64_t end = start + length;
    for (int64_t row = start; row < end + kTaps - 1; ++row) {
      float* d = ring[row % kTaps];
      if (row < end) {
        Convolve(a.x, taps, start, row, first, count, d);
        ThroughSilu(a.dy.at(row, first), count, d);
        for (int64_t m = std::max<int64_t>(0, kTaps - 1 - (row - start)); m < kTaps; ++m) {
          const T* from = a.x.at(row - (kTaps - 1) + m, first);
          for (int64_t c = 0; c < count; ++c) dweight[m][c] += d[c] * static_cast<float>(from[c]);
        }
      } else {
        std::fill_n(d, kColumns, 0.0f);
      }
      // All that read row - 3 are in the ring now.
      if (row - start < kTaps - 1) continue;
      float sums[kColumns] = {};
      for (int64_t m = 0; m < kTaps; ++m) {
        const float* later = ring[(row - m) % kTaps];
        for (int64_t c = 0; c < count; ++c) sums[c] += taps.at[m][c] * later[c];
      }
      T* to = a.out.at(row - (kTaps - 1), first);
      for (int64_t c = 0; c < count; ++c) to[c] = static_cast<T>(sums[c]);
    }
    start = end;
  }
  if (a.dweight == nullptr) return;
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t m = 0; m < kTaps; ++m) a.dweight[(first + c) * kTaps + m] = dweight[m][c];
  }
}

// target_clones does not apply to templates: one overload a type.
SFT_SIMD_CLONES void ConvForward(const ConvArguments<float>& a, int64_t first, int64_t count) {
  ForwardColumns(a, first, count);
}
SFT_SIMD_CLONES void ConvForward(const ConvArguments<BFloat16>& a, int64_t first, int64_t count) {
  ForwardColumns(a, first, count);
}
SFT_SIMD_CLONES void ConvBackward(const ConvArguments<float>& a, int64_t first, int64_t count) {
  BackwardColumns(a, first, count);
}
SFT_SIMD_CLONES void ConvBackward(const ConvArguments<BFloat16>& a, int64_t first, int64_t count) {
  BackwardColumns(a, first, count);
}

// Calls run(first, count) for all columns.
template <typename Run>
void ForColumns(int64_t columns, const Run& run) {
  at::parallel_for(0, (columns + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      run(i * kColumns, std::min(kColumns, columns - i * kColumns));
    }
  });
}

template <typename T>
ConvArguments<T> ArgumentsOf(Tensor& out, const Tensor& x, const Tensor& weight,
                             const ops::Documents& documents) {
  return {.x = {x.const_data_ptr<T>(), x.stride(0)},
          .dy = {},
          .out = {out.mutable_data_ptr<T>(), out.stride(0)},
          .weight = weight.const_data_ptr<float>(),
          .lengths = documents.lengths};
}

template <typename T>
void ForwardAs(Tensor& out, const Tensor& x, const Tensor& weight,
               const ops::Documents& documents) {
  const ConvArguments<T> a = ArgumentsOf<T>(out, x, weight, documents);
  ForColumns(x.size(1), [&](int64_t first, int64_t count) { ConvForward(a, first, count); });
}

template <typename T>
void BackwardAs(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                const ops::Documents& documents, Tensor& dweight) {
  ConvArguments<T> a = ArgumentsOf<T>(dx, x, weight, documents);
  a.dy = {dy.const_data_ptr<T>(), dy.stride(0)};
  if (dweight.numel() > 0) a.dweight = dweight.mutable_data_ptr<float>();
  ForColumns(x.size(1), [&](int64_t first, int64_t count) { ConvBackward(a, first, count); });
}

}  // namespace

void ShortConv(Tensor& out, const Tensor& x, const Tensor& weight,
               const ops::Documents& documents) {
  CheckShortConv(x, weight, documents, "ShortConv");
  CheckRows(out, x.size(0), x.size(1), x, "ShortConv: out");
  const auto run = x.scalar_type() == at::kFloat ? ForwardAs<float> : ForwardAs<BFloat16>;
  run(out, x, weight.to(at::kFloat), documents);
}

Tensor ShortConvBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const ops::Documents& documents, bool need_weight_grad) {
  CheckShortConv(x, weight, documents, "ShortConvBackward");
  CheckRows(dx, x.size(0), x.size(1), x, "ShortConvBackward: dx");
  CheckRows(dy, x.size(0), x.size(1), x, "ShortConvBackward: dy");
  Tensor dweight =
      at::empty({need_weight_grad ? x.size(1) : 0, kTaps}, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? BackwardAs<float> : BackwardAs<BFloat16>;
  run(dx, dy, x, weight.to(at::kFloat), documents, dweight);
  return dweight;
}

}  // namespace sft::engine::cpu
