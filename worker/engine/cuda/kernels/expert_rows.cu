#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/expert_rows.h"
#include "worker/engine/cuda/kernels/fp8.cuh"
#include "worker/engine/cuda/kernels/gates.cuh"

// A block has a row.

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    TakeRowsKernel(int width, const T* __restrict__ x, int64_t x_stride,
                   const int64_t* __restrict__ of, T* __restrict__ out, int64_t out_stride) {
  const T* from = x + of[blockIdx.x] * x_stride;
  T* to = out + int64_t{blockIdx.x} * out_stride;
  for (int i = threadIdx.x * N; i < width; i += kThreads * N) {
    *reinterpret_cast<Vec<T, N>*>(to + i) = *reinterpret_cast<const Vec<T, N>*>(from + i);
  }
}

template <typename T, typename Addend, int N>
__global__ void __launch_bounds__(kThreads)
    CombineRowsKernel(int width, CombinedRows of, T* y, int64_t y_stride) {
  const int64_t row = blockIdx.x;
  const int64_t* places = of.places + row * of.choices;
  const float* weights = of.weights == nullptr ? nullptr : of.weights + row * of.choices;
  const T* x = static_cast<const T*>(of.x.data);
  const Addend* addend = static_cast<const Addend*>(of.addend.data);
  for (int i = threadIdx.x * N; i < width; i += kThreads * N) {
    float sum[N];
#pragma unroll
    for (int n = 0; n < N; ++n) sum[n] = 0.0f;
#pragma unroll 4
    for (int c = 0; c < of.choices; ++c) {
      float part[N];
      Load<T, N>(x + places[c] * of.x.stride + i, part);
      const float weight = weights == nullptr ? 1.0f : weights[c];
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] = fmaf(weight, part[n], sum[n]);
    }
    if (addend != nullptr) {
      float part[N];
      Load<Addend, N>(addend + row * of.addend.stride + i, part);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += part[n];
    }
    Store<T, N>(y + row * y_stride + i, sum);
  }
}

constexpr int kGluThreads = 128;

// A thread reads its elements before it writes them: dgate_up may be gate_up.
template <typename Gate, typename T, int N>
__global__ void __launch_bounds__(kGluThreads)
    WeighedGluBackwardKernel(int width, const T* __restrict__ dy, int64_t dy_stride,
                             const T* gate_up, int64_t gate_up_stride,
                             const float* __restrict__ weights, T* dgate_up,
                             int64_t dgate_up_stride, float* __restrict__ products) {
  __shared__ float shared[kGluThreads / kWarp];
  const int64_t row = blockIdx.x;
  const float weight = weights[row];
  float sum = 0.0f;
  for (int c = threadIdx.x * N; c < width; c += kGluThreads * N) {
    float gates[N], ups[N], dys[N];
    LoadGates<Gate>(gate_up + row * gate_up_stride, c, width, gates, ups);
    Load(dy + row * dy_stride + c, dys);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum = fmaf(dys[i], Gate::Product(gates[i], ups[i]), sum);
      const GateGradients d = Gate::Backward(weight * dys[i], gates[i], ups[i]);
      gates[i] = d.gate;
      ups[i] = d.up;
    }
    StoreGates<Gate>(dgate_up + row * dgate_up_stride, c, width, gates, ups);
  }
  sum = BlockSum<kGluThreads>(sum, shared);
  if (threadIdx.x == 0) products[row] = sum;
}

// The same in FP8, too: what is written stays in registers until the largest of it is known,
// kVectors pairs of vectors in each thread.
template <typename Gate, typename T, int kVectors>
__global__ void __launch_bounds__(kGluThreads)
    WeighedGluBackwardToFp8Kernel(int width, const T* __restrict__ dy, int64_t dy_stride,
                                  const T* gate_up, int64_t gate_up_stride,
                                  const float* __restrict__ weights, T* dgate_up,
                                  int64_t dgate_up_stride, float* __restrict__ products,
                                  Fp8Output fp8) {
  constexpr int N = kWide<T>;
  __shared__ float shared[kGluThreads / kWarp];
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const T* from = gate_up + row * gate_up_stride;
  T* to = dgate_up + row * dgate_up_stride;
  const float weight = weights[row];
  Packed<T, N> firsts[kVectors], seconds[kVectors];
  float sum = 0.0f, largest = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = (v * kGluThreads + thread) * N;
    if (c >= width) continue;
    float gates[N], ups[N], dys[N], first[N], second[N];
    LoadGates<Gate>(from, c, width, gates, ups);
    Load(dy + row * dy_stride + c, dys);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum = fmaf(dys[i], Gate::Product(gates[i], ups[i]), sum);
      const GateGradients d = Gate::Backward(weight * dys[i], gates[i], ups[i]);
      gates[i] = d.gate;
      ups[i] = d.up;
    }
    JoinGates<Gate>(gates, ups, first, second);
    firsts[v] = Packed<T, N>(first);
    seconds[v] = Packed<T, N>(second);
    StorePacked(to + FirstPlace<Gate, N>(c), firsts[v], true);
    StorePacked(to + SecondPlace<Gate, N>(c, width), seconds[v], true);
    largest = LargestOf(LargestOf(largest, firsts[v]), seconds[v]);
  }
  KeepPacked(firsts);
  KeepPacked(seconds);
  sum = BlockSum<kGluThreads>(sum, shared);
  const float scale = ScaleOf(RowLargest<kGluThreads>(largest), fp8.scaling);
  if (thread == 0) {
    products[row] = sum;
    fp8.scale[row] = scale;
  }
  const float inverse = __frcp_rn(scale);
  uint8_t* bytes = static_cast<uint8_t*>(fp8.rows.data) + row * fp8.rows.stride;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = (v * kGluThreads + thread) * N;
    if (c >= width) continue;
    StoreScaled(bytes + FirstPlace<Gate, N>(c), firsts[v], inverse, true);
    StoreScaled(bytes + SecondPlace<Gate, N>(c, width), seconds[v], inverse, true);
  }
}

// Calls launch(T(), width of an access) for the type: the widest that all rows allow.
template <typename Launch>
void WithAccess(ElementType type, bool wide, const Launch& launch) {
  if (type == ElementType::kFloat32) {
    wide ? launch.template operator()<float, kWide<float>>()
         : launch.template operator()<float, 1>();
  } else {
    wide ? launch.template operator()<__nv_bfloat16, kWide<__nv_bfloat16>>()
         : launch.template operator()<__nv_bfloat16, 1>();
  }
}

bool IsWide(ElementType type, const void* data, int64_t stride, int64_t width) {
  return type == ElementType::kFloat32
             ? RowsAreWide<float>(data, stride) && width % kWide<float> == 0
             : RowsAreWide<__nv_bfloat16>(data, stride) && width % kWide<__nv_bfloat16> == 0;
}

struct WeighedGlu {
  RowsShape shape;
  ConstRows dy, gate_up;
  const float* weights;
  MutableRows dgate_up;
  float* products;
};

template <typename Gate, typename T, int N>
void RunWeighedGlu(const WeighedGlu& of, cudaStream_t stream) {
  WeighedGluBackwardKernel<Gate, T, N><<<of.shape.rows, kGluThreads, 0, stream>>>(
      static_cast<int>(of.shape.width), static_cast<const T*>(of.dy.data), of.dy.stride,
      static_cast<const T*>(of.gate_up.data), of.gate_up.stride, of.weights,
      static_cast<T*>(of.dgate_up.data), of.dgate_up.stride, of.products);
}

template <typename Gate, typename T, int kVectors>
void RunWeighedGluToFp8(const WeighedGlu& of, const Fp8Output& fp8, cudaStream_t stream) {
  WeighedGluBackwardToFp8Kernel<Gate, T, kVectors><<<of.shape.rows, kGluThreads, 0, stream>>>(
      static_cast<int>(of.shape.width), static_cast<const T*>(of.dy.data), of.dy.stride,
      static_cast<const T*>(of.gate_up.data), of.gate_up.stride, of.weights,
      static_cast<T*>(of.dgate_up.data), of.dgate_up.stride, of.products, fp8);
}

// The vectors of a row's gates that a thread holds at most.
constexpr int kHeldVectors = 4;

}  // namespace

cudaError_t LaunchTakeRows(ElementType type, RowsShape shape, ConstRows x, const int64_t* of,
                           MutableRows out, cudaStream_t stream) {
  const bool wide = IsWide(type, x.data, x.stride, shape.width) &&
                    IsWide(type, out.data, out.stride, shape.width);
  WithAccess(type, wide, [&]<typename T, int N>() {
    TakeRowsKernel<T, N><<<shape.rows, kThreads, 0, stream>>>(
        static_cast<int>(shape.width), static_cast<const T*>(x.data), x.stride, of,
        static_cast<T*>(out.data), out.stride);
  });
  return cudaGetLastError();
}

cudaError_t LaunchCombineRows(ElementType type, RowsShape shape, const CombinedRows& of,
                              MutableRows y, cudaStream_t stream) {
  bool wide = IsWide(type, of.x.data, of.x.stride, shape.width) &&
              IsWide(type, y.data, y.stride, shape.width);
  // One access of y takes as many elements of the addend, which have twice the bytes in fp32.
  if (of.addend.data != nullptr) {
    wide = wide && IsAligned<Vec<float, kWide<__nv_bfloat16>>>(of.addend.data) &&
           of.addend.stride % kWide<__nv_bfloat16> == 0;
  }
  WithAccess(type, wide, [&]<typename T, int N>() {
    if (of.addend.data == nullptr || of.addend_type == type) {
      CombineRowsKernel<T, T, N><<<shape.rows, kThreads, 0, stream>>>(
          static_cast<int>(shape.width), of, static_cast<T*>(y.data), y.stride);
    } else {
      CombineRowsKernel<T, float, N><<<shape.rows, kThreads, 0, stream>>>(
          static_cast<int>(shape.width), of, static_cast<T*>(y.data), y.stride);
    }
  });
  return cudaGetLastError();
}

bool WeighedGluWritesFp8(ElementType type, RowsShape shape, ConstRows dy, ConstRows gate_up,
                         ConstRows dgate_up, MutableRows fp8) {
  const int64_t vector = type == ElementType::kFloat32 ? kWide<float> : kWide<__nv_bfloat16>;
  const bool aligned = type == ElementType::kFloat32 ? Fp8IsWide<kWide<float>>(fp8)
                                                     : Fp8IsWide<kWide<__nv_bfloat16>>(fp8);
  return aligned && shape.width <= kHeldVectors * kGluThreads * vector &&
         IsWide(type, dy.data, dy.stride, shape.width) &&
         IsWide(type, gate_up.data, gate_up.stride, shape.width) &&
         IsWide(type, dgate_up.data, dgate_up.stride, shape.width);
}

cudaError_t LaunchWeighedGluBackward(ElementType type, RowsShape shape, plan::ActivationKind kind,
                                     ConstRows dy, ConstRows gate_up, const float* weights,
                                     MutableRows dgate_up, float* products, const Fp8Output& fp8,
                                     cudaStream_t stream) {
  const bool wide = IsWide(type, dy.data, dy.stride, shape.width) &&
                    IsWide(type, gate_up.data, gate_up.stride, shape.width) &&
                    IsWide(type, dgate_up.data, dgate_up.stride, shape.width);
  const WeighedGlu of{shape, dy, gate_up, weights, dgate_up, products};
  WithAnyGate(kind, [&]<typename Gate>(Gate) {
    WithAccess(type, wide, [&]<typename T, int N>() {
      if (fp8.rows.data == nullptr) {
        RunWeighedGlu<Gate, T, N>(of, stream);
      } else if (shape.width <= kGluThreads * kWide<T>) {
        RunWeighedGluToFp8<Gate, T, 1>(of, fp8, stream);
      } else {
        RunWeighedGluToFp8<Gate, T, kHeldVectors>(of, fp8, stream);
      }
    });
  });
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
