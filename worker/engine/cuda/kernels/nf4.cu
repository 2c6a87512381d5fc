#include "worker/engine/cuda/kernels/nf4.cuh"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;  // elements: one 16-byte access of bf16, four bytes of codes
constexpr int kLanesPerBlock = kNf4Block / kPerThread;
constexpr int kUnroll = 4;  // loads in flight before the first use, in de-quantisation

__constant__ Table<15> nf4_thresholds = MakeTable(kNf4Thresholds);

__device__ __forceinline__ float FlushSubnormal(float x) {
  return fabsf(x) < 1.17549435e-38f ? 0.0f : x;
}

// Eight elements from `first` on, zero from n on.
template <typename T>
__device__ __forceinline__ void LoadEight(const T* from, int64_t first, int64_t n, bool aligned,
                                          float (&x)[kPerThread]) {
  if (aligned && first + kPerThread <= n) {
    constexpr int kParts = kPerThread / kWide<T>;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float wide[kWide<T>];
      Load(from + first + part * kWide<T>, wide);
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) x[part * kWide<T> + i] = wide[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) x[i] = first + i < n ? ToFloat(from[first + i]) : 0.0f;
  }
}

template <typename T>
__device__ __forceinline__ void StoreEight(T* to, const float (&x)[kPerThread]) {
  constexpr int kParts = kPerThread / kWide<T>;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    float wide[kWide<T>];
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i) wide[i] = x[part * kWide<T> + i];
    Store(to + part * kWide<T>, wide);
  }
}

// A NaN (a zero block's 0 * inf) exceeds no threshold.
__device__ __forceinline__ uint32_t Nf4Code(float scaled) {
  uint32_t code = 0;
#pragma unroll
  for (int i = 0; i < 15; ++i) code += scaled > nf4_thresholds.values[i];
  return code;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const T* __restrict__ weight, int64_t n, bool aligned,
                   uint8_t* __restrict__ codes, float* __restrict__ absmax) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
  float x[kPerThread];
  LoadEight(weight, first, n, aligned, x);
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    x[i] = FlushSubnormal(x[i]);
    largest = fmaxf(largest, fabsf(x[i]));
  }
#pragma unroll
  for (int offset = kLanesPerBlock / 2; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  if (first >= n) return;
  if (threadIdx.x % kLanesPerBlock == 0) absmax[first / kNf4Block] = largest;
  const float scale = __frcp_rn(largest);
  uint32_t packed = 0;  // little-endian: element 0 in the high nibble of the lowest byte
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t code = first + i < n ? Nf4Code(x[i] * scale) : 7u;
    packed |= code << (i / 2 * 8 + (i % 2 == 0 ? 4 : 0));
  }
  if (first + kPerThread <= n) {
    *reinterpret_cast<uint32_t*>(codes + first / 2) = packed;
  } else {
    for (int64_t i = 0; first + 2 * i < n; ++i) codes[first / 2 + i] = packed >> (8 * i);
  }
}

// Where de-quantised elements go. `wide`: eight elements from a multiple of eight on lie in one
// row, aligned (but for those that `n` cuts off).
template <typename T>
struct Target {
  T* values;
  int64_t columns;
  int64_t stride;
  bool wide;
};

template <typename T, typename Absmax>
__global__ void __launch_bounds__(kThreads)
    DequantizeKernel(const uint8_t* __restrict__ codes, Absmax absmax, int64_t n,
                     Target<T> target) {
  // Sixteen words in sixteen banks: lanes with different codes never collide.
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = nf4_values.values[threadIdx.x];
  __syncthreads();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kThreads * kPerThread * kUnroll;
  uint32_t packed[kUnroll];
  float scales[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t first = base + (u * kThreads + threadIdx.x) * kPerThread;
    packed[u] = 0;
    scales[u] = 0.0f;
    if (first >= n) continue;
    scales[u] = absmax(first / kNf4Block);
    if (first + kPerThread <= n) {
      packed[u] = *reinterpret_cast<const uint32_t*>(codes + first / 2);
    } else {
      for (int64_t i = 0; first + 2 * i < n; ++i) {
        packed[u] |= static_cast<uint32_t>(codes[first / 2 + i]) << (8 * i);
      }
    }
  }
  // One division a thread: the rounds that follow walk on from it.
  int64_t first = base + threadIdx.x * kPerThread;
  int64_t row = first / target.columns;
  int64_t column = first - row * target.columns;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    float x[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t code = packed[u] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15u;
      x[i] = values[code] * scales[u];
    }
    T* to = target.values + row * target.stride + column;
    if (target.wide && first + kPerThread <= n) {
      StoreEight(to, x);
    } else {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if (first + i >= n) break;
        const int64_t past = (column + i) / target.columns;  // rows may end anywhere
        to[i + past * (target.stride - target.columns)] = FromFloat<T>(x[i]);
      }
    }
    first += kThreads * kPerThread;
    column += kThreads * kPerThread;
    while (column >= target.columns && first < n) {
      column -= target.columns;
      ++row;
    }
  }
}

// Binary search of the map from its middle, then the exact midpoint with the neighbour on the far
// side; a tie stays where the search ended, and so does a NaN (a zero block), at code 0.
__device__ uint8_t DynamicCode(float x, const float* map) {
  int pivot = 127;
  int upper = 255;
  int lower = 0;
  for (int step = 64; step > 0; step >>= 1) {
    if (x > map[pivot]) {
      lower = pivot;
      pivot += step;
    } else {
      upper = pivot;
      pivot -= step;
    }
  }
  if (x > map[pivot]) return x > (map[upper] + map[pivot]) * 0.5f ? upper : pivot;
  return x < (map[lower] + map[pivot]) * 0.5f ? lower : pivot;
}

// One block of threads a nested block, one element a thread.
__global__ void __launch_bounds__(kNestedBlock)
    AbsmaxQuantizeKernel(const float* __restrict__ absmax, int64_t n,
                         const float* __restrict__ offset, uint8_t* __restrict__ codes,
                         float* __restrict__ nested_absmax) {
  __shared__ float map[256];
  __shared__ float maxima[kNestedBlock / kWarp];
  static_assert(kNestedBlock == 256, "a thread loads one entry of the map");
  map[threadIdx.x] = dynamic_map.values[threadIdx.x];
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kNestedBlock + threadIdx.x;
  const float x = i < n ? FlushSubnormal(absmax[i] - *offset) : 0.0f;
  float largest = fabsf(x);
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lane));
  }
  if (threadIdx.x % kWarp == 0) maxima[threadIdx.x / kWarp] = largest;
  __syncthreads();
  largest = 0.0f;
  for (const float other : maxima) largest = fmaxf(largest, other);
  if (threadIdx.x == 0) nested_absmax[blockIdx.x] = largest;
  if (i < n) codes[i] = DynamicCode(x * __frcp_rn(largest), map);
}

template <typename T, typename Absmax>
cudaError_t Dequantize(const uint8_t* codes, Absmax absmax, int64_t n, MutableRows out,
                       int64_t columns, cudaStream_t stream) {
  const bool wide = columns == n
                        ? IsAligned<uint4>(out.data)
                        : RowsAreWide<T>(out.data, out.stride) && columns % kPerThread == 0;
  const auto blocks = static_cast<unsigned>(CeilDiv(n, kThreads * kPerThread * kUnroll));
  DequantizeKernel<T><<<blocks, kThreads, 0, stream>>>(
      codes, absmax, n, {static_cast<T*>(out.data), columns, out.stride, wide});
  return cudaGetLastError();
}

template <typename T>
cudaError_t Quantize(const void* weight, int64_t n, uint8_t* codes, float* absmax,
                     cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(n, kThreads * kPerThread));
  QuantizeKernel<T><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(weight), n,
                                                     IsAligned<uint4>(weight), codes, absmax);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchNf4Quantize(ElementType type, const void* weight, int64_t n, uint8_t* codes,
                              float* absmax, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Quantize<float> : Quantize<__nv_bfloat16>;
  return run(weight, n, codes, absmax, stream);
}

cudaError_t LaunchNf4Dequantize(ElementType type, const uint8_t* codes, const float* absmax,
                                int64_t n, MutableRows out, int64_t columns, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Dequantize<float, PlainAbsmax>
                                                 : Dequantize<__nv_bfloat16, PlainAbsmax>;
  return run(codes, {absmax}, n, out, columns, stream);
}

cudaError_t LaunchAbsmaxQuantize(const float* absmax, int64_t n, const float* offset,
                                 uint8_t* codes, float* nested_absmax, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(n, kNestedBlock));
  AbsmaxQuantizeKernel<<<blocks, kNestedBlock, 0, stream>>>(absmax, n, offset, codes,
                                                            nested_absmax);
  return cudaGetLastError();
}

cudaError_t LaunchNf4DequantizeNested(ElementType type, const uint8_t* codes,
                                      const uint8_t* absmax_codes, const float* nested_absmax,
                                      const float* offset, int64_t n, MutableRows out,
                                      int64_t columns, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Dequantize<float, NestedAbsmax>
                                                 : Dequantize<__nv_bfloat16, NestedAbsmax>;
  return run(codes, {absmax_codes, nested_absmax, offset}, n, out, columns, stream);
}

}  // namespace sft::engine::cuda
