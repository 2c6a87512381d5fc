#include "worker/engine/cuda/kernels/launch.h"
#include "worker/engine/cuda/kernels/mma.cuh"
#include "worker/engine/cuda/kernels/vec.cuh"
#include "worker/engine/kernels/mxfp4_format.h"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOfThread = 8;  // elements: four bytes of codes

__device__ __forceinline__ float Value(uint32_t code) {
  // E2M1 as fp32: 0 and 0.5 have no exponent of their own, the others 2^(e - 1) (1 + m / 2).
  const uint32_t magnitude = code & 7;
  const float value =
      magnitude < 2 ? 0.5f * static_cast<float>(magnitude)
                    : __uint_as_float(((126 + (magnitude >> 1)) << 23) | ((magnitude & 1) << 22));
  return (code & 8) != 0 ? -value : value;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Dequantize(int64_t n, const uint8_t* __restrict__ codes, const uint8_t* __restrict__ scales,
               T* __restrict__ out) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kOfThread;
  if (first >= n) return;
  const float scale = __uint_as_float(static_cast<uint32_t>(scales[first / kMxfp4Block]) << 23);
  if (first + kOfThread <= n) {
    const uint32_t packed = *reinterpret_cast<const uint32_t*>(codes + first / 2);
    float values[kOfThread];
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) values[i] = Value((packed >> (4 * i)) & 15) * scale;
    if constexpr (sizeof(T) == 2) {
      uint4 words;
      words.x = PackPair(values[0], values[1]);
      words.y = PackPair(values[2], values[3]);
      words.z = PackPair(values[4], values[5]);
      words.w = PackPair(values[6], values[7]);
      *reinterpret_cast<uint4*>(out + first) = words;
    } else {
      *reinterpret_cast<float4*>(out + first) =
          make_float4(values[0], values[1], values[2], values[3]);
      *reinterpret_cast<float4*>(out + first + 4) =
          make_float4(values[4], values[5], values[6], values[7]);
    }
    return;
  }
  for (int64_t i = first; i < n; ++i) {
    const uint32_t code = (codes[i / 2] >> (4 * (i % 2))) & 15;
    out[i] = FromFloat<T>(Value(code) * scale);
  }
}

}  // namespace

cudaError_t LaunchMxfp4Dequantize(ElementType type, int64_t n, const uint8_t* codes,
                                  const uint8_t* scales, void* out, cudaStream_t stream) {
  constexpr int64_t kOfBlock = int64_t{kThreads} * kOfThread;
  const auto blocks = static_cast<unsigned>((n + kOfBlock - 1) / kOfBlock);
  if (type == ElementType::kFloat32) {
    Dequantize<<<blocks, kThreads, 0, stream>>>(n, codes, scales, static_cast<float*>(out));
  } else {
    Dequantize<<<blocks, kThreads, 0, stream>>>(n, codes, scales, static_cast<__nv_bfloat16*>(out));
  }
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
