// The backward of a gated activation with all products of adapters that read its rows, in one pass
// over them.
//
// The rows are cut into tiles of a strip of columns (of gate, of up and of h alike) by some tokens,
// and the tiles, strip by strip, into as many equal runs as there are multiprocessors: a run may
// end in the middle of a strip. A block walks over its run: three tiles (gate, up, dh) are on their
// way through shared memory while one is worked on. Strips are as wide as the sums allow, so that
// what is read of a row at a time is long: with 128 bytes of it this ran at 2.1 TB/s on an H100.
// The gradients of gate and up and h itself replace the tile in place, and tensor cores then
// multiply them with the small factors: sums over tokens (the gradients of factors) stay in
// registers while the strip lasts, sums over columns (dxa) are of one tile. Both are partial and
// are added up in a fixed order by two small kernels.
#include <algorithm>

#include "worker/engine/cuda/kernels/gates.cuh"
#include "worker/engine/cuda/kernels/glu_factors.h"

namespace sft::engine::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kThreads = 512;
constexpr int kDxaWarps = 4;      // of the block's 16: each of the others has columns of one kind
constexpr int kGroupsOfKind = 4;  // of warps
constexpr int kTileSize = 8192;
constexpr int kStages = 3;
constexpr int kChunk = 8;  // bf16 of one 16-byte access
constexpr int kKinds = 3;  // gate, up, down
constexpr int kSumThreads = 256;
constexpr int kSumGroups = 4;  // of threads that share a sum over strips

// Columns of a block: what its sums leave room for in registers.
template <int R>
constexpr int kStrip = 4096 / R;
template <int R>
constexpr int kTokens = kTileSize / kStrip<R>;

// Rows of kChunks chunks of 16 bytes in shared memory. Chunks change places by row so that eight
// rows of one chunk, or eight chunks of a row, lie in different banks.
template <int kChunks>
__device__ __forceinline__ int ChunkAt(int row, int chunk) {
  constexpr int kRowsOfLine = kChunks < 8 ? 8 / kChunks : 1;
  const int turned = chunk ^ (row / kRowsOfLine & (kChunks < 8 ? kChunks - 1 : 7));
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
  Bf16 tiles[kStages][kKinds][kTileSize];  // gate, up, dh; then their results
  Bf16 xa[kStages][kTokens<R> * 2 * R];
  Bf16 dxa_down[kStages][kTokens<R> * R];
  Bf16 b[2][2][kStrip<R> * R];  // of gate, of up; of this strip and of the next
};

// How tiles are dealt out: strips of `tiles` each, end to end, to `runs` blocks.
struct Runs {
  int64_t strips = 0, tiles = 0;
  int runs = 0;

  __host__ __device__ int64_t total() const { return strips * tiles; }
  __host__ __device__ int64_t Begin(int64_t run) const { return total() * run / runs; }
  // The run that has a tile.
  __host__ __device__ int64_t Of(int64_t tile) const { return ((tile + 1) * runs - 1) / total(); }
  // Where a run's sums of a strip stand: from one to the next either the run changes, or the strip,
  // or both.
  __host__ __device__ static int64_t Place(int64_t run, int64_t strip) { return run + strip; }
};

template <int R>
__host__ __device__ Runs RunsOf(const GluFactorsShape& shape, int runs) {
  return {shape.width / kStrip<R>, (shape.tokens + kTokens<R> - 1) / kTokens<R>, runs};
}

template <int R, typename Gate>
class Block {
 public:
  static constexpr int kTileChunks = kStrip<R> / kChunk;
  static constexpr int kFactorChunks = R / kChunk;
  static constexpr int kParts = R / 8;  // accumulators of 8 ranks
  // Of a warp: groups of 16 columns of a kind; or pieces of 16 tokens of gate or of up.
  static constexpr int kColumnGroups = kStrip<R> / 16 / kGroupsOfKind;
  static constexpr int kPieces = kTokens<R> / 16 * 2 / kDxaWarps;

  __device__ Block(const GluFactorsShape& shape, const GluFactorsRows& rows,
                   const GluFactorsPartials& partials, Shared<R>& shared)
      : shape_(shape), rows_(rows), partials_(partials), shared_(shared) {
    const Runs runs = RunsOf<R>(shape, gridDim.x);
    tiles_of_strip_ = static_cast<int>(runs.tiles);
    first_tile_ = static_cast<int>(runs.Begin(blockIdx.x));
    tiles_ = static_cast<int>(runs.Begin(blockIdx.x + 1)) - first_tile_;
  }

  __device__ __forceinline__ void Run() {
    for (int tile = 0; tile < kStages - 1; ++tile) Copy(tile);
    for (int tile = 0; tile < tiles_; ++tile) {
      WaitForCopies<kStages - 2>();
      __syncthreads();  // all see this tile, and are done with the one before it
      Copy(tile + kStages - 1);
      Differentiate(tile);
      __syncthreads();
      if (Warp() < kDxaWarps) {
        StoreDxa(tile);
        continue;
      }
      AddGradients(tile);
      if (tile + 1 == tiles_ || IsFirst(tile + 1)) StoreGradients(StripOf(tile));
    }
  }

 private:
  __device__ static int Warp() { return threadIdx.x / kWarp; }
  __device__ Bf16* Tile(int tile, int kind) { return shared_.tiles[tile % kStages][kind]; }
  __device__ int StripOf(int tile) const { return (first_tile_ + tile) / tiles_of_strip_; }
  __device__ bool IsFirst(int tile) const { return (first_tile_ + tile) % tiles_of_strip_ == 0; }
  __device__ int64_t TokenOf(int tile) const {
    return static_cast<int64_t>((first_tile_ + tile) % tiles_of_strip_) * kTokens<R>;
  }
  __device__ int64_t ColumnOf(int tile) const {
    return static_cast<int64_t>(StripOf(tile)) * kStrip<R>;
  }

  // The factors of a strip.
  __device__ __forceinline__ void CopyB(int strip) {
    constexpr int kChunks = kStrip<R> * kFactorChunks;
    for (int i = threadIdx.x; i < kChunks; i += kThreads) {
      const int row = i / kFactorChunks, chunk = i % kFactorChunks;
      const int64_t from = (static_cast<int64_t>(strip) * kStrip<R> + row) * R + chunk * kChunk;
      const int to = ChunkAt<kFactorChunks>(row, chunk);
      CopyChunk(shared_.b[strip % 2][0] + to, rows_.b_gate + from, true);
      CopyChunk(shared_.b[strip % 2][1] + to, rows_.b_up + from, true);
    }
  }

  // Enqueues what a tile needs, as one group even where none is left.
  __device__ __forceinline__ void Copy(int tile) {
    if (tile < tiles_) {
      const int64_t token = TokenOf(tile), column = ColumnOf(tile);
      for (int i = threadIdx.x; i < kTileSize / kChunk; i += kThreads) {
        const int row = i / kTileChunks, chunk = i % kTileChunks;
        const bool there = token + row < shape_.tokens;
        const int64_t at = there ? token + row : 0;
        const int to = ChunkAt<kTileChunks>(row, chunk);
        const Bf16* gate = rows_.gate_up + at * rows_.gate_up_stride + column + chunk * kChunk;
        CopyChunk(Tile(tile, 0) + to, gate, there);
        CopyChunk(Tile(tile, 1) + to, gate + shape_.width, there);
        CopyChunk(Tile(tile, 2) + to, rows_.dy + at * rows_.dy_stride + column + chunk * kChunk,
                  there);
      }
      CopyRows<2 * kFactorChunks>(shared_.xa[tile % kStages], rows_.xa, rows_.xa_stride, token);
      CopyRows<kFactorChunks>(shared_.dxa_down[tile % kStages], rows_.dxa_down,
                              rows_.dxa_down_stride, token);
      if (tile == 0 || IsFirst(tile)) CopyB(StripOf(tile));
    }
    CommitCopies();
  }

  template <int kChunks>
  __device__ __forceinline__ void CopyRows(Bf16* to, const Bf16* from, int64_t stride,
                                           int64_t token) {
    for (int i = threadIdx.x; i < kTokens<R> * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const bool there = token + row < shape_.tokens;
      CopyChunk(to + ChunkAt<kChunks>(row, chunk),
                from + (there ? token + row : 0) * stride + chunk * kChunk, there);
    }
  }

  // gate, up, dh -> dgate, dup, h: in shared memory, and the first two in the rows. Their sums and
  // rounding are those of the plain kernels (elementwise.cu).
  __device__ __forceinline__ void Differentiate(int tile) {
    const int64_t token = TokenOf(tile), column = ColumnOf(tile);
#pragma unroll
    for (int i = threadIdx.x; i < kTileSize / kChunk; i += kThreads) {
      const int row = i / kTileChunks, chunk = i % kTileChunks;
      const int at = ChunkAt<kTileChunks>(row, chunk);
      float gates[kChunk], ups[kChunk], dys[kChunk];
      Load(Tile(tile, 0) + at, gates);
      Load(Tile(tile, 1) + at, ups);
      Load(Tile(tile, 2) + at, dys);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const GateGradients d = Gate::Backward(dys[j], gates[j], ups[j]);
        dys[j] = Gate::Product(gates[j], ups[j]);
        gates[j] = d.gate;
        ups[j] = d.up;
      }
      Store(Tile(tile, 0) + at, gates);
      Store(Tile(tile, 1) + at, ups);
      Store(Tile(tile, 2) + at, dys);
      if (token + row >= shape_.tokens) continue;
      Bf16* to = rows_.gate_up + (token + row) * rows_.gate_up_stride + column + chunk * kChunk;
      Store(to, gates);
      Store(to + shape_.width, ups);
    }
  }

  // partials.dxa [strips, tokens, 2 R]: a warp's tokens of the tile, of gate or of up, times the
  // factors of the strip.
  __device__ __forceinline__ void StoreDxa(int tile) {
    const int lane = threadIdx.x % kWarp;
    const int strip = StripOf(tile);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int kind = (Warp() * kPieces + piece) % 2, row = (Warp() * kPieces + piece) / 2 * 16;
      float sums[kParts][4] = {};
#pragma unroll 4
      for (int k = 0; k < kStrip<R> / 16; ++k) {
        Quad left;
        LoadLeft<kTileChunks>(left, Tile(tile, kind), row, 2 * k);
#pragma unroll
        for (int part = 0; part < kParts; part += 2) {
          Quad right;
          LoadRight<kFactorChunks>(right, shared_.b[strip % 2][kind], k * 16, part);
          Multiply(sums[part], left, right[0], right[1]);
          Multiply(sums[part + 1], left, right[2], right[3]);
        }
      }
      const int64_t token = TokenOf(tile) + row + lane / 4;
      float* to = partials_.dxa + (strip * shape_.tokens + token) * 2 * R + kind * R + lane % 4 * 2;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float* at = to + part * 8;
        if (token < shape_.tokens) {
          *reinterpret_cast<float2*>(at) = {sums[part][0], sums[part][1]};
        }
        if (token + 8 < shape_.tokens) {
          *reinterpret_cast<float2*>(at + 8 * 2 * R) = {sums[part][2], sums[part][3]};
        }
      }
    }
  }

  // A warp's columns of its kind, over the tile's tokens.
  __device__ __forceinline__ void AddGradients(int tile) {
    const int stage = tile % kStages;
    const bool down = Kind() == 2;
#pragma unroll
    for (int k = 0; k < kTokens<R> / 16; ++k) {
#pragma unroll
      for (int part = 0; part < kParts; part += 2) {
        Quad right;
        if (down) {
          LoadRight<kFactorChunks>(right, shared_.dxa_down[stage], k * 16, part);
        } else {
          LoadRight<2 * kFactorChunks>(right, shared_.xa[stage], k * 16,
                                       Kind() * kFactorChunks + part);
        }
#pragma unroll
        for (int group = 0; group < kColumnGroups; ++group) {
          Quad left;
          LoadLeftTransposed<kTileChunks>(left, Tile(tile, Kind()), k * 16,
                                          (FirstGroup() + group) * 2);
          Multiply(gradients_[group][part], left, right[0], right[1]);
          Multiply(gradients_[group][part + 1], left, right[2], right[3]);
        }
      }
    }
  }

  // partials.gradients [places, kinds, columns of a strip, R]
  __device__ __forceinline__ void StoreGradients(int strip) {
    const int lane = threadIdx.x % kWarp;
    float* to = partials_.gradients +
                (Runs::Place(blockIdx.x, strip) * kKinds + Kind()) * kStrip<R> * R +
                (FirstGroup() * 16 + lane / 4) * R + lane % 4 * 2;
#pragma unroll
    for (int group = 0; group < kColumnGroups; ++group) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float(&sums)[4] = gradients_[group][part];
        float* at = to + group * 16 * R + part * 8;
        *reinterpret_cast<float2*>(at) = {sums[0], sums[1]};
        *reinterpret_cast<float2*>(at + 8 * R) = {sums[2], sums[3]};
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
      }
    }
  }

  // Of a warp that adds gradients.
  __device__ static int Kind() { return (Warp() - kDxaWarps) / kGroupsOfKind; }
  __device__ static int FirstGroup() {
    return (Warp() - kDxaWarps) % kGroupsOfKind * kColumnGroups;
  }

  const GluFactorsShape& shape_;
  const GluFactorsRows& rows_;
  const GluFactorsPartials& partials_;
  Shared<R>& shared_;
  int tiles_of_strip_, first_tile_, tiles_;
  float gradients_[kColumnGroups][kParts][4] = {};
};

template <int R, typename Gate>
__global__ void __launch_bounds__(kThreads, 1)
    GluFactorsKernel(GluFactorsShape shape, GluFactorsRows rows, GluFactorsPartials partials) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block<R, Gate>(shape, rows, partials, *reinterpret_cast<Shared<R>*>(memory)).Run();
}

// dxa = scale * the sum over strips. A thread adds up every kSumGroups-th strip of four
// neighbouring ranks of a token, the first of its group then those sums.
__global__ void __launch_bounds__(kSumThreads)
    SumDxaKernel(const float* __restrict__ partials, int64_t strips, int64_t tokens, int ranks,
                 float scale, Bf16* __restrict__ dxa, int64_t stride) {
  constexpr int kPlaces = kSumThreads / kSumGroups;
  __shared__ float4 of_groups[kSumGroups][kPlaces];
  const int place = threadIdx.x % kPlaces, group = threadIdx.x / kPlaces;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kPlaces + place) * 4;
  const bool there = i < tokens * ranks;
  float sums[4] = {};
  if (there) {
#pragma unroll 8
    for (int64_t strip = group; strip < strips; strip += kSumGroups) {
      float x[4];
      Load(partials + strip * tokens * ranks + i, x);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[j] += x[j];
    }
  }
  of_groups[group][place] = {sums[0], sums[1], sums[2], sums[3]};
  __syncthreads();
  if (group > 0 || !there) return;
#pragma unroll
  for (int other = 1; other < kSumGroups; ++other) {
    const float4 x = of_groups[other][place];
    sums[0] += x.x;
    sums[1] += x.y;
    sums[2] += x.z;
    sums[3] += x.w;
  }
#pragma unroll
  for (float& sum : sums) sum *= scale;
  Store(dxa + i / ranks * stride + i % ranks, sums);
}

// A block has the gradient of a strip of one factor: [columns, R], of down's first its transpose.
template <int R>
__global__ void __launch_bounds__(kSumThreads)
    AddGradientsKernel(const float* __restrict__ partials, Runs runs, int64_t width, float scale,
                       GluFactorsGradients gradients) {
  constexpr int kElements = kStrip<R> * R, kOwn = kElements / kSumThreads;
  __shared__ float turned[kStrip<R> * (R + 1)];
  const int64_t strip = blockIdx.x;
  const int kind = static_cast<int>(blockIdx.y);
  float sums[kOwn] = {};
  const int64_t last = runs.Of((strip + 1) * runs.tiles - 1);
  for (int64_t run = runs.Of(strip * runs.tiles); run <= last; ++run) {
    const float* from = partials + (Runs::Place(run, strip) * kKinds + kind) * kElements;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sums[i] += from[i * kSumThreads + threadIdx.x];
  }
  if (kind < 2) {
    float* to = (kind == 0 ? gradients.b_gate : gradients.b_up) + strip * kElements;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[i * kSumThreads + threadIdx.x] += scale * sums[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int element = i * kSumThreads + static_cast<int>(threadIdx.x);
    turned[element / R * (R + 1) + element % R] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int element = i * kSumThreads + static_cast<int>(threadIdx.x);
    const int rank = element / kStrip<R>, column = element % kStrip<R>;
    gradients.a_down[rank * width + strip * kStrip<R> + column] += turned[column * (R + 1) + rank];
  }
}

int64_t StripWidth(int rank) { return rank == 16 ? kStrip<16> : kStrip<32>; }

template <int R, typename Gate>
cudaError_t Run(const GluFactorsShape& shape, const GluFactorsRows& rows,
                const GluFactorsPartials& partials, float scale,
                const GluFactorsGradients& gradients, MutableRows dxa, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<R>);
  if (const cudaError_t error = cudaFuncSetAttribute(
          GluFactorsKernel<R, Gate>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const Runs runs = RunsOf<R>(shape, partials.runs);
  GluFactorsKernel<R, Gate><<<partials.runs, kThreads, kBytes, stream>>>(shape, rows, partials);
  constexpr int kPlaces = kSumThreads / kSumGroups;
  const auto tokens = static_cast<unsigned>(CeilDiv(shape.tokens * 2 * R, kPlaces * 4));
  SumDxaKernel<<<tokens, kSumThreads, 0, stream>>>(partials.dxa, runs.strips, shape.tokens, 2 * R,
                                                   scale, static_cast<Bf16*>(dxa.data), dxa.stride);
  const dim3 strips(static_cast<unsigned>(runs.strips), kKinds);
  AddGradientsKernel<R>
      <<<strips, kSumThreads, 0, stream>>>(partials.gradients, runs, shape.width, scale, gradients);
  return cudaGetLastError();
}

}  // namespace

bool HasGluFactors(int64_t width, int64_t rank) {
  return (rank == 16 || rank == 32) && width % StripWidth(static_cast<int>(rank)) == 0;
}

GluFactorsSizes SizesOfGluFactors(const GluFactorsShape& shape, int multiprocessors) {
  const Runs one = shape.rank == 16 ? RunsOf<16>(shape, 1) : RunsOf<32>(shape, 1);
  // A block has room for the factors of two strips: where strips are of one tile it gets one.
  const int64_t runs =
      one.tiles == 1 ? one.strips : std::min<int64_t>(multiprocessors, one.total());
  const int64_t factors = StripWidth(shape.rank) * shape.rank;
  return {.runs = static_cast<int>(runs),
          .dxa = one.strips * shape.tokens * 2 * shape.rank,
          .gradients = (runs + one.strips) * kKinds * factors};
}

cudaError_t LaunchGluFactorsBackward(const GluFactorsShape& shape, const GluFactorsRows& rows,
                                     const GluFactorsPartials& partials, plan::ActivationKind kind,
                                     float scale, const GluFactorsGradients& gradients,
                                     MutableRows dxa, cudaStream_t stream) {
  return WithGate(kind, [&]<typename Gate>(Gate) {
    const auto run = shape.rank == 16 ? Run<16, Gate> : Run<32, Gate>;
    return run(shape, rows, partials, scale, gradients, dxa, stream);
  });
}

}  // namespace sft::engine::cuda
