// The forward of delta_plain.cuh.
#include "worker/engine/cuda/kernels/delta_plain.cuh"

namespace sft::engine::cuda {
namespace {

using namespace plain;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainForwardKernel(const __grid_constant__ DeltaShape shape,
                       const __grid_constant__ DeltaOperands operands, MutableRows out,
                       float* workspace) {
  __shared__ Factors factors;
  const PlainSizes sizes(shape);
  Workspace from{workspace + blockIdx.x * sizes.Forward()};
  Chunk chunk{};
  chunk.q = from.Take(sizes.keys), chunk.k = from.Take(sizes.keys);
  chunk.w = from.Take(sizes.keys), chunk.v = from.Take(sizes.values);
  chunk.u = from.Take(sizes.values), chunk.m = from.Take(sizes.scores);
  chunk.p = from.Take(sizes.scores);
  float* n = from.Take(sizes.values);
  float* states = from.Take(sizes.repeats * sizes.state);
  ForTasks(shape, [&](int key_head, int64_t first, int64_t length) {
    PlainBlock<T> block(shape, operands, key_head, factors);
    const int keys = block.keys(), values = block.values();
    block.Clear(states, sizes.repeats * sizes.state);
    for (int64_t begin = 0; begin < length; begin += kChunk) {
      chunk.first = first + begin, chunk.count = CountFrom(begin, length);
      __syncthreads();
      block.LoadKeys(chunk);
      for (int r = 0; r < sizes.repeats; ++r) {
        const int head = key_head * static_cast<int>(sizes.repeats) + r;
        float* state = states + r * sizes.state;
        block.Make(chunk, head);
        block.NewValues(chunk, state, n);
        Product(
            chunk.count, values, keys + kChunk,
            [&](int i, int l) {
              if (l < keys) return factors.from[i] * chunk.q[i * keys + l];
              return l - keys <= i ? chunk.p[i * kChunk + l - keys] : 0.0f;
            },
            [&](int l, int e) {
              if (l < keys) return state[l * values + e];
              return l - keys < chunk.count ? n[(l - keys) * values + e] : 0.0f;
            },
            [&](int i, int e, float sum) {
              block.Row(out, chunk.first + i, head, values)[e] = FromFloat<T>(sum);
            });
        __syncthreads();
        block.Advance(chunk, n, state, state);
      }
    }
    __syncthreads();
  });
}

}  // namespace

int64_t DeltaPlainFloats(const DeltaShape& shape, bool backward) {
  const PlainSizes sizes(shape);
  return backward ? sizes.Backward() : sizes.Forward();
}

cudaError_t LaunchDeltaPlain(ElementType type, const DeltaShape& shape,
                             const DeltaOperands& operands, MutableRows out, float* workspace,
                             int64_t blocks, cudaStream_t stream) {
  const auto kernel =
      type == ElementType::kFloat32 ? PlainForwardKernel<float> : PlainForwardKernel<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(shape, operands, out, workspace);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
