#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/group_tiles.cuh"
#include "worker/engine/cuda/kernels/grouped_gemm.h"
#include "worker/engine/cuda/kernels/hopper.cuh"
#include "worker/engine/cuda/kernels/tensor_map.h"
#include "worker/engine/cuda/kernels/vec.cuh"

// Suffixes: M rows of a tile, N outputs of a tile, K elements of the sum in a stage.

namespace sft::engine::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kM = 128, kK = 64;
constexpr int kThreads = 384;  // one warp group fetches, two multiply
constexpr int kWarps = 8;      // that multiply
constexpr int kTickets = 2;
constexpr int kMaxShared = 227 * 1024;
// Tiles of 192 outputs take so much longer for an output than tiles of 256.
constexpr double kNarrower = 1.03;

struct Arguments {
  CUtensorMap a, b, more_a, more_b;
  GroupedProduct gemm;
};

template <int kN>
struct Shared {
  // As many stages as fit, beside what results pass through.
  static constexpr int kStages = kN == 256 ? 4 : kN == 192 ? 5 : 6;

  alignas(1024) Bf16 a[kStages][kM * kK];
  alignas(1024) Bf16 b[kStages][kN * kK];
  alignas(1024) Bf16 out[kWarps][16 * 64];
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t ticket_full[kTickets], ticket_empty[kTickets];
  int tickets[kTickets];  // numbers of tiles on their way to the warp groups that multiply
  GroupTable table;
};
static_assert(sizeof(Shared<256>) + 1024 <= kMaxShared);
static_assert(sizeof(Shared<192>) + 1024 <= kMaxShared);

// 128 rows of a group, as many of them as there are, by kN outputs.
struct Tile {
  int group, first_row, rows, first_output;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kRowsOfGroup = 64;  // of a warp group
// Tiles of so many rows are taken one below the other before the next outputs.
constexpr int kTall = 16;

template <int kN>
__device__ __forceinline__ bool Locate(const GroupedProduct& gemm, const GroupTable& table,
                                       int number, Tile* tile) {
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

// One thread: fetches operands.
template <int kN, bool kAcross>
__device__ __forceinline__ void Fetch(const Arguments& arguments, Shared<kN>& s) {
  constexpr int kStages = Shared<kN>::kStages;
  constexpr int kBytes = (kM + kN) * kK * sizeof(Bf16);
  const GroupedProduct& gemm = arguments.gemm;
  int step = 0;
  const auto fetch = [&](const CUtensorMap* a, const CUtensorMap* b, const Tile& tile, int k) {
    const int stage = step % kStages;
    WaitFor(&s.empty[stage], step / kStages % 2 ^ 1);
    ArriveAndExpect(&s.full[stage], kBytes);
    CopyBox(s.a[stage], a, k, tile.first_row, 0, &s.full[stage]);
    if constexpr (kAcross) {
#pragma unroll
      for (int n = 0; n < kN; n += 64) {
        CopyBox(s.b[stage] + n * kK, b, tile.first_output + n, k, tile.group, &s.full[stage]);
      }
    } else {
      CopyBox(s.b[stage], b, k, tile.first_output, tile.group, &s.full[stage]);
    }
    ++step;
  };
  Tile tile;
  for (int turn = 0;; ++turn) {
    const int slot = turn % kTickets;
    WaitFor(&s.ticket_empty[slot], turn / kTickets % 2 ^ 1);
    s.tickets[slot] = atomicAdd(gemm.ticket, 1);
    Arrive(&s.ticket_full[slot]);
    if (!Locate<kN>(gemm, s.table, s.tickets[slot], &tile)) return;
    for (int k = 0; k < gemm.depth; k += kK) fetch(&arguments.a, &arguments.b, tile, k);
    for (int k = 0; k < gemm.more_depth; k += kK) {
      fetch(&arguments.more_a, &arguments.more_b, tile, k);
    }
  }
}

// d += the product of 16 elements of the sum, number `part` of the stage.
template <int kN, bool kAcross>
__device__ __forceinline__ void Multiply(float (&d)[kN / 2], const Bf16* a, const Bf16* b, int part,
                                         bool add) {
  const uint64_t of_a = DescribeRows(a + part * 16);
  const uint64_t of_b = kAcross ? DescribeColumns(b + part * 16 * 64, kK * 64 * sizeof(Bf16))
                                : DescribeRows(b + part * 16);
  if constexpr (kN == 256) {
    Multiply256<kAcross>(d, of_a, of_b, add);
  } else if constexpr (kN == 192) {
    Multiply192<kAcross>(d, of_a, of_b, add);
  } else {
    Multiply64<false, kAcross>(d, of_a, of_b, add);
  }
}

// Writes a warp's 16 rows of a tile, `rows` of which are there.
template <int kN>
__device__ __forceinline__ void Store(const GroupedProduct& gemm, const Tile& tile, int first_row,
                                      int rows, const float (&d)[kN / 2], Bf16* through) {
  const int lane = threadIdx.x % 32;
  const Bf16* bias = gemm.bias == nullptr
                         ? nullptr
                         : static_cast<const Bf16*>(gemm.bias) + int64_t{tile.group} * gemm.outputs;
  Bf16* out = static_cast<Bf16*>(gemm.out.data);
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
      packed[2 * j] = PackPair(fmaf(of[0], gemm.alpha, add.x), fmaf(of[1], gemm.alpha, add.y));
      packed[2 * j + 1] = PackPair(fmaf(of[2], gemm.alpha, add.x), fmaf(of[3], gemm.alpha, add.y));
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

// Waits for a stage of operands, begins kParts products with them, and gives the stage before back
// once its products are done.
template <int kN, bool kAcross, int kParts>
__device__ __forceinline__ void Step(Shared<kN>& s, int group, int step, bool first,
                                     float (&d)[kN / 2]) {
  constexpr int kStages = Shared<kN>::kStages;
  const int stage = step % kStages;
  const Bf16* a = s.a[stage] + group * kRowsOfGroup * kK;
  WaitFor(&s.full[stage], step / kStages % 2);
  BeginProducts();
#pragma unroll
  for (int i = 0; i < kParts; ++i) Multiply<kN, kAcross>(d, a, s.b[stage], i, !first || i > 0);
  EndProducts();
  WaitForProducts<1>();
  if (!first && threadIdx.x % 32 == 0) Arrive(&s.empty[(step + kStages - 1) % kStages]);
}

// Two warp groups.
template <int kN, bool kAcross>
__device__ __forceinline__ void MultiplyAll(const Arguments& arguments, Shared<kN>& s) {
  constexpr int kStages = Shared<kN>::kStages;
  const GroupedProduct& gemm = arguments.gemm;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0) - 4, group = warp / 4;
  int step = 0;
  Tile tile;
  for (int turn = 0;; ++turn) {
    const int slot = turn % kTickets;
    WaitFor(&s.ticket_full[slot], turn / kTickets % 2);
    const int number = s.tickets[slot];
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(&s.ticket_empty[slot]);
    if (!Locate<kN>(gemm, s.table, number, &tile)) return;
    float d[kN / 2];
    for (int k = 0; k < gemm.depth; k += kK, ++step) {
      Step<kN, kAcross, kK / 16>(s, group, step, k == 0, d);
    }
    if (gemm.more_depth <= 16) {
      for (int k = 0; k < gemm.more_depth; k += kK, ++step) {
        Step<kN, kAcross, 1>(s, group, step, false, d);
      }
    } else {
      for (int k = 0; k < gemm.more_depth; k += kK, ++step) {
        Step<kN, kAcross, kK / 16>(s, group, step, false, d);
      }
    }
    WaitForProducts<0>();
    if (threadIdx.x % 32 == 0) Arrive(&s.empty[(step + kStages - 1) % kStages]);
    const int first_row = warp * 16;
    if (first_row < tile.rows) {
      Store<kN>(gemm, tile, tile.first_row + first_row, tile.rows - first_row, d, s.out[warp]);
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kN, bool kAcross>
__global__ void __launch_bounds__(kThreads, 1) Run(const __grid_constant__ Arguments arguments) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t bytes[];
  Shared<kN>& s = *reinterpret_cast<Shared<kN>*>((reinterpret_cast<uintptr_t>(bytes) + 1023) &
                                                 ~uintptr_t{1023});
  const GroupedProduct& gemm = arguments.gemm;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<kN>::kStages; ++i) {
      InitBarrier(&s.full[i], 1);
      InitBarrier(&s.empty[i], kWarps);
    }
    for (int i = 0; i < kTickets; ++i) {
      InitBarrier(&s.ticket_full[i], 1);
      InitBarrier(&s.ticket_empty[i], kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    OrderShared();
  }
  const int wide = (gemm.outputs + kN - 1) / kN;
  FillTable(s.table, gemm.begins, gemm.groups,
            [&](int rows) { return (rows + kM - 1) / kM * wide; });
  if (threadIdx.x < 128) {
    GiveRegisters<24>();
    if (threadIdx.x == 0) Fetch<kN, kAcross>(arguments, s);
  } else {
    TakeRegisters<240>();
    MultiplyAll<kN, kAcross>(arguments, s);
  }
#else
  __trap();  // compiled for 9.0 without what Hopper alone has
#endif
}

template <int kN>
Boxes MatrixBoxes(const GroupMatrices& of, int groups, int depth, int outputs) {
  Boxes boxes{of.data, {depth, outputs, groups}, of.row_stride, of.group_stride, {kK, kN, 1}};
  if (of.across) {
    boxes.sizes[0] = outputs;
    boxes.sizes[1] = depth;
    boxes.box[1] = kK;
  }
  return boxes;
}

template <int kN, bool kAcross>
cudaError_t Launch(const GroupedProduct& gemm, int multiprocessors, cudaStream_t stream) {
  EncodeTiled encode = nullptr;
  if (const cudaError_t error = FindEncoder(&encode); error != cudaSuccess) return error;
  Arguments arguments;
  arguments.gemm = gemm;
  bool described = Describe(encode, RowBoxes(gemm.a, gemm.rows, gemm.depth, kM), &arguments.a) &&
                   Describe(encode, MatrixBoxes<kN>(gemm.b, gemm.groups, gemm.depth, gemm.outputs),
                            &arguments.b);
  if (gemm.more_depth > 0) {
    described =
        described &&
        Describe(encode, RowBoxes(gemm.more_a, gemm.rows, gemm.more_depth, kM),
                 &arguments.more_a) &&
        Describe(encode, MatrixBoxes<kN>(gemm.more_b, gemm.groups, gemm.more_depth, gemm.outputs),
                 &arguments.more_b);
  }
  if (!described) return cudaErrorInvalidValue;
  constexpr int kBytes = sizeof(Shared<kN>) + 1024;
  cudaError_t error =
      cudaFuncSetAttribute(Run<kN, kAcross>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess) error = cudaMemsetAsync(gemm.ticket, 0, sizeof(int32_t), stream);
  if (error != cudaSuccess) return error;
  Run<kN, kAcross><<<multiprocessors, kThreads, kBytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchGroupedGemm(const GroupedProduct& gemm, int multiprocessors,
                              cudaStream_t stream) {
  const auto launch = [&]<int kN>() {
    return gemm.b.across ? Launch<kN, true>(gemm, multiprocessors, stream)
                         : Launch<kN, false>(gemm, multiprocessors, stream);
  };
  if (gemm.outputs <= 64) return launch.template operator()<64>();
  const auto covered = [&](int n) { return static_cast<double>(CeilDiv(gemm.outputs, n) * n); };
  if (kNarrower * covered(192) < covered(256)) return launch.template operator()<192>();
  return launch.template operator()<256>();
}

}  // namespace sft::engine::cuda
