// AdamW: one launch steps up to kAdamWTensors tensors, and reads and writes each once. Rounds as
// the loops of worker/engine/optim/adamw_cpu.cc do: every operation is an intrinsic that the
// compiler does not fuse, division and square root are exact, and so the bits are equal (a NaN's
// but for its payload).
#include <algorithm>
#include <type_traits>

#include "worker/engine/cuda/kernels/adamw.h"
#include "worker/engine/cuda/kernels/vec.cuh"
#include "worker/engine/kernels/adamw_format.h"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// A warp steps one tile at a time; a block of 8-bit states is one, so that its absmax is a warp's.
constexpr int kTile = kOptimizerBlock;
constexpr int kPerLane = kTile / kWarp;

template <typename S>
inline constexpr bool kIsCoded = std::is_same_v<S, uint8_t>;

// Elements of a block of threads; with codes it loads tables first, which more of them pay for.
template <typename S>
inline constexpr int kChunk = kIsCoded<S> ? 16384 : 4096;

// Elements in one access: 16 bytes of the widest of the types.
template <typename W, typename G, typename S>
inline constexpr int kVector = sizeof(W) == 2 && sizeof(G) == 2 && sizeof(S) == 2 ? 8 : 4;

// What `copy` holds.
template <typename W>
using CopyOf = std::conditional_t<std::is_same_v<W, float>, __nv_bfloat16, float>;

struct Batch {
  AdamWTensor tensor[kAdamWTensors];
  int first_chunk[kAdamWTensors + 1];  // the last holds the number of all
  bool wide[kAdamWTensors];            // every pointer is aligned for vectors
  int count;
};
static_assert(sizeof(Batch) + sizeof(AdamWScalars) + sizeof(float*) <= 4096);

// The part of a tile that a lane has: kPerLane / N vectors, each next to its neighbours' ones.
template <int N>
struct Place {
  int left;   // elements of the tile that there are
  bool wide;  // all of them, and aligned
  __device__ __forceinline__ static int At(int i) {
    return (i / N * kWarp + static_cast<int>(threadIdx.x % kWarp)) * N + i % N;
  }
};

template <int N, typename T>
__device__ __forceinline__ void LoadTile(const void* tensor, int64_t tile, const Place<N>& place,
                                         float (&x)[kPerLane]) {
  const T* from = static_cast<const T*>(tensor) + tile;
  if (place.wide) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += N) {
      float part[N];
      Load(from + place.At(i), part);
#pragma unroll
      for (int k = 0; k < N; ++k) x[i + k] = part[k];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      x[i] = place.At(i) < place.left ? ToFloat(from[place.At(i)]) : 0.0f;
    }
  }
}

template <int N, typename T>
__device__ __forceinline__ void StoreTile(void* tensor, int64_t tile, const Place<N>& place,
                                          const float (&x)[kPerLane]) {
  T* to = static_cast<T*>(tensor) + tile;
  if (place.wide) {
#pragma unroll
    for (int i = 0; i < kPerLane; i += N) {
      float part[N];
#pragma unroll
      for (int k = 0; k < N; ++k) part[k] = x[i + k];
      Store(to + place.At(i), part);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (place.At(i) < place.left) to[place.At(i)] = FromFloat<T>(x[i]);
    }
  }
}

// A dynamic map. `tree` holds the 255 midpoints as a search tree in breadth-first order, from 1 on:
// the lanes of a warp then meet in few banks. The way down is the code, first bit first.
struct CodeMap {
  float values[256];
  float tree[256];

  // `table`: the values, then the midpoints, ascending. A block's threads call it, then
  // synchronise.
  __device__ __forceinline__ void Fill(const float* table) {
    static_assert(kThreads == 256);
    const int node = static_cast<int>(threadIdx.x);
    values[node] = table[node];
    if (node == 0) return;
    const int level = 31 - __clz(node);
    tree[node] = table[256 + ((2 * (node - (1 << level)) + 1) << (7 - level)) - 1];
  }
  // The number of midpoints below x: none for a NaN.
  __device__ __forceinline__ uint32_t Nearest(float x) const {
    uint32_t node = 1;
#pragma unroll
    for (int level = 0; level < 8; ++level) node = 2 * node + (x > tree[node] ? 1 : 0);
    return node - 256;
  }
};
struct CodeMaps {
  CodeMap m, v;
};
struct NoMaps {};

template <int N>
__device__ __forceinline__ void Decode(const CodeMap& map, const void* codes, const float* absmax,
                                       int64_t tile, const Place<N>& place, float (&x)[kPerLane]) {
  const uint8_t* from = static_cast<const uint8_t*>(codes) + tile;
  const float scale = absmax[tile / kOptimizerBlock];
#pragma unroll
  for (int i = 0; i < kPerLane; i += N) {
    uint8_t part[N];
    if (place.wide) {
      const auto vec = *reinterpret_cast<const Vec<uint8_t, N>*>(from + place.At(i));
#pragma unroll
      for (int k = 0; k < N; ++k) part[k] = vec.values[k];
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        part[k] = place.At(i + k) < place.left ? from[place.At(i + k)] : 0;
      }
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[i + k] = place.At(i + k) < place.left ? __fmul_rn(map.values[part[k]], scale) : 0.0f;
    }
  }
}

// `floor`: least code of a value above zero. A NaN counts nothing in the absmax.
template <int N>
__device__ __forceinline__ void Encode(const CodeMap& map, const float (&x)[kPerLane],
                                       uint32_t floor, void* codes, float* absmax, int64_t tile,
                                       const Place<N>& place) {
  uint8_t* to = static_cast<uint8_t*>(codes) + tile;
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) most = fmaxf(most, fabsf(x[i]));
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
  }
  if (threadIdx.x % kWarp == 0) absmax[tile / kOptimizerBlock] = most;
  const float inverse = most > 0.0f ? __frcp_rn(most) : 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; i += N) {
    Vec<uint8_t, N> vec;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const uint32_t code = map.Nearest(__fmul_rn(x[i + k], inverse));
      vec.values[k] = static_cast<uint8_t>(x[i + k] > 0.0f ? max(code, floor) : code);
    }
    if (place.wide) {
      *reinterpret_cast<Vec<uint8_t, N>*>(to + place.At(i)) = vec;
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (place.At(i + k) < place.left) to[place.At(i + k)] = vec.values[k];
      }
    }
  }
}

// The random words of a chunk, which lies in at most two blocks of 2^16 elements.
class RandomWords {
 public:
  __device__ __forceinline__ RandomWords(uint64_t key, int64_t first)
      : here_(optim::HashHigh(key, first)),
        next_(optim::HashHigh(key, first + 0x10000)),
        first_(static_cast<uint32_t>(first & 0xffff)) {}

  // Of element `i` of the chunk: for the states, and for the weight.
  __device__ __forceinline__ uint2 Of(uint32_t i) const {
    const uint32_t element = first_ + i;
    const uint64_t hash = element < 0x10000 ? here_ : next_;
    const uint32_t states =
        optim::Mix32((element & 0xffff) * optim::kWeyl + static_cast<uint32_t>(hash));
    return {states, optim::Mix32(states ^ static_cast<uint32_t>(hash >> 32))};
  }

 private:
  uint64_t here_, next_;
  uint32_t first_;
};

// The value in bf16 that the lower half of `random` rounds x to. Infinities and NaN stay.
__device__ __forceinline__ float RoundStochastic(float x, uint32_t random) {
  const uint32_t bits = __float_as_uint(x);
  const bool special = (bits & 0x7f800000u) == 0x7f800000u;
  const uint32_t kept = bits | ((bits & 0x007fffffu) != 0 ? 0x400000u : 0u);
  return __uint_as_float((special ? kept : bits + (random & 0xffff)) & 0xffff0000u);
}

// The formula of optim/adamw.h.
__device__ __forceinline__ void Update(const AdamWScalars& s, float scaled_grad, float& w, float& m,
                                       float& v) {
  const float g = scaled_grad;
  m = __fadd_rn(m, __fmul_rn(s.one_minus_beta1, __fsub_rn(g, m)));
  v = __fadd_rn(__fmul_rn(v, s.beta2), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
  const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), s.sqrt_bias2), s.epsilon);
  w = __fadd_rn(__fmul_rn(w, s.keep), __fdiv_rn(__fmul_rn(-s.step_size, m), denominator));
}

// The elements of one tile from `tile` on; `in_chunk` is their place in the chunk of `random`.
template <typename W, typename G, typename S, typename Maps>
__device__ __forceinline__ void StepTile(const AdamWTensor& t, const AdamWScalars& scalars,
                                         const Maps& maps, const RandomWords& random, int64_t tile,
                                         uint32_t in_chunk, bool wide) {
  constexpr int N = kVector<W, G, S>;
  constexpr bool kRoundWeight = sizeof(W) == 2, kRoundState = sizeof(S) == 2;
  const int left = static_cast<int>(min(t.elements - tile, static_cast<int64_t>(kTile)));
  const Place<N> place = {left, wide && left == kTile};
  float w[kPerLane], g[kPerLane], m[kPerLane], v[kPerLane];
  LoadTile<N, W>(t.weight, tile, place, w);
  LoadTile<N, G>(t.grad, tile, place, g);
  if constexpr (kIsCoded<S>) {
    Decode(maps.m, t.m, t.m_absmax, tile, place, m);
    Decode(maps.v, t.v, t.v_absmax, tile, place, v);
  } else {
    LoadTile<N, S>(t.m, tile, place, m);
    LoadTile<N, S>(t.v, tile, place, v);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    Update(scalars, __fmul_rn(g[i], scalars.grad_scale), w[i], m[i], v[i]);
    if constexpr (kRoundWeight || kRoundState) {
      const uint2 words = random.Of(in_chunk + place.At(i));
      if constexpr (kRoundWeight) w[i] = RoundStochastic(w[i], words.y);
      if constexpr (kRoundState) {
        m[i] = RoundStochastic(m[i], words.x);
        v[i] = RoundStochastic(v[i], words.x >> 16);
      }
    }
  }
  StoreTile<N, W>(t.weight, tile, place, w);
  if (t.copy != nullptr) StoreTile<N, CopyOf<W>>(t.copy, tile, place, w);
  if constexpr (kIsCoded<S>) {
    Encode(maps.m, m, 0, t.m, t.m_absmax, tile, place);
    // A second moment that became zero would divide m by epsilon alone.
    Encode(maps.v, v, 1, t.v, t.v_absmax, tile, place);
  } else {
    StoreTile<N, S>(t.m, tile, place, m);
    StoreTile<N, S>(t.v, tile, place, v);
  }
}

template <typename W, typename G, typename S>
__global__ void __launch_bounds__(kThreads)
    AdamWKernel(const __grid_constant__ Batch batch, const __grid_constant__ AdamWScalars scalars,
                const float* __restrict__ tables) {
  __shared__ std::conditional_t<kIsCoded<S>, CodeMaps, NoMaps> maps;
  if constexpr (kIsCoded<S>) {
    maps.m.Fill(tables);
    maps.v.Fill(tables + 512);
    __syncthreads();
  }
  const int chunk = static_cast<int>(blockIdx.x);
  int low = 0, high = batch.count;  // the chunk is one of a tensor in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (chunk < batch.first_chunk[middle] ? high : low) = middle;
  }
  const AdamWTensor& tensor = batch.tensor[low];
  const int64_t begin = static_cast<int64_t>(chunk - batch.first_chunk[low]) * kChunk<S>;
  const RandomWords random(tensor.key, tensor.offset + begin);
  for (int at = static_cast<int>(threadIdx.x) / kWarp * kTile;
       at < kChunk<S> && begin + at < tensor.elements; at += kWarps * kTile) {
    StepTile<W, G, S>(tensor, scalars, maps, random, begin + at, static_cast<uint32_t>(at),
                      batch.wide[low]);
  }
}

template <typename W, typename G, typename S>
bool IsWide(const AdamWTensor& t) {
  constexpr int N = kVector<W, G, S>;
  return IsAligned<Vec<W, N>>(t.weight) && IsAligned<Vec<G, N>>(t.grad) &&
         IsAligned<Vec<S, N>>(t.m) && IsAligned<Vec<S, N>>(t.v) &&
         IsAligned<Vec<CopyOf<W>, N>>(t.copy);
}

template <typename W, typename G, typename S>
cudaError_t Launch(const AdamWTensor* tensors, int count, const AdamWScalars& scalars,
                   const float* maps, cudaStream_t stream) {
  Batch batch = {};
  batch.count = count;
  for (int i = 0; i < count; ++i) {
    batch.tensor[i] = tensors[i];
    batch.wide[i] = IsWide<W, G, S>(tensors[i]);
    batch.first_chunk[i + 1] =
        batch.first_chunk[i] + static_cast<int>(CeilDiv(tensors[i].elements, kChunk<S>));
  }
  const auto blocks = static_cast<unsigned>(batch.first_chunk[count]);
  AdamWKernel<W, G, S><<<blocks, kThreads, 0, stream>>>(batch, scalars, maps);
  return cudaGetLastError();
}

using Launcher = cudaError_t (*)(const AdamWTensor*, int, const AdamWScalars&, const float*,
                                 cudaStream_t);

template <typename W, typename G>
Launcher ChooseState(AdamWState state) {
  if (state == AdamWState::kCodes) return Launch<W, G, uint8_t>;
  return state == AdamWState::kFloat32 ? Launch<W, G, float> : Launch<W, G, __nv_bfloat16>;
}

template <typename W>
Launcher ChooseGrad(const AdamWTypes& types) {
  return types.grad == ElementType::kFloat32 ? ChooseState<W, float>(types.state)
                                             : ChooseState<W, __nv_bfloat16>(types.state);
}

}  // namespace

cudaError_t LaunchAdamW(AdamWTypes types, const AdamWTensor* tensors, int count,
                        const AdamWScalars& scalars, const float* maps, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const Launcher launch = types.weight == ElementType::kFloat32 ? ChooseGrad<float>(types)
                                                                : ChooseGrad<__nv_bfloat16>(types);
  return launch(tensors, count, scalars, maps, stream);
}

}  // namespace sft::engine::cuda
