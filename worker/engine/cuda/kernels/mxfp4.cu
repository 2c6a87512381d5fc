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

// Two codes as bf16 times 2^-126: an E2M1's exponent and mantissa, at the lowest bits of a bf16's
// exponent and the highest of its mantissa, are that number, 0.5 as a denormal.
__device__ __forceinline__ uint32_t PairOf(uint32_t byte) {
  return ((byte << 6) & 0x000001C0u) | ((byte << 12) & 0x00008000u) | ((byte << 18) & 0x01C00000u) |
         ((byte << 24) & 0x80000000u);
}
__device__ __forceinline__ __nv_bfloat162 AsPair(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

// Eight codes; exact but for what bf16 cannot hold, which is rounded once.
__device__ __forceinline__ uint4 ValuesOf(uint32_t codes, uint8_t scale) {
  const __nv_bfloat162 back = AsPair(0x7E807E80u);  // 2^126
  const __nv_bfloat162 by = AsPair(uint32_t{scale} * 0x00800080u);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 values =
        __hmul2(__hmul2(AsPair(PairOf(codes >> (8 * i) & 0xFF)), back), by);
    words[i] = *reinterpret_cast<const uint32_t*>(&values);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Dequantize(int64_t n, const uint8_t* __restrict__ codes, const uint8_t* __restrict__ scales,
               T* __restrict__ out) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kOfThread;
  if (first >= n) return;
  const uint8_t exponent = scales[first / kMxfp4Block];
  const float scale = __uint_as_float(uint32_t{exponent} << 23);
  if (first + kOfThread <= n) {
    const uint32_t packed = *reinterpret_cast<const uint32_t*>(codes + first / 2);
    if constexpr (sizeof(T) == 2) {
      *reinterpret_cast<uint4*>(out + first) = ValuesOf(packed, exponent);
    } else {
      float values[kOfThread];
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) values[i] = Value((packed >> (4 * i)) & 15) * scale;
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
