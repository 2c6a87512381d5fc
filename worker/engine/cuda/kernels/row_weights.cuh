// Weights of products of few rows (row_product.cu), as a warp loads and multiplies them.
#pragma once

#include <type_traits>

#include "worker/engine/cuda/kernels/mma.cuh"
#include "worker/engine/cuda/kernels/nf4.cuh"
#include "worker/engine/cuda/kernels/row_product.h"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kOutputs = kNf4TileOutputs;  // of one tile

template <int kEights, int kTiles>
using Sums = float[kTiles][kEights][4];

template <int kEights>
using RowPointers = const Bf16* const[kEights];

// Where a warp is in its steps of one tile after the other; a tile is kOutputs outputs.
struct Cursor {
  int tile, tiles, stride, step, steps, first_step;

  __device__ __forceinline__ void Advance() {
    step += kWarps;
    if (step < steps) return;
    step = first_step;
    tile += stride;
  }
  // Beyond the last nothing is loaded: that all blocks would load the same would take long.
  __device__ __forceinline__ bool Ended() const { return tile >= tiles || step >= steps; }
};

// Loads the weights of a warp's next kAhead steps into registers.
template <typename Weights, int kTiles, int kAhead>
class InRegisters {
 public:
  static constexpr int kBytes = 0;
  using Part = typename Weights::Part;

  __device__ __forceinline__ InRegisters(const Weights& weights, Cursor cursor, int lane,
                                         unsigned char*)
      : weights_(weights), cursor_(cursor), lane_(lane) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) Load(parts_[ahead]);
  }
  __device__ __forceinline__ void Take(Part (&parts)[kTiles]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      parts[m] = parts_[0][m];
#pragma unroll
      for (int ahead = 1; ahead < kAhead; ++ahead) parts_[ahead - 1][m] = parts_[ahead][m];
    }
    Load(parts_[kAhead - 1]);
  }

 private:
  __device__ __forceinline__ void Load(Part (&parts)[kTiles]) {
    if (cursor_.Ended()) return;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      parts[m] = weights_.Load(cursor_.tile + m, cursor_.step, lane_);
    }
    cursor_.Advance();
  }

  const Weights& weights_;
  Cursor cursor_;
  int lane_;
  Part parts_[kAhead][kTiles];
};

// The same in shared memory, where a lane reads what it copied itself.
template <typename Weights, int kTiles, int kAhead>
class InSharedMemory {
 public:
  static constexpr int kBytes = kAhead * kTiles * Weights::kPieces * kWarps * kWarp * 16;
  using Part = typename Weights::Part;

  __device__ __forceinline__ InSharedMemory(const Weights& weights, Cursor cursor, int lane,
                                            unsigned char* memory)
      : weights_(weights),
        cursor_(cursor),
        lane_(lane),
        memory_(reinterpret_cast<uint4*>(memory) + threadIdx.x) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) Copy();
  }
  __device__ __forceinline__ void Take(Part (&parts)[kTiles]) {
    WaitForGroups<kAhead - 1>();
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      uint4 pieces[Weights::kPieces];
#pragma unroll
      for (int i = 0; i < Weights::kPieces; ++i) pieces[i] = *PieceAt(m, i);
      parts[m] = Weights::PartOf(pieces);
    }
    Copy();
  }

 private:
  __device__ __forceinline__ uint4* PieceAt(int tile, int piece) const {
    return memory_ + ((slot_ * kTiles + tile) * Weights::kPieces + piece) * (kWarps * kWarp);
  }
  __device__ __forceinline__ void Copy() {
    if (!cursor_.Ended()) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < Weights::kPieces; ++i) {
          CopyAsync(PieceAt(m, i), weights_.PieceAt(cursor_.tile + m, cursor_.step, i, lane_),
                    true);
        }
      }
      cursor_.Advance();
    }
    EndGroup();
    slot_ = slot_ + 1 == kAhead ? 0 : slot_ + 1;
  }

  const Weights& weights_;
  Cursor cursor_;
  int lane_;
  uint4* memory_;
  int slot_ = 0;  // the oldest
};

// Weights as bf16 rows. Lane l has inputs [c, c + kStep / 4) of a step, c = l % 4 * kStep / 4: one
// wide access.
template <int kInputs>
struct PlainWeights {
  static constexpr int kStep = kInputs;
  using Values = Vec<Bf16, kStep / 4>;
  struct Part {
    Values halves[2];
  };
  struct Shared {};
  template <int kEights, int kTiles>
  using Stream = InRegisters<PlainWeights, kTiles, (kEights * kTiles > 4 ? 1 : 3)>;

  const Bf16* rows;
  int64_t stride, outputs;

  static __device__ __forceinline__ void Prepare(Shared&) {}
  static __device__ __forceinline__ int FirstInput(int lane) { return lane % 4 * (kStep / 4); }

  __device__ __forceinline__ Part Load(int tile, int step, int lane) const {
    Part part;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // rows beyond the last read it again
      const int64_t row = min(int64_t{tile} * kOutputs + half * 8 + lane / 4, outputs - 1);
      part.halves[half] = *reinterpret_cast<const Values*>(
          rows + row * stride + int64_t{step} * kStep + FirstInput(lane));
    }
    return part;
  }

  // Adds the products of one step to the sums.
  template <int kEights, int kTiles>
  static __device__ __forceinline__ void TakeStep(Sums<kEights, kTiles>& d,
                                                  const Part (&parts)[kTiles],
                                                  RowPointers<kEights>& rows, int step,
                                                  const Shared&, int) {
    Values held[kEights];
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      held[n] = *reinterpret_cast<const Values*>(rows[n] + step * kStep);
    }
#pragma unroll
    for (int i = 0; i < kStep / 16; ++i) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const auto* b = reinterpret_cast<const uint32_t*>(held[n].values) + 2 * i;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const auto* low = reinterpret_cast<const uint32_t*>(parts[m].halves[0].values) + 2 * i;
          const auto* high = reinterpret_cast<const uint32_t*>(parts[m].halves[1].values) + 2 * i;
          MultiplyAdd(d[m][n], {low[0], high[0], low[1], high[1]}, b[0], b[1]);
        }
      }
    }
  }
};

// Weights as NF4 in the order of LaunchNf4RowProduct. A step is two blocks of an absmax; lane l has
// inputs [c, c + 16) of each, c = l % 4 * 16. The sums over a block are made of the codes' values
// alone, rounded to bf16, and then multiplied by its absmax.
struct Nf4Weights {
  static constexpr int kStep = kNf4TileInputs, kBlocks = kStep / kNf4Block;
  struct Part {
    uint4 codes[2];            // of both halves: eight bytes of each block
    float absmax[2][kBlocks];  // of both halves
  };
  // With few rows, blocks of two to a multiprocessor have room for four steps each.
  template <int kEights, int kTiles>
  using Stream = std::conditional_t<kEights * kTiles <= 2, InSharedMemory<Nf4Weights, kTiles, 4>,
                                    InRegisters<Nf4Weights, kTiles, 1>>;

  const uint8_t* codes;
  const float* absmax;
  int steps, tiles;

  // The values of the two codes of a byte as a pair, a copy for each lane, in a bank of its own.
  struct Shared {
    uint32_t pairs[256 * kWarp];
  };
  static __device__ __forceinline__ void Prepare(Shared& shared) {
    static_assert(kWarps * kWarp == 256);            // a thread a byte
    const int byte = static_cast<int>(threadIdx.x);  // the first code is the high one
    const uint32_t pair = PackPair(nf4_values.values[byte / 16], nf4_values.values[byte % 16]);
    auto* copies = reinterpret_cast<uint4*>(shared.pairs + byte * kWarp);
#pragma unroll
    for (int i = 0; i < kWarp / 4; ++i) {  // neighbours write to different banks
      copies[(i + byte) % (kWarp / 4)] = make_uint4(pair, pair, pair, pair);
    }
    __syncthreads();
  }
  static __device__ __forceinline__ int FirstInput(int lane) { return lane % 4 * 16; }

  // A part comes in pieces of 16 bytes.
  static constexpr int kPieces = 3;
  __device__ __forceinline__ const uint4* PieceAt(int tile, int step, int piece, int lane) const {
    const int at = min(tile, tiles - 1) * steps + step;
    return piece < 2
               ? reinterpret_cast<const uint4*>(codes) + lane + piece * kWarp +
                     int64_t{at} * (2 * kWarp)
               : reinterpret_cast<const uint4*>(absmax) + lane / 4 + int64_t{at} * (kWarp / 4);
  }
  static __device__ __forceinline__ Part PartOf(const uint4 (&pieces)[kPieces]) {
    const auto* scales = reinterpret_cast<const float*>(&pieces[2]);
    return {{pieces[0], pieces[1]}, {{scales[0], scales[1]}, {scales[2], scales[3]}}};
  }
  __device__ __forceinline__ Part Load(int tile, int step, int lane) const {
    uint4 pieces[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = __ldcs(PieceAt(tile, step, i, lane));
    return PartOf(pieces);
  }

  template <int kEights, int kTiles>
  static __device__ __forceinline__ void TakeStep(Sums<kEights, kTiles>& d,
                                                  const Part (&parts)[kTiles],
                                                  RowPointers<kEights>& rows, int step,
                                                  const Shared& shared, int lane) {
    const auto pair = [&](uint32_t shifted) {  // of the byte in bits 5 to 12
      return shared.pairs[(shifted & (255 * kWarp)) | static_cast<uint32_t>(lane)];
    };
    using Values = Vec<Bf16, 8>;
    const auto load = [&](int n, int at) {  // eight inputs of the step's 32
      return *reinterpret_cast<const Values*>(rows[n] + step * kStep + at / 2 * kNf4Block +
                                              at % 2 * 8);
    };
    // With few rows, all their elements are loaded before the first is wanted.
    Values held[4];
    if constexpr (kEights == 1) {
#pragma unroll
      for (int at = 0; at < 4; ++at) held[at] = load(0, at);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      uint32_t a[kTiles][4][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto* words = reinterpret_cast<const uint32_t*>(&parts[m].codes[half]) + 2 * block;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t word = words[i / 2];
            a[m][i][half] = pair(i % 2 == 0 ? word << 5 : word >> 11);
            a[m][i][half + 2] = pair(i % 2 == 0 ? word >> 3 : word >> 19);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        if constexpr (kEights > 1) {
          held[2 * block] = load(n, 2 * block);
          held[2 * block + 1] = load(n, 2 * block + 1);
        }
        float sums[kTiles][4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto* b =
              reinterpret_cast<const uint32_t*>(held[2 * block + i / 2].values) + i % 2 * 2;
#pragma unroll
          for (int m = 0; m < kTiles; ++m) MultiplyAdd(sums[m], a[m][i], b[0], b[1]);
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            d[m][n][i] = fmaf(parts[m].absmax[i / 2][block], sums[m][i], d[m][n][i]);
          }
        }
      }
    }
  }
};

}  // namespace
}  // namespace sft::engine::cuda
