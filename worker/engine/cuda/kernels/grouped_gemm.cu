#include "worker/engine/cuda/kernels/group_products.cuh"

namespace sft::engine::cuda {
namespace {

struct Arguments {
  CUtensorMap a, b, more_a, more_b;
  GroupedProduct gemm;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Two warp groups.
template <int kN, bool kAcross>
__device__ __forceinline__ void MultiplyAll(const GroupedProduct& gemm, GemmShared<kN>& s) {
  constexpr int kStages = GemmShared<kN>::kStages;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0) - 4, group = warp / 4;
  int step = 0;
  MultiplyTiles<kN>(s, gemm, [&](const GemmTile& tile) {
    float d[kN / 2];
    for (int k = 0; k < gemm.depth; k += kBf16OfStage, ++step) {
      Step<kN, Bf16Parts<kN, kAcross>, kStageBytes / kPartBytes>(s, group, step, k > 0, k > 0, d);
    }
    MultiplyMore<kN, kAcross>(s, group, gemm.more_depth, true, step, d);
    WaitForProducts<0>();
    GiveBack(s, step + kStages - 1);
    const int first_row = warp * 16;
    if (first_row < tile.rows) {
      Store<kN>(gemm, tile, tile.first_row + first_row, tile.rows - first_row, gemm.alpha, d,
                s.out[warp]);
    }
  });
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kN, bool kAcross>
__global__ void __launch_bounds__(kGemmThreads, 1)
    Run(const __grid_constant__ Arguments arguments) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t bytes[];
  GemmShared<kN>& s = SharedOf<kN>(bytes);
  const GroupedProduct& gemm = arguments.gemm;
  Prepare(s, gemm);
  if (threadIdx.x < 128) {
    GiveRegisters<kFetchRegisters>();
    if (threadIdx.x > 0) return;
    int step = 0;
    FetchTiles<kN>(s, gemm, [&](const GemmTile& tile) {
      FetchOperands<kN, kBf16OfStage, kAcross>(s, &arguments.a, &arguments.b, tile, gemm.depth,
                                               step);
      FetchOperands<kN, kBf16OfStage, kAcross>(s, &arguments.more_a, &arguments.more_b, tile,
                                               gemm.more_depth, step);
    });
  } else {
    TakeRegisters<kMultiplyRegisters>();
    MultiplyAll<kN, kAcross>(gemm, s);
  }
#else
  __trap();  // compiled for 9.0 without what Hopper alone has
#endif
}

template <int kN, bool kAcross>
cudaError_t Launch(const GroupedProduct& gemm, int multiprocessors, cudaStream_t stream) {
  EncodeTiled encode = nullptr;
  if (const cudaError_t error = FindEncoder(&encode); error != cudaSuccess) return error;
  Arguments arguments;
  arguments.gemm = gemm;
  const bool described =
      Describe(encode, RowBoxes(gemm.a, gemm.rows, gemm.depth, kM), &arguments.a) &&
      Describe(encode, MatrixBoxes<kN, kBf16OfStage>(gemm.b, gemm.groups, gemm.depth, gemm.outputs),
               &arguments.b) &&
      (gemm.more_depth == 0 ||
       DescribeMore<kN>(encode, gemm.more_a, gemm.more_b, gemm.rows, gemm.groups, gemm.more_depth,
                        gemm.outputs, &arguments.more_a, &arguments.more_b));
  if (!described) return cudaErrorInvalidValue;
  return LaunchTiles<kN>(Run<kN, kAcross>, arguments, gemm.ticket, multiprocessors, stream);
}

}  // namespace

cudaError_t LaunchGroupedGemm(const GroupedProduct& gemm, int multiprocessors,
                              cudaStream_t stream) {
  const auto launch = [&]<int kN>() {
    return gemm.b.across ? Launch<kN, true>(gemm, multiprocessors, stream)
                         : Launch<kN, false>(gemm, multiprocessors, stream);
  };
  if (gemm.outputs <= 64) return launch.template operator()<64>();
  return NarrowerIsLess(gemm.outputs) ? launch.template operator()<192>()
                                      : launch.template operator()<256>();
}

}  // namespace sft::engine::cuda
