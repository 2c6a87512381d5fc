// The causal convolution of pieces of documents, for generation: a thread walks down the rows of a
// piece, from the three rows that its state has of the document to those that it leaves there.
#include "worker/engine/cuda/kernels/short_conv.cuh"

namespace sft::engine::cuda {
namespace {

using namespace short_conv;

constexpr int kBefore = kTaps - 1;

template <typename T>
struct NextArguments {
  int64_t width;
  PieceList pieces;
  const T* x;
  int64_t x_stride;
  T* before;
  T* out;
  int64_t out_stride;
  bool weight_is_wide;  // the taps of a column allow one access
};

template <typename T, int N>
__device__ void StoreZeros(const NextArguments<T>& a, int64_t column, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    StorePacked(a.out + row * a.out_stride + column, Packed<T, N>(), true);
  }
}

template <typename T, typename W, int N>
__global__ void __launch_bounds__(kThreads)
    ShortConvNextKernel(const __grid_constant__ NextArguments<T> a, const W* __restrict__ weight) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (column >= a.width) return;
  const int64_t state = a.pieces.states[blockIdx.y];
  const int64_t first = a.pieces.first[blockIdx.y], last = first + a.pieces.rows[blockIdx.y];
  if (state < 0) return StoreZeros<T, N>(a, column, first, last);
  const Taps<N> taps(weight, column, a.weight_is_wide);
  const T* __restrict__ x = a.x + column;
  T* out = a.out + column;
  T* kept = a.before + state * kBefore * a.width + column;
  Before<N> before;
#pragma unroll
  for (int back = 0; back < kBefore; ++back) {
    LoadRow(kept + (kBefore - 1 - back) * a.width, before.at[back]);
  }
  for (int64_t group = first; group < last; group += kAhead) {
    Packed<T, N> ahead[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (group + j < last) ahead[j] = LoadPacked<T, N>(x + (group + j) * a.x_stride, true);
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t row = group + j;
      if (row >= last) break;
      float now[N], results[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        now[i] = ahead[j][i];
        const float sum = Convolved(taps, before, now[i], i);
        results[i] = sum * Sigmoid(sum);
      }
      StorePacked(out + row * a.out_stride, Packed<T, N>(results), true);
      before.Push(now);
    }
  }
#pragma unroll
  for (int back = 0; back < kBefore; ++back) {
    StorePacked(kept + (kBefore - 1 - back) * a.width, Packed<T, N>(before.at[back]), true);
  }
}

template <typename T>
cudaError_t Run(RowsShape shape, PieceList pieces, ConstRows x, ElementType weight_type,
                const void* weight, void* before, MutableRows out, cudaStream_t stream) {
  const NextArguments<T> a{.width = shape.width,
                           .pieces = pieces,
                           .x = static_cast<const T*>(x.data),
                           .x_stride = x.stride,
                           .before = static_cast<T*>(before),
                           .out = static_cast<T*>(out.data),
                           .out_stride = out.stride,
                           .weight_is_wide = IsAligned<uint4>(weight)};
  const bool wide = a.width % kWide<T> == 0 && RowsAreWide<T>(a.x, a.x_stride) &&
                    RowsAreWide<T>(a.out, a.out_stride) && IsAligned<uint4>(before);
  ChooseConv<T>(wide, weight_type, [&](auto columns, auto element) {
    using W = decltype(element);
    constexpr int N = decltype(columns)::value;
    const dim3 blocks(static_cast<unsigned>(CeilDiv(a.width, kThreads * N)),
                      static_cast<unsigned>(pieces.pieces));
    ShortConvNextKernel<T, W, N><<<blocks, kThreads, 0, stream>>>(a, static_cast<const W*>(weight));
  });
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchShortConvNext(ElementType type, RowsShape shape, PieceList pieces, ConstRows x,
                                ElementType weight_type, const void* weight, void* before,
                                MutableRows out, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Run<float> : Run<__nv_bfloat16>;
  return run(shape, pieces, x, weight_type, weight, before, out, stream);
}

}  // namespace sft::engine::cuda
