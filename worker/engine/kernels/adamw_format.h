#pragma once

#include <cstdint>

// The parts of an AdamW step that CPU and CUDA share, so that both write the same: the blocks of
// 8-bit states and the random bits of stochastic rounding.
//
// Random bits of element e of a parameter: HashHigh of its block of 2^16 elements, then two rounds
// of a 32-bit mix. The lower and upper half of the first word round m and v, the lower half of the
// second the weight.

#ifdef __CUDACC__
#define SFT_HOST_DEVICE __host__ __device__
#else
#define SFT_HOST_DEVICE
#endif

namespace sft::engine {

// Elements of an 8-bit state that share an absmax.
inline constexpr int64_t kOptimizerBlock = 256;

namespace optim {

inline constexpr uint32_t kMix1 = 0x7feb352dU;
inline constexpr uint32_t kMix2 = 0x846ca68bU;
inline constexpr uint32_t kWeyl = 0x9e3779b9U;

SFT_HOST_DEVICE inline uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

SFT_HOST_DEVICE inline uint64_t HashHigh(uint64_t key, int64_t element) {
  return Mix64(key ^ Mix64(static_cast<uint64_t>(element >> 16) + 0x9e3779b97f4a7c15ULL));
}

SFT_HOST_DEVICE inline uint32_t Mix32(uint32_t x) {
  x ^= x >> 16;
  x *= kMix1;
  x ^= x >> 15;
  x *= kMix2;
  return x ^ x >> 16;
}

}  // namespace optim
}  // namespace sft::engine
