// What the kernels that multiply groups of rows have in common (grouped_gemm.cu, grouped_fp8.cu):
// tiles by ticket, operands on their way through stages of shared memory, and results. One thread
// fetches, two warp groups multiply.
//
// A stage holds 128 bytes of each row of a and of each output's part of b, swizzled: 64 elements of
// the sum in bf16, 128 in FP8.
#pragma once

#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/group_tiles.cuh"
#include "worker/engine/cuda/kernels/grouped_gemm.h"
#include "worker/engine/cuda/kernels/hopper.cuh"
#include "worker/engine/cuda/kernels/tensor_map.h"
#include "worker/engine/cuda/kernels/vec.cuh"

// Suffixes: M rows of a tile, N outputs of a tile.

namespace sft::engine::cuda {

inline constexpr int kM = 128;
inline constexpr int kStageBytes = 128;   // of a row
inline constexpr int kBf16OfStage = 64;   // elements of the sum
inline constexpr int kPartBytes = 32;     // of a row, that one instruction multiplies
inline constexpr int kGemmThreads = 384;  // one warp group fetches, two multiply
inline constexpr int kGemmWarps = 8;      // that multiply
inline constexpr int kFetchRegisters = 40, kMultiplyRegisters = 232;  // of a thread
inline constexpr int kTickets = 2;
inline constexpr int kMaxShared = 227 * 1024;
// Tiles of 192 outputs take so much longer for an output than tiles of 256.
inline constexpr double kNarrower = 1.03;

template <int kN>
struct GemmShared {
  // As many stages as fit, beside what results pass through.
  static constexpr int kStages = kN == 256 ? 4 : kN == 192 ? 5 : 6;

  alignas(1024) uint8_t a[kStages][kM * kStageBytes];
  alignas(1024) uint8_t b[kStages][kN * kStageBytes];
  alignas(1024) __nv_bfloat16 out[kGemmWarps][16 * 64];
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t ticket_full[kTickets], ticket_empty[kTickets];
  int tickets[kTickets];  // numbers of tiles on their way to the warp groups that multiply
  GroupTable table;
};
static_assert(sizeof(GemmShared<256>) + 1024 <= kMaxShared);
static_assert(sizeof(GemmShared<192>) + 1024 <= kMaxShared);

// `Gemm` below: GroupedProduct or GroupedFp8Product.

// 128 rows of a group, as many of them as there are, by kN outputs.
struct GemmTile {
  int group, first_row, rows, first_output;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

inline constexpr int kRowsOfWarpGroup = 64;
// Tiles of so many rows are taken one below the other before the next outputs.
inline constexpr int kTall = 16;

template <int kN>
__device__ __forceinline__ GemmShared<kN>& SharedOf(uint8_t* bytes) {
  return *reinterpret_cast<GemmShared<kN>*>((reinterpret_cast<uintptr_t>(bytes) + 1023) &
                                            ~uintptr_t{1023});
}

// Makes barriers and table; all threads of the block call it.
template <int kN, typename Gemm>
__device__ __forceinline__ void Prepare(GemmShared<kN>& s, const Gemm& gemm) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < GemmShared<kN>::kStages; ++i) {
      InitBarrier(&s.full[i], 1);
      InitBarrier(&s.empty[i], kGemmWarps);
    }
    for (int i = 0; i < kTickets; ++i) {
      InitBarrier(&s.ticket_full[i], 1);
      InitBarrier(&s.ticket_empty[i], kGemmWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    OrderShared();
  }
  const int wide = (gemm.outputs + kN - 1) / kN;
  FillTable(s.table, gemm.begins, gemm.groups,
            [&](int rows) { return (rows + kM - 1) / kM * wide; });
}

template <int kN, typename Gemm>
__device__ __forceinline__ bool Locate(const Gemm& gemm, const GroupTable& table, int number,
                                       GemmTile* tile) {
  if (number >= table.tiles[gemm.groups]) return false;
  const int g = GroupOf(table, gemm.groups, number);
  const int begin = table.begins[g], rows = table.begins[g + 1] - begin;
  const int tall = (rows + kM - 1) / kM, wide = (gemm.outputs + kN - 1) / kN;
  const int local = number - table.tiles[g];
  const int band = local / (kTall * wide), within = local % (kTall * wide);
  const int height = min(kTall, tall - band * kTall);
  const int m = band * kTall + within % height;
  tile->group = g;
  tile->first_row = begin + m * kM;
  tile->rows = min(kM, rows - m * kM);
  tile->first_output = within / height * kN;
  return true;
}

// ---- one thread: fetches operands ----

// Calls fetch(tile) for each tile that the block takes.
template <int kN, typename Gemm, typename Fetch>
__device__ __forceinline__ void FetchTiles(GemmShared<kN>& s, const Gemm& gemm,
                                           const Fetch& fetch) {
  GemmTile tile;
  for (int turn = 0;; ++turn) {
    const int slot = turn % kTickets;
    WaitFor(&s.ticket_empty[slot], turn / kTickets % 2 ^ 1);
    s.tickets[slot] = atomicAdd(gemm.ticket, 1);
    Arrive(&s.ticket_full[slot]);
    if (!Locate<kN>(gemm, s.table, s.tickets[slot], &tile)) return;
    fetch(tile);
  }
}

// The operands of a tile for a sum of `depth` elements, kElements a stage; `step` counts stages.
// kAcross: b is dense along the outputs, in bf16.
template <int kN, int kElements, bool kAcross>
__device__ __forceinline__ void FetchOperands(GemmShared<kN>& s, const CUtensorMap* a,
                                              const CUtensorMap* b, const GemmTile& tile, int depth,
                                              int& step) {
  constexpr int kStages = GemmShared<kN>::kStages;
  static_assert(!kAcross || kElements == kBf16OfStage);
  for (int k = 0; k < depth; k += kElements, ++step) {
    const int stage = step % kStages;
    WaitFor(&s.empty[stage], step / kStages % 2 ^ 1);
    ArriveAndExpect(&s.full[stage], (kM + kN) * kStageBytes);
    CopyBox(s.a[stage], a, k, tile.first_row, 0, &s.full[stage]);
    if constexpr (kAcross) {
#pragma unroll
      for (int n = 0; n < kN; n += 64) {
        CopyBox(s.b[stage] + n * kStageBytes, b, tile.first_output + n, k, tile.group,
                &s.full[stage]);
      }
    } else {
      CopyBox(s.b[stage], b, k, tile.first_output, tile.group, &s.full[stage]);
    }
  }
}

// ---- two warp groups: multiply ----

// Calls multiply(tile) for each tile that the block takes.
template <int kN, typename Gemm, typename Multiply>
__device__ __forceinline__ void MultiplyTiles(GemmShared<kN>& s, const Gemm& gemm,
                                              const Multiply& multiply) {
  GemmTile tile;
  for (int turn = 0;; ++turn) {
    const int slot = turn % kTickets;
    WaitFor(&s.ticket_full[slot], turn / kTickets % 2);
    const int number = s.tickets[slot];
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(&s.ticket_empty[slot]);
    if (!Locate<kN>(gemm, s.table, number, &tile)) return;
    multiply(tile);
  }
}

// Gives the stage of step number `step` back.
template <int kN>
__device__ __forceinline__ void GiveBack(GemmShared<kN>& s, int step) {
  if (threadIdx.x % 32 == 0) Arrive(&s.empty[step % GemmShared<kN>::kStages]);
}

// d += the product in bf16 of part number `part` of a stage: 16 elements of the sum.
template <int kN, bool kAcross>
struct Bf16Parts {
  static __device__ __forceinline__ void Multiply(float (&d)[kN / 2], const uint8_t* a,
                                                  const uint8_t* b, int part, bool add) {
    const uint64_t of_a = DescribeRows(a + part * kPartBytes);
    const uint64_t of_b =
        kAcross ? DescribeColumns(b + part * 16 * kStageBytes, kBf16OfStage * kStageBytes)
                : DescribeRows(b + part * kPartBytes);
    if constexpr (kN == 256) {
      Multiply256<kAcross>(d, of_a, of_b, add);
    } else if constexpr (kN == 192) {
      Multiply192<kAcross>(d, of_a, of_b, add);
    } else {
      Multiply64<false, kAcross>(d, of_a, of_b, add);
    }
  }
};

// Waits for a stage of operands, begins kParts products with them, and, with `in_flight`, gives the
// stage before back once its products are done. Without `add` the products replace d.
template <int kN, typename Parts, int kParts>
__device__ __forceinline__ void Step(GemmShared<kN>& s, int group, int step, bool add,
                                     bool in_flight, float (&d)[kN / 2]) {
  constexpr int kStages = GemmShared<kN>::kStages;
  const int stage = step % kStages;
  const uint8_t* a = s.a[stage] + group * kRowsOfWarpGroup * kStageBytes;
  WaitFor(&s.full[stage], step / kStages % 2);
  BeginProducts();
#pragma unroll
  for (int i = 0; i < kParts; ++i) Parts::Multiply(d, a, s.b[stage], i, add || i > 0);
  EndProducts();
  WaitForProducts<1>();
  if (in_flight) GiveBack(s, step + kStages - 1);
}

// d += the second product of a tile, in bf16. `in_flight`: products of the stage before may be.
template <int kN, bool kAcross>
__device__ __forceinline__ void MultiplyMore(GemmShared<kN>& s, int group, int depth,
                                             bool in_flight, int& step, float (&d)[kN / 2]) {
  using Parts = Bf16Parts<kN, kAcross>;
  if (depth <= 16) {
    for (int k = 0; k < depth; k += kBf16OfStage, ++step) {
      Step<kN, Parts, 1>(s, group, step, true, in_flight || k > 0, d);
    }
  } else {
    for (int k = 0; k < depth; k += kBf16OfStage, ++step) {
      Step<kN, Parts, kStageBytes / kPartBytes>(s, group, step, true, in_flight || k > 0, d);
    }
  }
}

// Writes a warp's 16 rows of a tile, `rows` of which are there, times alpha.
template <int kN, typename Gemm>
__device__ __forceinline__ void Store(const Gemm& gemm, const GemmTile& tile, int first_row,
                                      int rows, float alpha, const float (&d)[kN / 2],
                                      __nv_bfloat16* through) {
  const int lane = threadIdx.x % 32;
  const __nv_bfloat16* bias = gemm.bias == nullptr ? nullptr
                                                   : static_cast<const __nv_bfloat16*>(gemm.bias) +
                                                         int64_t{tile.group} * gemm.outputs;
  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(gemm.out.data);
#pragma unroll
  for (int c = 0; c < kN / 64; ++c) {
    const int first = tile.first_output + c * 64;
    if (first >= gemm.outputs) break;
    uint32_t packed[16];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float2 add = make_float2(0.0f, 0.0f);
      const int column = first + 8 * j + lane % 4 * 2;
      if (bias != nullptr && column < gemm.outputs) {
        add = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(bias + column));
      }
      const float* of = d + 32 * c + 4 * j;
      packed[2 * j] = PackPair(fmaf(of[0], alpha, add.x), fmaf(of[1], alpha, add.y));
      packed[2 * j + 1] = PackPair(fmaf(of[2], alpha, add.x), fmaf(of[3], alpha, add.y));
    }
    __syncwarp();
    const int row = lane / 8 % 2 * 8 + lane % 8;
    const uint32_t address = SharedAddress(through) + row * 128;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int piece = 2 * i + lane / 16;
      StoreMatrices(address + ((piece ^ row % 8) << 4), packed + 4 * i);
    }
    __syncwarp();
    const int piece = lane % 8;
    if (first + piece * 8 < gemm.outputs) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i * 4 + lane / 8;
        if (r >= rows) break;
        *reinterpret_cast<uint4*>(out + (int64_t{first_row} + r) * gemm.out.stride + first +
                                  piece * 8) =
            *reinterpret_cast<const uint4*>(through + r * 64 + (piece ^ r % 8) * 8);
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// ---- host side ----

// A matrix [depth, outputs] for each group, in boxes of kN outputs by kElements of the sum, or,
// dense along the outputs, of 64 outputs by 64 of the sum.
template <int kN, int kElements>
Boxes MatrixBoxes(const GroupMatrices& of, int groups, int depth, int outputs) {
  Boxes boxes{
      of.data, {depth, outputs, groups}, of.row_stride, of.group_stride, {kElements, kN, 1}};
  boxes.element_bytes = kStageBytes / kElements;
  if (of.across) {
    boxes.sizes[0] = outputs;
    boxes.sizes[1] = depth;
    boxes.box[1] = kElements;
  }
  return boxes;
}

// Both operands of the second product, in bf16.
template <int kN>
bool DescribeMore(EncodeTiled encode, const ConstRows& a, const GroupMatrices& b, int64_t rows,
                  int groups, int depth, int outputs, CUtensorMap* of_a, CUtensorMap* of_b) {
  return Describe(encode, RowBoxes(a, rows, depth, kM), of_a) &&
         Describe(encode, MatrixBoxes<kN, kBf16OfStage>(b, groups, depth, outputs), of_b);
}

// Launches a kernel with the shared memory that it needs, tickets at zero.
template <int kN, typename Arguments>
cudaError_t LaunchTiles(void (*run)(Arguments), const Arguments& arguments, int32_t* ticket,
                        int multiprocessors, cudaStream_t stream) {
  constexpr int kBytes = sizeof(GemmShared<kN>) + 1024;
  cudaError_t error =
      cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess) error = cudaMemsetAsync(ticket, 0, sizeof(int32_t), stream);
  if (error != cudaSuccess) return error;
  run<<<multiprocessors, kGemmThreads, kBytes, stream>>>(arguments);
  return cudaGetLastError();
}

// Whether tiles of 192 outputs cover them with less work than tiles of 256.
inline bool NarrowerIsLess(int outputs) {
  const auto covered = [&](int n) { return static_cast<double>(CeilDiv(outputs, n) * n); };
  return kNarrower * covered(192) < covered(256);
}

}  // namespace sft::engine::cuda
