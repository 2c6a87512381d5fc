// Cross entropy over the rows of a chunk of logits, and its gradient in the logits' place.
#include <cmath>
#include <cstdio>

#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 1024;

// max and the sum of exp(x - max), of what has been seen.
struct SoftmaxState {
  float max = -INFINITY;
  float sum = 0.0f;
};

__device__ __forceinline__ SoftmaxState Merge(SoftmaxState a, SoftmaxState b) {
  const float max = fmaxf(a.max, b.max);
  if (max == -INFINITY) return {};
  return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

__device__ __forceinline__ SoftmaxState BlockMerge(SoftmaxState state) {
  __shared__ SoftmaxState shared[kThreads / kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const SoftmaxState other = {__shfl_xor_sync(kAllLanes, state.max, offset),
                                __shfl_xor_sync(kAllLanes, state.sum, offset)};
    // The lower lane's state first on both sides: both then compute the same bits.
    state = (threadIdx.x & offset) ? Merge(other, state) : Merge(state, other);
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = state;
  __syncthreads();
  state = shared[0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) state = Merge(state, shared[warp]);
  return state;
}

// Calls use(column, vector of N or 1 elements) for this thread's share of a row: whole vectors,
// then single elements of what is left.
template <int N, typename Use>
__device__ __forceinline__ void ForColumns(int64_t vocabulary, const Use& use) {
  const int64_t whole = vocabulary / N * N;
  for (int64_t c = threadIdx.x * N; c < whole; c += kThreads * N) {
    float xs[N];
    use(c, xs);
  }
  if constexpr (N > 1) {
    float x[1];
    if (whole + threadIdx.x < vocabulary) use(whole + threadIdx.x, x);
  }
}

// One block a row. The second read of the row comes from L2.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyKernel(int64_t vocabulary, T* __restrict__ logits, int64_t stride,
                       const int64_t* __restrict__ targets, bool backward,
                       float* __restrict__ losses) {
  T* row = logits + blockIdx.x * stride;
  const int64_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0.0f;
    if (!backward) return;
    ForColumns<N>(vocabulary, [&](int64_t c, auto& xs) {
      for (float& x : xs) x = 0.0f;
      Store(row + c, xs);
    });
    return;
  }
  if (target >= vocabulary) {
    if (threadIdx.x == 0) {
      printf("cross_entropy_: target %lld is outside the vocabulary of %lld\n",
             static_cast<long long>(target), static_cast<long long>(vocabulary));
    }
    __trap();
  }
  SoftmaxState state;
  ForColumns<N>(vocabulary, [&]<int kCount>(int64_t c, float(&xs)[kCount]) {
    Load(row + c, xs);
    float max = xs[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) max = fmaxf(max, xs[i]);
    if (max > state.max) {
      state.sum *= expf(state.max - max);
      state.max = max;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) state.sum += expf(xs[i] - state.max);
  });
  const float target_logit = ToFloat(row[target]);  // before any thread overwrites it
  state = BlockMerge(state);
  const float log_sum = state.max + logf(state.sum);
  if (threadIdx.x == 0) losses[blockIdx.x] = log_sum - target_logit;
  if (!backward) return;
  ForColumns<N>(vocabulary, [&]<int kCount>(int64_t c, float(&xs)[kCount]) {
    Load(row + c, xs);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      xs[i] = expf(xs[i] - log_sum) - (c + i == target ? 1.0f : 0.0f);
    Store(row + c, xs);
  });
}

template <typename T, int N>
cudaError_t CrossEntropy(int64_t rows, int64_t vocabulary, MutableRows logits,
                         const int64_t* targets, bool backward, float* losses,
                         cudaStream_t stream) {
  CrossEntropyKernel<T, N><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      vocabulary, static_cast<T*>(logits.data), logits.stride, targets, backward, losses);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchCrossEntropy(ElementType type, int64_t rows, int64_t vocabulary,
                               MutableRows logits, const int64_t* targets, bool backward,
                               float* losses, cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    return RowsAreWide<T>(logits.data, logits.stride) ? CrossEntropy<T, kWide<T>>
                                                      : CrossEntropy<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(rows, vocabulary, logits, targets, backward, losses, stream);
}

}  // namespace sft::engine::cuda
