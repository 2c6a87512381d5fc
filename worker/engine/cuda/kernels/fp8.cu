// FP8 (e4m3): activations by rows, NF4 weights as they stand and transposed, adapters beside them.
#include "worker/engine/cuda/kernels/fp8.cuh"
#include "worker/engine/cuda/kernels/fp8.h"
#include "worker/engine/cuda/kernels/nf4.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;  // of the kernels that have no reduction

// A block of threads a row.
template <typename T, typename Config>
__global__ void __launch_bounds__(Config::kThreads)
    QuantizeKernel(int width, const T* __restrict__ x, int64_t stride, Fp8Output out) {
  constexpr int N = Config::kVector;
  const T* from = x + blockIdx.x * stride;
  Packed<T, N> held[Config::kHeld];
  if constexpr (Config::kVectors > 0) {
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = (v * Config::kLanes + static_cast<int>(threadIdx.x)) * N;
      if (c < width) held[v] = LoadPacked<T, N>(from + c, true);
    }
  }
  WriteFp8Row<Config>(out, blockIdx.x, width, held, from, /*wide=*/true);
}

// A thread a vector, of rows that may be short.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    QuantizeWithKernel(Fp8Shape shape, const T* __restrict__ x, int64_t stride,
                       const float* __restrict__ scales, uint8_t* __restrict__ out,
                       int64_t out_stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = index / (shape.width / N);
  if (row >= shape.rows) return;
  const int64_t column = (index - row * (shape.width / N)) * N;
  StoreScaled(out + row * out_stride + column, LoadPacked<T, N>(x + row * stride + column, true),
              __frcp_rn(scales[row]), /*wide=*/true);
}

// Whether vectors of N elements of both rows are aligned and none is cut off.
template <typename T, int N>
bool AreWide(Fp8Shape shape, ConstRows x, MutableRows out) {
  return shape.width % N == 0 && IsAligned<Vec<T, N>>(x.data) && x.stride % N == 0 &&
         Fp8IsWide<N>(out);
}

template <typename T>
cudaError_t Quantize(Fp8Shape shape, ConstRows x, const Fp8Output& out, cudaStream_t stream) {
  const bool wide = AreWide<T, kWide<T>>(shape, x, out.rows);
  ChooseBlockConfig<T>(shape.width, wide, [&](auto config) {
    using Config = decltype(config);
    QuantizeKernel<T, Config><<<static_cast<unsigned>(shape.rows), Config::kThreads, 0, stream>>>(
        static_cast<int>(shape.width), static_cast<const T*>(x.data), x.stride, out);
  });
  return cudaGetLastError();
}

template <typename T, int N>
cudaError_t QuantizeWith(Fp8Shape shape, ConstRows x, const float* scale, MutableRows out,
                         cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(shape.rows * (shape.width / N), kThreads));
  QuantizeWithKernel<T, N>
      <<<blocks, kThreads, 0, stream>>>(shape, static_cast<const T*>(x.data), x.stride, scale,
                                        static_cast<uint8_t*>(out.data), out.stride);
  return cudaGetLastError();
}

// ---- NF4 ----

constexpr int kPerThread = 16;  // elements: eight bytes of codes, one 16-byte store
constexpr int kUnroll = 4;      // loads in flight before the first use

// The code table in sixteen banks: lanes with different codes never collide. A barrier must follow.
__device__ __forceinline__ void FillValues(float (&values)[16]) {
  if (threadIdx.x < 16) values[threadIdx.x] = nf4_values.values[threadIdx.x];
}

// Element i of the sixteen whose codes are `packed`, de-quantised.
__device__ __forceinline__ float Element(const float (&values)[16], const uint2& packed, int i,
                                         float absmax) {
  const uint32_t word = i < 8 ? packed.x : packed.y;
  const int place = i % 8;
  const uint32_t code = word >> (place / 2 * 8 + (place % 2 == 0 ? 4 : 0)) & 15u;
  return __fmul_rn(values[code], absmax);
}

// A vector is sixteen elements, in one row and one NF4 block.
template <typename Absmax>
__global__ void __launch_bounds__(kThreads)
    FromNf4Kernel(const uint2* __restrict__ codes, Absmax absmax, uint32_t vectors,
                  uint32_t vectors_per_row, const float* __restrict__ scales,
                  uint8_t* __restrict__ out, int64_t stride) {
  __shared__ float values[16];
  FillValues(values);
  const uint32_t base = blockIdx.x * (kThreads * kUnroll) + threadIdx.x;
  uint2 packed[kUnroll];
  float maxima[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t at = base + u * kThreads;
    if (at >= vectors) continue;
    packed[u] = codes[at];
    maxima[u] = absmax(at / (kNf4Block / kPerThread));
  }
  __syncthreads();
  // One division a thread: the rounds that follow walk on from it.
  uint32_t row = base / vectors_per_row;
  uint32_t column = base - row * vectors_per_row;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (base + u * kThreads >= vectors) break;
    const float inverse = __frcp_rn(scales[row]);
    float x[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      x[i] = __fmul_rn(Element(values, packed[u], i, maxima[u]), inverse);
    }
    StoreFp8(out + row * stride + column * kPerThread, x);
    column += kThreads;
    while (column >= vectors_per_row) {
      column -= vectors_per_row;
      ++row;
    }
  }
}

constexpr int kTile = 128;                     // weight rows and columns of a tile
constexpr int kLanes = kTile / kPerThread;     // threads along a weight's row
constexpr int kTileWords = kTile / 4;          // words of four weight rows, of one weight column
constexpr int kInversePitch = kPerThread + 4;  // eight lanes' float4 in 32 different banks
static_assert(kThreads == kLanes * kTileWords, "a thread reads sixteen columns of four rows");

// Turns a tile: four rows make a word of the transpose at a time. Both global sides are read and
// written in whole sectors, neighbouring blocks sharing the cache lines of the codes.
template <typename Absmax>
__global__ void __launch_bounds__(kThreads)
    FromNf4TransposedKernel(int64_t rows, int64_t columns, const uint8_t* __restrict__ codes,
                            Absmax absmax, const float* __restrict__ scales,
                            uint8_t* __restrict__ out, int64_t stride) {
  __shared__ float values[16];
  __shared__ alignas(16) float inverses[kLanes * kInversePitch];
  __shared__ alignas(16) uint32_t tile[kTile * kTileWords];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes, word = thread / kLanes;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t column = first_column + lane * kPerThread;
  uint2 packed[4] = {};
  float maxima[4] = {};
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = first_row + word * 4 + r;
    if (row >= rows || column >= columns) continue;
    const int64_t element = row * columns + column;
    packed[r] = *reinterpret_cast<const uint2*>(codes + element / 2);
    maxima[r] = absmax(element / kNf4Block);
  }
  FillValues(values);
  if (thread < kTile && first_column + thread < columns) {
    inverses[thread / kPerThread * kInversePitch + thread % kPerThread] =
        __frcp_rn(scales[first_column + thread]);
  }
  __syncthreads();
  // The words of a tile row are swapped in groups of four, by `lane`: 32 different banks.
#pragma unroll
  for (int i = 0; i < kPerThread; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(inverses + lane * kInversePitch + i);
    const float inverse[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float x[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        x[r] = __fmul_rn(Element(values, packed[r], i + j, maxima[r]), inverse[j]);
      }
      tile[(lane * kPerThread + i + j) * kTileWords + (word ^ lane * 4)] = FourFp8(x);
    }
  }
  __syncthreads();
  constexpr int kChunks = kTile / 16;  // of a tile row
#pragma unroll
  for (int at = thread; at < kTile * kChunks; at += kThreads) {
    const int k = at / kChunks, chunk = at % kChunks;
    const int64_t row = first_row + chunk * 16;
    if (first_column + k >= columns || row >= rows) continue;
    const int swapped = chunk ^ k / kPerThread;
    *reinterpret_cast<uint4*>(out + (first_column + k) * stride + row) =
        *reinterpret_cast<const uint4*>(tile + k * kTileWords + swapped * 4);
  }
}

// Any shape, a thread an element of `out`.
template <typename Absmax>
__global__ void __launch_bounds__(kThreads)
    FromNf4AnyKernel(Fp8Shape shape, const uint8_t* __restrict__ codes, Absmax absmax,
                     const float* __restrict__ scales, bool transposed, uint8_t* __restrict__ out,
                     int64_t stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = index / shape.width;
  if (row >= shape.rows) return;
  const int64_t column = index - row * shape.width;
  const int64_t element = transposed ? column * shape.rows + row : index;
  const uint32_t code = codes[element / 2] >> (element % 2 == 0 ? 4 : 0) & 15u;
  const float value = __fmul_rn(nf4_values.values[code], absmax(element / kNf4Block));
  out[row * stride + column] = OneFp8(__fmul_rn(value, __frcp_rn(scales[row])));
}

template <typename Absmax>
cudaError_t FromNf4(const Nf4Weight& weight, Absmax absmax, const float* scale, bool transposed,
                    MutableRows out, cudaStream_t stream) {
  auto* const bytes = static_cast<uint8_t*>(out.data);
  const int64_t vectors = weight.rows * (weight.columns / kPerThread);
  const bool wide = weight.columns % kPerThread == 0 && vectors <= int64_t{1} << 31 &&
                    IsAligned<uint2>(weight.codes) && IsAligned<uint4>(out.data) &&
                    out.stride % 16 == 0;
  if (wide && !transposed) {
    const auto blocks = static_cast<unsigned>(CeilDiv(vectors, kThreads * kUnroll));
    FromNf4Kernel<<<blocks, kThreads, 0, stream>>>(
        reinterpret_cast<const uint2*>(weight.codes), absmax, static_cast<uint32_t>(vectors),
        static_cast<uint32_t>(weight.columns / kPerThread), scale, bytes, out.stride);
  } else if (wide && weight.rows % 16 == 0 && weight.rows <= int64_t{65535} * kTile) {
    const dim3 blocks(static_cast<unsigned>(CeilDiv(weight.columns, kTile)),
                      static_cast<unsigned>(CeilDiv(weight.rows, kTile)));
    FromNf4TransposedKernel<<<blocks, kThreads, 0, stream>>>(
        weight.rows, weight.columns, weight.codes, absmax, scale, bytes, out.stride);
  } else {
    const Fp8Shape shape =
        transposed ? Fp8Shape{weight.columns, weight.rows} : Fp8Shape{weight.rows, weight.columns};
    const auto blocks = static_cast<unsigned>(CeilDiv(shape.rows * shape.width, kThreads));
    FromNf4AnyKernel<<<blocks, kThreads, 0, stream>>>(shape, weight.codes, absmax, scale,
                                                      transposed, bytes, out.stride);
  }
  return cudaGetLastError();
}

// ---- adapters ----

// A thread writes one vector of the rank's columns of a row. Neighbouring threads read neighbours:
// along a row of b, or, transposed, along the rows of a, which are columns here.
template <typename T, int N, bool kTransposed>
__global__ void __launch_bounds__(kThreads)
    PlaceFactorsKernel(FactorShape shape, const __grid_constant__ FactorMembers members,
                       int64_t rank, float scale, const float* __restrict__ row_scale,
                       uint8_t* __restrict__ matrix, int64_t stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t matrix_rows = kTransposed ? shape.columns : shape.rows;
  if (index >= matrix_rows * (rank / N)) return;
  const int64_t row = kTransposed ? index % matrix_rows : index / (rank / N);
  const int64_t column = (kTransposed ? index / matrix_rows : index - row * (rank / N)) * N;
  int64_t first_rank = 0;
  int m = 0;
  while (column >= first_rank + members.member[m].rank) first_rank += members.member[m++].rank;
  const FactorMember& member = members.member[m];
  const int64_t r = column - first_rank;
  const float inverse = __frcp_rn(row_scale[row]);
  float x[N] = {};
  if constexpr (kTransposed) {
    const T* a = static_cast<const T*>(member.a.data) + r * member.a.stride + row;
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = __fmul_rn(ToFloat(a[i * member.a.stride]), inverse);
  } else {
    const int64_t from = row - member.first_row;
    if (from >= 0 && from < member.rows) {
      Load(static_cast<const T*>(member.b.data) + from * member.b.stride + r, x);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], scale), inverse);
    }
  }
  const int64_t before = kTransposed ? shape.rows : shape.columns;
  StoreFp8(matrix + row * stride + before + shape.first_rank + column, x);
}

template <typename T, int N, bool kTransposed>
cudaError_t PlaceFactors(const FactorShape& shape, const FactorMembers& members, int64_t rank,
                         float scale, const float* row_scale, MutableRows matrix,
                         cudaStream_t stream) {
  const int64_t vectors = (kTransposed ? shape.columns : shape.rows) * (rank / N);
  const auto blocks = static_cast<unsigned>(CeilDiv(vectors, kThreads));
  PlaceFactorsKernel<T, N, kTransposed><<<blocks, kThreads, 0, stream>>>(
      shape, members, rank, scale, row_scale, static_cast<uint8_t*>(matrix.data), matrix.stride);
  return cudaGetLastError();
}

template <typename T, int N>
bool FactorsAreWide(const FactorShape& shape, const FactorMembers& members, bool transposed,
                    MutableRows matrix) {
  bool wide = IsAligned<Vec<uint8_t, N>>(matrix.data) && matrix.stride % N == 0 &&
              ((transposed ? shape.rows : shape.columns) + shape.first_rank) % N == 0;
  for (int m = 0; m < shape.members; ++m) {
    const FactorMember& member = members.member[m];
    wide = wide && member.rank % N == 0 &&
           (transposed || RowsAreWide<T>(member.b.data, member.b.stride));
  }
  return wide;
}

}  // namespace

cudaError_t LaunchFp8Quantize(ElementType type, Fp8Shape shape, ConstRows x, const Fp8Output& out,
                              cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Quantize<float> : Quantize<__nv_bfloat16>;
  return run(shape, x, out, stream);
}

cudaError_t LaunchFp8QuantizeWith(ElementType type, Fp8Shape shape, ConstRows x, const float* scale,
                                  MutableRows out, cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    constexpr int kN = kWide<T>;
    return AreWide<T, kN>(shape, x, out) ? QuantizeWith<T, kN> : QuantizeWith<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(shape, x, scale, out, stream);
}

cudaError_t LaunchFp8FromNf4(const Nf4Weight& weight, const float* scale, bool transposed,
                             MutableRows out, cudaStream_t stream) {
  if (weight.absmax != nullptr) {
    return FromNf4(weight, PlainAbsmax{weight.absmax}, scale, transposed, out, stream);
  }
  return FromNf4(weight, NestedAbsmax{weight.absmax_codes, weight.nested_absmax, weight.offset},
                 scale, transposed, out, stream);
}

cudaError_t LaunchFp8PlaceFactors(ElementType type, FactorShape shape, const FactorMembers& members,
                                  float scale, const float* row_scale, bool transposed,
                                  MutableRows matrix, cudaStream_t stream) {
  int64_t rank = 0;
  for (int m = 0; m < shape.members; ++m) rank += members.member[m].rank;
  if (rank == 0 || (transposed ? shape.columns : shape.rows) == 0) return cudaSuccess;
  const auto choose = [&]<typename T>(T) {
    constexpr int kN = kWide<T>;
    const bool wide = FactorsAreWide<T, kN>(shape, members, transposed, matrix);
    if (transposed) return wide ? PlaceFactors<T, kN, true> : PlaceFactors<T, 1, true>;
    return wide ? PlaceFactors<T, kN, false> : PlaceFactors<T, 1, false>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(shape, members, rank, scale, row_scale, matrix, stream);
}

}  // namespace sft::engine::cuda
