// The backward of SwiGLU with all products of adapters that read its rows, in one pass over them.
//
// A block owns a strip of columns (of gate, of up and of h alike) and a range of tokens. It walks
// over tiles of kTokens x kColumns: three of them (gate, up, dh) are on their way through shared
// memory while one is worked on. The gradients of gate and up and h itself replace the tile in
// place, and tensor cores then multiply them with the small factors: sums over tokens (the
// gradients of factors) stay in registers for the block's whole range, sums over columns (dxa) for
// one tile of tokens. Both are partial and are added up in a fixed order by two small kernels.
#include <algorithm>

#include "worker/engine/cuda/kernels/swiglu_factors.h"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kTokens = 128;
constexpr int kColumns = 64;
constexpr int kThreads = 256;
constexpr int kStages = 3;
constexpr int kChunk = 8;  // bf16 of one 16-byte access
constexpr int kKinds = 3;  // gate, up, down
constexpr int kMostSplits = 8;

// Columns of a block: what its sums leave room for in registers.
template <int R>
constexpr int kStrip = 4096 / R;

__device__ __forceinline__ float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// Rows of kChunks chunks of 16 bytes in shared memory. Chunks change places by row so that eight
// rows of one chunk, or eight chunks of a row, lie in different banks.
template <int kChunks>
__device__ __forceinline__ int ChunkAt(int row, int chunk) {
  constexpr int kRowsOfLine = 8 / kChunks;
  const int turned = chunk ^ (row / kRowsOfLine & (kChunks - 1));
  return (row * kChunks + turned) * kChunk;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Enqueues a copy of 16 bytes; of zeros where not `there`.
__device__ __forceinline__ void CopyChunk(Bf16* to, const Bf16* from, bool there) {
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)), "l"(from),
               "r"(bytes));
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

using Quad = uint32_t[4];

__device__ __forceinline__ void LoadMatrices(Quad& to, const Bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(from)));
}
__device__ __forceinline__ void LoadTransposed(Quad& to, const Bf16* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(SharedAddress(from)));
}
// sums += a [16 x 16] b [16 x 8]
__device__ __forceinline__ void Multiply(float (&sums)[4], const Quad& a, uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A [16 x 16] part of rows as the first operand: rows by `row`, or their transpose.
template <int kChunks>
__device__ __forceinline__ void LoadLeft(Quad& to, const Bf16* rows, int row, int chunk) {
  const int lane = threadIdx.x % kWarp;
  LoadMatrices(to, rows + ChunkAt<kChunks>(row + lane % 16, chunk + lane / 16));
}
template <int kChunks>
__device__ __forceinline__ void LoadLeftTransposed(Quad& to, const Bf16* rows, int row, int chunk) {
  const int lane = threadIdx.x % kWarp;
  LoadTransposed(to, rows + ChunkAt<kChunks>(row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
}
// [16 x 16] as the second operand: to[0], to[1] are its first eight columns.
template <int kChunks>
__device__ __forceinline__ void LoadRight(Quad& to, const Bf16* rows, int row, int chunk) {
  const int lane = threadIdx.x % kWarp;
  LoadTransposed(to, rows + ChunkAt<kChunks>(row + lane % 16, chunk + lane / 16));
}

template <int R>
struct Shared {
  Bf16 tiles[kStages][kKinds][kTokens * kColumns];  // gate, up, dh; then their results
  Bf16 xa[2][kTokens * 2 * R];
  Bf16 dxa_down[2][kTokens * R];
  Bf16 b[2][kStrip<R> * R];  // of gate, of up
};

template <int R>
class Block {
 public:
  static constexpr int kSubTiles = kStrip<R> / kColumns;
  static constexpr int kTileChunks = kColumns / kChunk;
  static constexpr int kFactorChunks = R / kChunk;
  static constexpr int kParts = R / 8;  // accumulators of 8 ranks

  __device__ Block(const SwigluFactorsShape& shape, const SwigluFactorsRows& rows,
                   const SwigluFactorsPartials& partials, Shared<R>& shared)
      : shape_(shape), rows_(rows), partials_(partials), shared_(shared) {
    const int64_t tiles = CeilTokens(shape.tokens);
    first_tile_ = tiles * blockIdx.y / gridDim.y;
    last_tile_ = tiles * (blockIdx.y + 1) / gridDim.y;
    first_column_ = static_cast<int64_t>(blockIdx.x) * kStrip<R>;
  }

  __device__ __forceinline__ void Run() {
    const int steps = static_cast<int>(last_tile_ - first_tile_) * kSubTiles;
    CopyB();
    for (int step = 0; step < kStages - 1; ++step) Copy(step, steps);
    for (int step = 0; step < steps; step += kSubTiles) {
#pragma unroll
      for (int sub = 0; sub < kSubTiles; ++sub) Step(step + sub, sub, steps);
      StoreDxa(first_tile_ + step / kSubTiles);
    }
    StoreGradients();
  }

 private:
  __device__ static int64_t CeilTokens(int64_t tokens) { return (tokens + kTokens - 1) / kTokens; }
  __device__ static int Warp() { return threadIdx.x / kWarp; }
  __device__ Bf16* Tile(int step, int kind) { return shared_.tiles[step % kStages][kind]; }

  // The factors of the strip, for the whole run.
  __device__ __forceinline__ void CopyB() {
    constexpr int kChunks = kStrip<R> * kFactorChunks;
    for (int i = threadIdx.x; i < kChunks; i += kThreads) {
      const int row = i / kFactorChunks, chunk = i % kFactorChunks;
      const int64_t from = (first_column_ + row) * R + chunk * kChunk;
      const int to = ChunkAt<kFactorChunks>(row, chunk);
      CopyChunk(shared_.b[0] + to, rows_.b_gate + from, true);
      CopyChunk(shared_.b[1] + to, rows_.b_up + from, true);
    }
  }

  // Enqueues what a step reads, as one group even where nothing is left.
  __device__ __forceinline__ void Copy(int step, int steps) {
    if (step < steps) {
      const int64_t token = (first_tile_ + step / kSubTiles) * kTokens;
      const int64_t column = first_column_ + step % kSubTiles * kColumns;
      for (int i = threadIdx.x; i < kTokens * kTileChunks; i += kThreads) {
        const int row = i / kTileChunks, chunk = i % kTileChunks;
        const bool there = token + row < shape_.tokens;
        const int64_t at = there ? token + row : 0;
        const int to = ChunkAt<kTileChunks>(row, chunk);
        const Bf16* gate = rows_.gate_up + at * rows_.gate_up_stride + column + chunk * kChunk;
        CopyChunk(Tile(step, 0) + to, gate, there);
        CopyChunk(Tile(step, 1) + to, gate + shape_.width, there);
        CopyChunk(Tile(step, 2) + to, rows_.dy + at * rows_.dy_stride + column + chunk * kChunk,
                  there);
      }
      if (step % kSubTiles == 0) CopyFactorRows(step / kSubTiles, token);
    }
    CommitCopies();
  }

  __device__ __forceinline__ void CopyFactorRows(int tile, int64_t token) {
    CopyRows<2 * kFactorChunks>(shared_.xa[tile % 2], rows_.xa, rows_.xa_stride, token);
    CopyRows<kFactorChunks>(shared_.dxa_down[tile % 2], rows_.dxa_down, rows_.dxa_down_stride,
                            token);
  }

  template <int kChunks>
  __device__ __forceinline__ void CopyRows(Bf16* to, const Bf16* from, int64_t stride,
                                           int64_t token) {
    for (int i = threadIdx.x; i < kTokens * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const bool there = token + row < shape_.tokens;
      CopyChunk(to + ChunkAt<kChunks>(row, chunk),
                from + (there ? token + row : 0) * stride + chunk * kChunk, there);
    }
  }

  __device__ __forceinline__ void Step(int step, int sub, int steps) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // all see this step's tile, and are done with the one before it
    Copy(step + kStages - 1, steps);
    Differentiate(step, sub);
    __syncthreads();
    AddDxa(step, sub);
    AddGradients(step, sub);
  }

  // gate, up, dh -> dgate, dup, h: in shared memory, and the first two in the rows. Their sums and
  // rounding are those of the plain kernels (elementwise.cu).
  __device__ __forceinline__ void Differentiate(int step, int sub) {
    const int64_t token = (first_tile_ + step / kSubTiles) * kTokens;
    const int64_t column = first_column_ + sub * kColumns;
#pragma unroll 2
    for (int i = threadIdx.x; i < kTokens * kTileChunks; i += kThreads) {
      const int row = i / kTileChunks, chunk = i % kTileChunks;
      const int at = ChunkAt<kTileChunks>(row, chunk);
      float gates[kChunk], ups[kChunk], dys[kChunk];
      Load(Tile(step, 0) + at, gates);
      Load(Tile(step, 1) + at, ups);
      Load(Tile(step, 2) + at, dys);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const float g = gates[j], s = Sigmoid(g), h = g * s * ups[j];
        gates[j] = dys[j] * ups[j] * s * (1.0f + g * (1.0f - s));
        ups[j] = dys[j] * g * s;
        dys[j] = h;
      }
      Store(Tile(step, 0) + at, gates);
      Store(Tile(step, 1) + at, ups);
      Store(Tile(step, 2) + at, dys);
      if (token + row >= shape_.tokens) continue;
      Bf16* to = rows_.gate_up + (token + row) * rows_.gate_up_stride + column + chunk * kChunk;
      Store(to, gates);
      Store(to + shape_.width, ups);
    }
  }

  // A warp's 16 tokens of the tile times the factors of 64 columns.
  __device__ __forceinline__ void AddDxa(int step, int sub) {
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
#pragma unroll
      for (int kind = 0; kind < 2; ++kind) {
        Quad left;
        LoadLeft<kTileChunks>(left, Tile(step, kind), Warp() * 16, 2 * k);
#pragma unroll
        for (int part = 0; part < kParts; part += 2) {
          Quad right;
          LoadRight<kFactorChunks>(right, shared_.b[kind], sub * kColumns + k * 16, part);
          Multiply(dxa_[kind][part], left, right[0], right[1]);
          Multiply(dxa_[kind][part + 1], left, right[2], right[3]);
        }
      }
    }
  }

  // A warp's 16 columns, over its half of the tile's tokens.
  __device__ __forceinline__ void AddGradients(int step, int sub) {
    const int tile = step / kSubTiles % 2;
    const int columns = Warp() / 2 * 2;  // in chunks
#pragma unroll
    for (int k = 0; k < kTokens / 2 / 16; ++k) {
      const int token = Warp() % 2 * (kTokens / 2) + k * 16;
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        Quad left;
        LoadLeftTransposed<kTileChunks>(left, Tile(step, kind), token, columns);
#pragma unroll
        for (int part = 0; part < kParts; part += 2) {
          Quad right;
          if (kind < 2) {
            LoadRight<2 * kFactorChunks>(right, shared_.xa[tile], token,
                                         kind * kFactorChunks + part);
          } else {
            LoadRight<kFactorChunks>(right, shared_.dxa_down[tile], token, part);
          }
          Multiply(gradients_[sub][kind][part], left, right[0], right[1]);
          Multiply(gradients_[sub][kind][part + 1], left, right[2], right[3]);
        }
      }
    }
  }

  // partials.dxa [strips, tokens, 2 R]
  __device__ __forceinline__ void StoreDxa(int64_t tile) {
    const int lane = threadIdx.x % kWarp;
    const int64_t token = tile * kTokens + Warp() * 16 + lane / 4;
    float* to = partials_.dxa + (static_cast<int64_t>(blockIdx.x) * shape_.tokens + token) * 2 * R +
                lane % 4 * 2;
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float(&sums)[4] = dxa_[kind][part];
        float* at = to + kind * R + part * 8;
        if (token < shape_.tokens) *reinterpret_cast<float2*>(at) = {sums[0], sums[1]};
        if (token + 8 < shape_.tokens) {
          *reinterpret_cast<float2*>(at + 8 * 2 * R) = {sums[2], sums[3]};
        }
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
      }
    }
  }

  // partials.gradients [splits, kinds, width, R]; the two halves of the tokens meet in shared
  // memory.
  __device__ __forceinline__ void StoreGradients() {
    constexpr int kPlaces = kThreads / 2;  // one a pair of threads
    float* own = reinterpret_cast<float*>(shared_.tiles) + Warp() / 2 * kWarp + threadIdx.x % kWarp;
    __syncthreads();
    if (Warp() % 2 == 1) {
      ForEachGradient([&](int i, float sum, int, int, int) { own[i * kPlaces] = sum; });
    }
    __syncthreads();
    if (Warp() % 2 == 1) return;
    float* to = partials_.gradients + static_cast<int64_t>(blockIdx.y) * kKinds * shape_.width * R;
    ForEachGradient([&](int i, float sum, int kind, int column, int rank) {
      const int64_t row = kind * shape_.width + first_column_ + column;
      to[row * R + rank] = sum + own[i * kPlaces];
    });
  }

  template <typename Visit>
  __device__ __forceinline__ void ForEachGradient(const Visit& visit) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int sub = 0; sub < kSubTiles; ++sub) {
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = sub * kColumns + Warp() / 2 * 16 + lane / 4 + i / 2 * 8;
            const int rank = part * 8 + lane % 4 * 2 + i % 2;
            visit(((sub * kKinds + kind) * kParts + part) * 4 + i, gradients_[sub][kind][part][i],
                  kind, column, rank);
          }
        }
      }
    }
  }

  const SwigluFactorsShape& shape_;
  const SwigluFactorsRows& rows_;
  const SwigluFactorsPartials& partials_;
  Shared<R>& shared_;
  int64_t first_tile_, last_tile_, first_column_;
  float gradients_[kSubTiles][kKinds][kParts][4] = {};
  float dxa_[2][kParts][4] = {};
};

template <int R>
__global__ void __launch_bounds__(kThreads, 1)
    SwigluFactorsKernel(SwigluFactorsShape shape, SwigluFactorsRows rows,
                        SwigluFactorsPartials partials) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block<R>(shape, rows, partials, *reinterpret_cast<Shared<R>*>(memory)).Run();
}

// dxa = scale * the sum over strips; a thread has four neighbouring ranks of a token.
__global__ void __launch_bounds__(kThreads)
    SumDxaKernel(const float* __restrict__ partials, int64_t strips, int64_t tokens, int ranks,
                 float scale, Bf16* __restrict__ dxa, int64_t stride) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= tokens * ranks) return;
  float sums[4] = {};
#pragma unroll 8
  for (int64_t strip = 0; strip < strips; ++strip) {
    float x[4];
    Load(partials + strip * tokens * ranks + i, x);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] += x[j];
  }
#pragma unroll
  for (float& sum : sums) sum *= scale;
  Store(dxa + i / ranks * stride + i % ranks, sums);
}

// A thread has a row of the gradient of a second factor, or a column of that of down's first.
template <int R>
__global__ void __launch_bounds__(kThreads)
    AddGradientsKernel(const float* __restrict__ partials, int splits, int64_t width, float scale,
                       SwigluFactorsGradients gradients) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int kind = static_cast<int>(blockIdx.y);
  if (column >= width) return;
  float sums[R] = {};
  for (int split = 0; split < splits; ++split) {
    const float* from = partials + ((split * kKinds + kind) * width + column) * R;
#pragma unroll
    for (int rank = 0; rank < R; rank += 4) {
      float x[4];
      Load(from + rank, x);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[rank + j] += x[j];
    }
  }
  if (kind == 2) {
#pragma unroll
    for (int rank = 0; rank < R; ++rank) gradients.a_down[rank * width + column] += sums[rank];
    return;
  }
  float* to = (kind == 0 ? gradients.b_gate : gradients.b_up) + column * R;
#pragma unroll
  for (int rank = 0; rank < R; ++rank) to[rank] += scale * sums[rank];
}

int64_t StripOf(int rank) { return rank == 16 ? kStrip<16> : kStrip<32>; }

// As many parts of the tokens as fill the multiprocessors best, each with a block of its own.
int Splits(const SwigluFactorsShape& shape, int multiprocessors) {
  const int64_t strips = shape.width / StripOf(shape.rank);
  const int64_t tiles = CeilDiv(shape.tokens, kTokens);
  int best = 1;
  double most = 0.0;
  for (int splits = 1; splits <= std::min<int64_t>(kMostSplits, tiles); ++splits) {
    const int64_t waves = CeilDiv(strips * splits, multiprocessors);
    // The longest block of a wave decides.
    const double used = static_cast<double>(strips * tiles) /
                        static_cast<double>(waves * CeilDiv(tiles, splits) * multiprocessors);
    if (used > most * 1.02) {
      most = used;
      best = splits;
    }
  }
  return best;
}

template <int R>
cudaError_t Run(const SwigluFactorsShape& shape, const SwigluFactorsRows& rows,
                const SwigluFactorsPartials& partials, float scale,
                const SwigluFactorsGradients& gradients, MutableRows dxa, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<R>);
  if (const cudaError_t error = cudaFuncSetAttribute(
          SwigluFactorsKernel<R>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const int64_t strips = shape.width / kStrip<R>;
  const dim3 blocks(static_cast<unsigned>(strips), static_cast<unsigned>(partials.splits));
  SwigluFactorsKernel<R><<<blocks, kThreads, kBytes, stream>>>(shape, rows, partials);
  const auto tokens = static_cast<unsigned>(CeilDiv(shape.tokens * 2 * R, kThreads * 4));
  SumDxaKernel<<<tokens, kThreads, 0, stream>>>(partials.dxa, strips, shape.tokens, 2 * R, scale,
                                                static_cast<Bf16*>(dxa.data), dxa.stride);
  const dim3 columns(static_cast<unsigned>(CeilDiv(shape.width, kThreads)), kKinds);
  AddGradientsKernel<R><<<columns, kThreads, 0, stream>>>(partials.gradients, partials.splits,
                                                          shape.width, scale, gradients);
  return cudaGetLastError();
}

}  // namespace

bool HasSwigluFactors(int64_t width, int64_t rank) {
  return (rank == 16 || rank == 32) && width % StripOf(static_cast<int>(rank)) == 0;
}

SwigluFactorsSizes SizesOfSwigluFactors(const SwigluFactorsShape& shape, int multiprocessors) {
  const int splits = Splits(shape, multiprocessors);
  return {.splits = splits,
          .dxa = shape.width / StripOf(shape.rank) * shape.tokens * 2 * shape.rank,
          .gradients = splits * kKinds * shape.width * shape.rank};
}

cudaError_t LaunchSwigluFactorsBackward(const SwigluFactorsShape& shape,
                                        const SwigluFactorsRows& rows,
                                        const SwigluFactorsPartials& partials, float scale,
                                        const SwigluFactorsGradients& gradients, MutableRows dxa,
                                        cudaStream_t stream) {
  const auto run = shape.rank == 16 ? Run<16> : Run<32>;
  return run(shape, rows, partials, scale, gradients, dxa, stream);
}

}  // namespace sft::engine::cuda
