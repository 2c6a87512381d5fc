// The causal convolution of linear attention. A thread has some neighbouring columns and walks down
// a strip of tokens with what the last three added in registers, so that each input is read once,
// but for the three tokens beside a strip.
#include "worker/engine/cuda/kernels/documents.cuh"
#include "worker/engine/cuda/kernels/short_conv.cuh"

namespace sft::engine::cuda {
namespace {

using namespace short_conv;

constexpr int kStrip = 64;  // tokens

template <typename T>
struct ConvArguments {
  RowsShape shape;
  DocumentList documents;
  const T* x;
  int64_t x_stride;
  const T* dy;
  int64_t dy_stride;
  T* out;  // of the backward: dx
  int64_t out_stride;
  float* partials;
  bool weight_is_wide;  // the taps of a column allow one access
};

// The window of the token `row`, whose document starts at `start`.
template <typename T, int N>
__device__ __forceinline__ void LoadBefore(Before<N>& before, const T* x, int64_t stride,
                                           int64_t row, int64_t start) {
#pragma unroll
  for (int back = 1; back < kTaps; ++back) {
    if (row - back >= start) LoadRow(x + (row - back) * stride, before.at[back - 1]);
  }
}

template <typename T, typename W, int N>
__global__ void __launch_bounds__(kThreads)
    ShortConvKernel(const __grid_constant__ ConvArguments<T> a, const W* __restrict__ weight) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (column >= a.shape.width) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kStrip;
  const int64_t last = min(first + kStrip, a.shape.rows);
  const Taps<N> taps(weight, column, a.weight_is_wide);
  const T* __restrict__ x = a.x + column;
  T* out = a.out + column;
  const int32_t* starts = a.documents.cu_seqlens;
  int32_t document = DocumentOf(starts, a.documents.documents, first);
  int64_t end = starts[document + 1];
  Before<N> before;
  LoadBefore(before, x, a.x_stride, first, starts[document]);
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
      if (row >= end) {
        before.Clear();
        do {
          end = starts[++document + 1];
        } while (row >= end);
      }
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
}

// d: gradients of the convolution at the last tokens.
template <typename T, int N>
__device__ __forceinline__ void StoreGradient(T* to, const Taps<N>& taps, const Before<N>& d,
                                              const float (&now)[N]) {
  float results[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float sum = taps.at[0][i] * now[i];
    sum = __fmaf_rn(taps.at[1][i], d.at[0][i], sum);
    sum = __fmaf_rn(taps.at[2][i], d.at[1][i], sum);
    results[i] = __fmaf_rn(taps.at[3][i], d.at[2][i], sum);
  }
  StorePacked(to, Packed<T, N>(results), true);
}

// The strip's dx need the three tokens behind it: they are walked over, too, but write nothing.
template <typename T, typename W, int N, bool kWeights>
__global__ void __launch_bounds__(kThreads)
    ShortConvBackwardKernel(const __grid_constant__ ConvArguments<T> a,
                            const W* __restrict__ weight) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (column >= a.shape.width) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kStrip;
  const int64_t last = min(first + kStrip, a.shape.rows);
  const Taps<N> taps(weight, column, a.weight_is_wide);
  const T* __restrict__ x = a.x + column;
  const T* __restrict__ dy = a.dy + column;
  T* dx = a.out + column;
  const int32_t* starts = a.documents.cu_seqlens;
  int32_t document = DocumentOf(starts, a.documents.documents, first);
  int64_t start = starts[document], end = starts[document + 1];
  float dweight[kWeights ? kTaps : 1][N] = {};
  Before<N> before, d;
  LoadBefore(before, x, a.x_stride, first, start);
  // Writes the gradient of the token three before `row`, `now` being that of the convolution there.
  const auto store = [&](int64_t row, const float(&now)[N]) {
    const int64_t to = row - (kTaps - 1);
    if (to >= first && to < last && to >= start) {
      StoreGradient(dx + to * a.out_stride, taps, d, now);
    }
    d.Push(now);
  };
  const auto store_rest = [&](int64_t row) {
    const float zeros[N] = {};
    for (int64_t behind = row; behind < row + kTaps - 1; ++behind) store(behind, zeros);
  };
  const int64_t stop = min(last + kTaps - 1, a.shape.rows);
  bool done = false;  // a document ended behind the strip
  for (int64_t group = first; group < stop && !done; group += kAhead) {
    Packed<T, N> xs[kAhead], dys[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (group + j < stop) {
        xs[j] = LoadPacked<T, N>(x + (group + j) * a.x_stride, true);
        dys[j] = LoadPacked<T, N>(dy + (group + j) * a.dy_stride, true);
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int64_t row = group + j;
      if (row >= stop) break;
      if (row >= end) {
        store_rest(row);
        done = row >= last;
        if (done) break;
        before.Clear();
        d.Clear();
        start = row;
        do {
          end = starts[++document + 1];
        } while (row >= end);
      }
      float now[N], gradient[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        now[i] = xs[j][i];
        const float sum = Convolved(taps, before, now[i], i);
        const float share = Sigmoid(sum);
        gradient[i] = dys[j][i] * share * (1.0f + sum * (1.0f - share));
      }
      if constexpr (kWeights) {
        if (row < last) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int m = 0; m < kTaps - 1; ++m) {
              dweight[m][i] = __fmaf_rn(gradient[i], before.at[kTaps - 2 - m][i], dweight[m][i]);
            }
            dweight[kTaps - 1][i] = __fmaf_rn(gradient[i], now[i], dweight[kTaps - 1][i]);
          }
        }
      }
      store(row, gradient);
      before.Push(now);
    }
  }
  if (!done && stop < last + kTaps - 1) store_rest(stop);
  if constexpr (kWeights) {
    float* to = a.partials + (static_cast<int64_t>(blockIdx.y) * a.shape.width + column) * kTaps;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int m = 0; m < kTaps; ++m) to[i * kTaps + m] = dweight[m][i];
    }
  }
}

dim3 ConvBlocks(RowsShape shape, int columns) {
  return {static_cast<unsigned>(CeilDiv(shape.width, kThreads * columns)),
          static_cast<unsigned>(CeilDiv(shape.rows, kStrip))};
}

template <typename T>
cudaError_t Forward(const ConvArguments<T>& arguments, bool wide, ElementType weight_type,
                    const void* weight, cudaStream_t stream) {
  ChooseConv<T>(wide, weight_type, [&](auto columns, auto element) {
    using W = decltype(element);
    constexpr int N = decltype(columns)::value;
    ShortConvKernel<T, W, N><<<ConvBlocks(arguments.shape, N), kThreads, 0, stream>>>(
        arguments, static_cast<const W*>(weight));
  });
  return cudaGetLastError();
}

template <typename T>
cudaError_t Backward(const ConvArguments<T>& arguments, bool wide, ElementType weight_type,
                     const void* weight, cudaStream_t stream) {
  ChooseConv<T>(wide, weight_type, [&](auto columns, auto element) {
    using W = decltype(element);
    constexpr int N = decltype(columns)::value;
    const auto kernel = arguments.partials != nullptr ? ShortConvBackwardKernel<T, W, N, true>
                                                      : ShortConvBackwardKernel<T, W, N, false>;
    kernel<<<ConvBlocks(arguments.shape, N), kThreads, 0, stream>>>(arguments,
                                                                    static_cast<const W*>(weight));
  });
  return cudaGetLastError();
}

template <typename T>
bool IsWide(const ConvArguments<T>& a) {
  return a.shape.width % kWide<T> == 0 && RowsAreWide<T>(a.x, a.x_stride) &&
         RowsAreWide<T>(a.out, a.out_stride) &&
         (a.dy == nullptr || RowsAreWide<T>(a.dy, a.dy_stride));
}

// Calls run(arguments of T).
template <typename T, typename Run>
cudaError_t RunAs(RowsShape shape, DocumentList documents, ConstRows x, ConstRows dy,
                  const void* weight, MutableRows out, float* partials, const Run& run) {
  return run(ConvArguments<T>{.shape = shape,
                              .documents = documents,
                              .x = static_cast<const T*>(x.data),
                              .x_stride = x.stride,
                              .dy = static_cast<const T*>(dy.data),
                              .dy_stride = dy.stride,
                              .out = static_cast<T*>(out.data),
                              .out_stride = out.stride,
                              .partials = partials,
                              .weight_is_wide = IsAligned<uint4>(weight)});
}

}  // namespace

cudaError_t LaunchShortConv(ElementType type, RowsShape shape, DocumentList documents, ConstRows x,
                            ElementType weight_type, const void* weight, MutableRows out,
                            cudaStream_t stream) {
  const auto run = [&](const auto& arguments) {
    return Forward(arguments, IsWide(arguments), weight_type, weight, stream);
  };
  return type == ElementType::kFloat32
             ? RunAs<float>(shape, documents, x, {}, weight, out, nullptr, run)
             : RunAs<__nv_bfloat16>(shape, documents, x, {}, weight, out, nullptr, run);
}

int64_t ShortConvPartials(RowsShape shape) { return CeilDiv(shape.rows, kStrip); }

cudaError_t LaunchShortConvBackward(ElementType type, RowsShape shape, DocumentList documents,
                                    ConstRows dy, ConstRows x, ElementType weight_type,
                                    const void* weight, MutableRows dx, float* partials,
                                    float* dweight, cudaStream_t stream) {
  const auto run = [&](const auto& arguments) {
    return Backward(arguments, IsWide(arguments), weight_type, weight, stream);
  };
  const cudaError_t error =
      type == ElementType::kFloat32
          ? RunAs<float>(shape, documents, x, dy, weight, dx, partials, run)
          : RunAs<__nv_bfloat16>(shape, documents, x, dy, weight, dx, partials, run);
  if (error != cudaSuccess || partials == nullptr) return error;
  return LaunchSumRows(partials, ShortConvPartials(shape), kTaps * shape.width, dweight, stream);
}

}  // namespace sft::engine::cuda
