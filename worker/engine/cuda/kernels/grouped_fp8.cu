// Products of groups in FP8. Operands pass the stages of shared memory as in bf16, with twice the
// elements of the sum in each; scales are applied to the sums of a tile in registers, before the
// second product adds to them.
#include "worker/engine/cuda/kernels/group_products.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kFp8OfStage = 128;  // elements of the sum
// The first warp group begins so many stages before the second and stays ahead: while one of them
// writes results, the other multiplies.
constexpr int kAhead = 3;
static_assert(kAhead < GemmShared<256>::kStages);

struct Arguments {
  CUtensorMap a, b, more_a, more_b;
  GroupedFp8Product gemm;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d += the product of part number `part` of a stage: 32 elements of the sum.
template <int kN>
struct Fp8Parts {
  static __device__ __forceinline__ void Multiply(float (&d)[kN / 2], const uint8_t* a,
                                                  const uint8_t* b, int part, bool add) {
    MultiplyFp8(d, DescribeRows(a + part * kPartBytes), DescribeRows(b + part * kPartBytes), add);
  }
};

// Number of the stage that the first warp group has begun when the second begins its first.
__device__ __forceinline__ int StagesAhead(int depth) {
  return min(kAhead, (depth + kFp8OfStage - 1) / kFp8OfStage) - 1;
}

// To be called behind each stage.
__device__ __forceinline__ void LetOtherBegin(int group, int step, int depth) {
  if (group == 0 && step == StagesAhead(depth)) PassBarrier<2 * 128>();
}

// d = the sum of all stages of a tile, each added in the tensor cores. Their products are done, and
// their stages given back.
template <int kN>
__device__ __forceinline__ void SumFast(GemmShared<kN>& s, int group, int depth, int& step,
                                        float (&d)[kN / 2]) {
  for (int k = 0; k < depth; k += kFp8OfStage, ++step) {
    Step<kN, Fp8Parts<kN>, kStageBytes / kPartBytes>(s, group, step, k > 0, k > 0, d);
    LetOtherBegin(group, step, depth);
  }
  WaitForProducts<0>();
  KeepBehind(d);
  GiveBack(s, step + GemmShared<kN>::kStages - 1);
}

// The same with the sums of stages added in fp32. While one warp group adds, the other multiplies.
template <int kN>
__device__ __forceinline__ void SumInFull(GemmShared<kN>& s, int group, int depth, int& step,
                                          float (&d)[kN / 2]) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = 0.0f;
  float part[kN / 2];
  for (int k = 0; k < depth; k += kFp8OfStage, ++step) {
    const int stage = step % GemmShared<kN>::kStages;
    const uint8_t* a = s.a[stage] + group * kRowsOfWarpGroup * kStageBytes;
    WaitFor(&s.full[stage], step / GemmShared<kN>::kStages % 2);
    KeepBehind(part);
    BeginProducts();
#pragma unroll
    for (int i = 0; i < kStageBytes / kPartBytes; ++i) {
      Fp8Parts<kN>::Multiply(part, a, s.b[stage], i, i > 0);
    }
    EndProducts();
    WaitForProducts<0>();
    KeepBehind(part);
    GiveBack(s, step);
    LetOtherBegin(group, step, depth);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) d[i] += part[i];
  }
}

// d times the scales of its rows and outputs. A warp has 16 rows from `first_row` of the tile; see
// hopper.cuh for what a lane has of them.
template <int kN>
__device__ __forceinline__ void ApplyScales(const GroupedFp8Product& gemm, const GemmTile& tile,
                                            int first_row, float (&d)[kN / 2]) {
  const int lane = threadIdx.x % 32, row = first_row + lane / 4;
  const float* of_rows = gemm.a_scale + tile.first_row;
  const float low = row < tile.rows ? of_rows[row] : 0.0f;
  const float high = row + 8 < tile.rows ? of_rows[row + 8] : 0.0f;
  const float* of_outputs = gemm.b_scale + int64_t{tile.group} * gemm.outputs;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const int output = tile.first_output + 8 * j + lane % 4 * 2;
    if (output >= gemm.outputs) continue;
    const float2 scale = *reinterpret_cast<const float2*>(of_outputs + output);
    d[4 * j] *= low * scale.x;
    d[4 * j + 1] *= low * scale.y;
    d[4 * j + 2] *= high * scale.x;
    d[4 * j + 3] *= high * scale.y;
  }
}

// Has the scales of a tile's outputs, and its biases, at hand when they are needed.
template <int kN>
__device__ __forceinline__ void FetchScales(const GroupedFp8Product& gemm, const GemmTile& tile) {
  constexpr int kOfLine = 32;  // scales of a cache line
  const int output = tile.first_output + threadIdx.x % 32 * kOfLine;
  if (output >= min(gemm.outputs, tile.first_output + kN)) return;
  const int64_t place = int64_t{tile.group} * gemm.outputs + output;
  FetchToL1(gemm.b_scale + place);
  if (gemm.bias != nullptr) FetchToL1(static_cast<const __nv_bfloat16*>(gemm.bias) + place);
}

// Two warp groups.
template <int kN, bool kFast, bool kMoreAcross>
__device__ __forceinline__ void MultiplyAll(const GroupedFp8Product& gemm, GemmShared<kN>& s) {
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0) - 4, group = warp / 4;
  int step = 0;
  MultiplyTiles<kN>(s, gemm, [&](const GemmTile& tile) {
    float d[kN / 2];
    FetchScales<kN>(gemm, tile);
    if (group == 1 && step == 0) WaitAtBarrier<2 * 128>();
    if constexpr (kFast) {
      SumFast<kN>(s, group, gemm.depth, step, d);
    } else {
      SumInFull<kN>(s, group, gemm.depth, step, d);
    }
    const int first_row = warp * 16;
    ApplyScales<kN>(gemm, tile, first_row, d);
    if (gemm.more_depth > 0) {
      KeepBehind(d);
      MultiplyMore<kN, kMoreAcross>(s, group, gemm.more_depth, false, step, d);
      WaitForProducts<0>();
      KeepBehind(d);
      GiveBack(s, step + GemmShared<kN>::kStages - 1);
    }
    if (first_row < tile.rows) {
      Store<kN>(gemm, tile, tile.first_row + first_row, tile.rows - first_row, 1.0f, d,
                s.out[warp]);
    }
  });
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kN, bool kFast, bool kMoreAcross>
__global__ void __launch_bounds__(kGemmThreads, 1)
    Run(const __grid_constant__ Arguments arguments) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t bytes[];
  GemmShared<kN>& s = SharedOf<kN>(bytes);
  const GroupedFp8Product& gemm = arguments.gemm;
  Prepare(s, gemm);
  if (threadIdx.x < 128) {
    GiveRegisters<kFetchRegisters>();
    if (threadIdx.x > 0) return;
    int step = 0;
    FetchTiles<kN>(s, gemm, [&](const GemmTile& tile) {
      FetchOperands<kN, kFp8OfStage, false>(s, &arguments.a, &arguments.b, tile, gemm.depth, step);
      FetchOperands<kN, kBf16OfStage, kMoreAcross>(s, &arguments.more_a, &arguments.more_b, tile,
                                                   gemm.more_depth, step);
    });
  } else {
    TakeRegisters<kMultiplyRegisters>();
    MultiplyAll<kN, kFast, kMoreAcross>(gemm, s);
  }
#else
  __trap();  // compiled for 9.0 without what Hopper alone has
#endif
}

template <int kN, bool kFast, bool kMoreAcross>
cudaError_t Launch(const GroupedFp8Product& gemm, int multiprocessors, cudaStream_t stream) {
  EncodeTiled encode = nullptr;
  if (const cudaError_t error = FindEncoder(&encode); error != cudaSuccess) return error;
  Arguments arguments;
  arguments.gemm = gemm;
  const bool described =
      Describe(encode, RowBoxes(gemm.a, gemm.rows, gemm.depth, kM, 1), &arguments.a) &&
      Describe(encode, MatrixBoxes<kN, kFp8OfStage>(gemm.b, gemm.groups, gemm.depth, gemm.outputs),
               &arguments.b) &&
      (gemm.more_depth == 0 ||
       DescribeMore<kN>(encode, gemm.more_a, gemm.more_b, gemm.rows, gemm.groups, gemm.more_depth,
                        gemm.outputs, &arguments.more_a, &arguments.more_b));
  if (!described) return cudaErrorInvalidValue;
  return LaunchTiles<kN>(Run<kN, kFast, kMoreAcross>, arguments, gemm.ticket, multiprocessors,
                         stream);
}

}  // namespace

cudaError_t LaunchGroupedFp8Gemm(const GroupedFp8Product& gemm, int multiprocessors,
                                 cudaStream_t stream) {
  const auto launch = [&]<int kN, bool kFast>() {
    return gemm.more_b.across ? Launch<kN, kFast, true>(gemm, multiprocessors, stream)
                              : Launch<kN, kFast, false>(gemm, multiprocessors, stream);
  };
  // Sums in full need registers twice: 256 outputs would have too many.
  if (!gemm.fast_sums) return launch.template operator()<192, false>();
  return NarrowerIsLess(gemm.outputs) ? launch.template operator()<192, true>()
                                      : launch.template operator()<256, true>();
}

}  // namespace sft::engine::cuda
