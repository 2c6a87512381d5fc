#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/gates.cuh"
#include "worker/engine/cuda/kernels/launch.h"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;

// blockIdx.x is the token; a thread has N elements of a head.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    ScaleBySinksKernel(SinkShape shape, T* __restrict__ out, const float* __restrict__ lse,
                       const float* __restrict__ sinks) {
  const int64_t token = blockIdx.x;
  const int index = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * N;
  if (index >= shape.heads * shape.size) return;
  const int head = index / shape.size;
  const float share = Sigmoid(lse[head * shape.tokens + token] - sinks[head]);
  T* to = out + token * shape.token_stride + index;
  float x[N];
  Load(to, x);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] *= share;
  Store(to, x);
}

template <typename T, int N>
cudaError_t Scale(const SinkShape& shape, void* out, const float* lse, const float* sinks,
                  cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(shape.tokens),
                    static_cast<unsigned>(CeilDiv(shape.heads * shape.size, kThreads * N)));
  ScaleBySinksKernel<T, N>
      <<<blocks, kThreads, 0, stream>>>(shape, static_cast<T*>(out), lse, sinks);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchScaleBySinks(ElementType type, const SinkShape& shape, void* out,
                               const float* lse, const float* sinks, cudaStream_t stream) {
  const auto run = [&]<typename T>(T) {
    const bool wide = RowsAreWide<T>(out, shape.token_stride) && shape.size % kWide<T> == 0;
    return (wide ? Scale<T, kWide<T>> : Scale<T, 1>)(shape, out, lse, sinks, stream);
  };
  return type == ElementType::kFloat32 ? run(float()) : run(__nv_bfloat16());
}

}  // namespace sft::engine::cuda
