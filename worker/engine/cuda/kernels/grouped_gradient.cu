#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/group_tiles.cuh"
#include "worker/engine/cuda/kernels/grouped_gemm.h"
#include "worker/engine/cuda/kernels/hopper.cuh"
#include "worker/engine/cuda/kernels/tensor_map.h"

// A thread block has 128 columns of `wide` and 64 of `thin` of a group, and walks over its rows.

namespace sft::engine::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWide = 128, kThin = 64;
constexpr int kRows = 64;  // of a stage
constexpr int kStages = 4;
constexpr int kThreads = 384;
constexpr int kBlocks = 2;  // of a multiprocessor

struct Arguments {
  CUtensorMap wide, thin;
  GroupedSums gradient;
};

struct Shared {
  alignas(1024) Bf16 wide[kStages][kWide / 64][kRows * 64];
  alignas(1024) Bf16 thin[kStages][kRows * kThin];
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  GroupTable table;
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;
static_assert(kBlocks * (kSharedBytes + 1024) <= 228 * 1024);

struct Tile {
  int group, first_row, rows, first_wide, first_thin;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kMultiplying = 256;  // threads

template <typename Visit>
__device__ __forceinline__ void ForEachTile(const GroupedSums& gradient, const GroupTable& table,
                                            const Visit& visit) {
  const int along = (gradient.wide_columns + kWide - 1) / kWide;
  for (int number = blockIdx.x; number < table.tiles[gradient.groups]; number += gridDim.x) {
    Tile tile;
    tile.group = GroupOf(table, gradient.groups, number);
    tile.first_row = table.begins[tile.group];
    tile.rows = table.begins[tile.group + 1] - tile.first_row;
    const int local = number - table.tiles[tile.group];
    tile.first_wide = local % along * kWide;
    tile.first_thin = local / along * kThin;
    visit(tile);
  }
}

// One thread: fetches operands.
__device__ __forceinline__ void Fetch(const Arguments& arguments, Shared& s) {
  constexpr int kBytes = (kWide + kThin) * kRows * sizeof(Bf16);
  int step = 0;
  ForEachTile(arguments.gradient, s.table, [&](const Tile& tile) {
    for (int r = 0; r < tile.rows; r += kRows, ++step) {
      const int stage = step % kStages, row = tile.first_row + r;
      WaitFor(&s.empty[stage], step / kStages % 2 ^ 1);
      ArriveAndExpect(&s.full[stage], kBytes);
#pragma unroll
      for (int w = 0; w < kWide / 64; ++w) {
        CopyBox(s.wide[stage][w], &arguments.wide, tile.first_wide + w * 64, row, 0,
                &s.full[stage]);
      }
      CopyBox(s.thin[stage], &arguments.thin, tile.first_thin, row, 0, &s.full[stage]);
    }
  });
}

// Rows behind a group's end are another's: zeros in their place. All multiplying threads.
__device__ __forceinline__ void ClearBehind(Bf16* thin, int rows) {
  for (int i = threadIdx.x - 128; i < kRows * 8; i += kMultiplying) {
    if (i / 8 >= rows) reinterpret_cast<uint4*>(thin)[i] = make_uint4(0, 0, 0, 0);
  }
  OrderShared();
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplying) : "memory");
}

template <typename T>
__device__ __forceinline__ void Add(T* sum, float x) {
  if constexpr (sizeof(T) == 4) {
    *sum += x;
  } else {
    *sum = __float2bfloat16_rn(__bfloat162float(*sum) + x);
  }
}

template <typename T>
__device__ __forceinline__ void MultiplyAll(const Arguments& arguments, Shared& s) {
  const GroupedSums& gradient = arguments.gradient;
  const int half = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  int step = 0;
  ForEachTile(gradient, s.table, [&](const Tile& tile) {
    float d[32];
    for (int r = 0; r < tile.rows; r += kRows, ++step) {
      const int stage = step % kStages;
      WaitFor(&s.full[stage], step / kStages % 2);
      if (tile.rows - r < kRows) ClearBehind(s.thin[stage], tile.rows - r);
      BeginProducts();
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) {
        Multiply64<true, true>(d, DescribeColumns(s.wide[stage][half] + i * 16 * 64, 0),
                               DescribeColumns(s.thin[stage] + i * 16 * 64, 0), r > 0 || i > 0);
      }
      EndProducts();
      WaitForProducts<0>();
      if (lane == 0) Arrive(&s.empty[stage]);
    }
    T* sums = static_cast<T*>(gradient.sums) + tile.group * gradient.group_stride;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int w = tile.first_wide + half * 64 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
      const int t = tile.first_thin + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (w < gradient.wide_columns && t < gradient.thin_columns) {
        Add(sums + w * gradient.wide_stride + t * gradient.thin_stride, gradient.alpha * d[i]);
      }
    }
  });
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    Run(const __grid_constant__ Arguments arguments) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t bytes[];
  Shared& s =
      *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(bytes) + 1023) & ~uintptr_t{1023});
  const GroupedSums& gradient = arguments.gradient;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(&s.full[i], 1);
      InitBarrier(&s.empty[i], kMultiplying / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    OrderShared();
  }
  const int tiles =
      (gradient.wide_columns + kWide - 1) / kWide * ((gradient.thin_columns + kThin - 1) / kThin);
  FillTable(s.table, gradient.begins, gradient.groups,
            [&](int rows) { return rows > 0 ? tiles : 0; });
  if (threadIdx.x < 128) {
    if (threadIdx.x == 0) Fetch(arguments, s);
  } else {
    MultiplyAll<T>(arguments, s);
  }
#else
  __trap();  // compiled for 9.0 without what Hopper alone has
#endif
}

}  // namespace

cudaError_t LaunchGroupedGradient(const GroupedSums& gradient, int multiprocessors,
                                  cudaStream_t stream) {
  EncodeTiled encode = nullptr;
  if (const cudaError_t error = FindEncoder(&encode); error != cudaSuccess) return error;
  Arguments arguments;
  arguments.gradient = gradient;
  const GroupedSums& of = gradient;
  if (!Describe(encode, RowBoxes(of.wide, of.rows, of.wide_columns, kRows), &arguments.wide) ||
      !Describe(encode, RowBoxes(of.thin, of.rows, of.thin_columns, kRows), &arguments.thin)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = gradient.type == ElementType::kFloat32 ? Run<float> : Run<Bf16>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  kernel<<<kBlocks * multiprocessors, kThreads, kSharedBytes, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
