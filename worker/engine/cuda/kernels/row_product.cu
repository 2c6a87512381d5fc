#include <algorithm>

#include "worker/engine/cuda/kernels/early.cuh"
#include "worker/engine/cuda/kernels/row_product.h"
#include "worker/engine/cuda/kernels/row_weights.cuh"

// A block takes tiles of outputs and all rows, and its warps take steps of the inputs in turn;
// their sums are joined in the warps' order. So a result is the same sum in the same order however
// many rows there are. Weights are the 16 rows of a product on tensor cores and rows its 8 columns:
// lane l has those of the weight's rows l / 4 and l / 4 + 8 and of row l / 4 of each eight. Which
// inputs of a step it takes for which product is free, as long as both sides take the same: any
// order of the inputs gives the same product.

namespace sft::engine::cuda {
namespace {

struct Operands {
  ConstRows a, addend;
  MutableRows out;
};

// Adds up the warps' sums of a tile and writes the results.
template <int kEights, int kTiles>
__device__ __forceinline__ void WriteTile(const float (&d)[kTiles][kEights][4], float* sums,
                                          const RowProductShape& shape, const Operands& operands,
                                          int64_t first_output) {
  constexpr int kRows = kEights * 8, kOfTile = kTiles * kOutputs;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = m * kOutputs + lane / 4 + i / 2 * 8, row = n * 8 + lane % 4 * 2 + i % 2;
        sums[(warp * kOfTile + output) * kRows + row] = d[m][n][i];
      }
    }
  }
  __syncthreads();
  const int count = static_cast<int>(shape.rows) * kOfTile;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarps * kWarp) {
    const int output = i % kOfTile, row = i / kOfTile;
    if (first_output + output >= shape.outputs) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[(w * kOfTile + output) * kRows + row];
    sum *= shape.alpha;
    if (operands.addend.data != nullptr) {
      sum += ToFloat(static_cast<const Bf16*>(
          operands.addend.data)[row * operands.addend.stride + first_output + output]);
    }
    static_cast<Bf16*>(operands.out.data)[row * operands.out.stride + first_output + output] =
        __float2bfloat16_rn(sum);
  }
  __syncthreads();
}

// kEights: of rows; kTiles: of outputs. A block takes every so manieth tile and loads the weights
// of the next steps, also those of the next tile, while it multiplies.
template <typename Weights, int kEights, int kTiles>
struct Kernel {
  using Stream = typename Weights::template Stream<kEights, kTiles>;
  static constexpr int kOfTile = kTiles * kOutputs;
  static constexpr int kSums = kWarps * kOfTile * kEights * 8;
  static constexpr int kBytes = kSums * 4 + Stream::kBytes;
  static constexpr int kBlocks = kEights * kTiles > 4 ? 1 : 2;  // of a multiprocessor
};

template <typename Weights, int kEights, int kTiles>
__global__ void __launch_bounds__(kWarps* kWarp, Kernel<Weights, kEights, kTiles>::kBlocks)
    Multiply(RowProductShape shape, Weights weights, Operands operands) {
  using Sizes = Kernel<Weights, kEights, kTiles>;
  extern __shared__ __align__(16) float sums[];  // [kWarps, kOfTile, kEights * 8]
  __shared__ typename Weights::Shared shared;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int steps = static_cast<int>(shape.inputs / Weights::kStep);
  const int tiles = static_cast<int>((shape.outputs + kOutputs - 1) / kOutputs);
  const int stride = static_cast<int>(gridDim.x) * kTiles;
  LetNextStart();
  int tile = static_cast<int>(blockIdx.x) * kTiles;
  typename Sizes::Stream stream(weights, {tile, tiles, stride, warp, steps, warp}, lane,
                                reinterpret_cast<unsigned char*>(sums + Sizes::kSums));
  Weights::Prepare(shared);
  const Bf16* rows[kEights];  // those beyond the last read it again
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    const int64_t row = min(static_cast<int64_t>(n * 8 + lane / 4), shape.rows - 1);
    rows[n] = static_cast<const Bf16*>(operands.a.data) + row * operands.a.stride +
              Weights::FirstInput(lane);
  }
  // The weights are on their way before the rows may be there.
  WaitForPrevious();
  for (; tile < tiles; tile += stride) {
    float d[kTiles][kEights][4] = {};
    for (int step = warp; step < steps; step += kWarps) {
      typename Weights::Part parts[kTiles];
      stream.Take(parts);
      Weights::template TakeStep<kEights, kTiles>(d, parts, rows, step, shared, lane);
    }
    WriteTile<kEights, kTiles>(d, sums, shape, operands, int64_t{tile} * kOutputs);
  }
}

template <typename Weights, int kEights, int kTiles>
cudaError_t Launch(const RowProductShape& shape, const Weights& weights, const Operands& operands,
                   cudaStream_t stream) {
  using Sizes = Kernel<Weights, kEights, kTiles>;
  if (const cudaError_t error =
          cudaFuncSetAttribute(Multiply<Weights, kEights, kTiles>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes::kBytes);
      error != cudaSuccess) {
    return error;
  }
  const int64_t tiles = (shape.outputs + Sizes::kOfTile - 1) / Sizes::kOfTile;
  const int64_t blocks = std::min<int64_t>(tiles, 2 * Multiprocessors());
  return LaunchEarly(Multiply<Weights, kEights, kTiles>, static_cast<unsigned>(blocks),
                     kWarps * kWarp, Sizes::kBytes, stream, shape, weights, operands);
}

template <typename Weights>
cudaError_t LaunchFor(const RowProductShape& shape, const Weights& weights,
                      const Operands& operands, cudaStream_t stream) {
  if (shape.rows <= 8) return Launch<Weights, 1, 1>(shape, weights, operands, stream);
  if (shape.rows <= 16) return Launch<Weights, 2, 1>(shape, weights, operands, stream);
  if (shape.rows <= 32) return Launch<Weights, 4, 2>(shape, weights, operands, stream);
  return Launch<Weights, 8, 2>(shape, weights, operands, stream);
}

// A thread a lane's 16 bytes.
template <typename T>
__global__ void __launch_bounds__(256)
    DequantizeTiles(int64_t outputs, int64_t inputs, const uint8_t* codes, const float* absmax,
                    T* out) {
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = nf4_values.values[threadIdx.x];
  __syncthreads();
  const int64_t part = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  const int64_t tile = part / (2 * kWarp), steps = inputs / kNf4TileInputs;
  const int lane = static_cast<int>(part % kWarp), half = static_cast<int>(part / kWarp % 2);
  const int64_t output = tile / steps * kNf4TileOutputs + half * 8 + lane / 4;
  if (output >= outputs) return;
  const auto bytes = reinterpret_cast<const Vec<uint8_t, 16>*>(codes)[part];
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const float scale = absmax[(tile * 8 + lane / 4) * 4 + half * 2 + block];
    Vec<T, 8> wide[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint8_t byte = bytes.values[block * 8 + i];
      wide[i / 4].values[i % 4 * 2] = FromFloat<T>(values[byte >> 4] * scale);
      wide[i / 4].values[i % 4 * 2 + 1] = FromFloat<T>(values[byte & 15] * scale);
    }
    auto* to = reinterpret_cast<Vec<T, 8>*>(out + output * inputs + tile % steps * kNf4TileInputs +
                                            block * kNf4Block + lane % 4 * 16);
    to[0] = wide[0];
    to[1] = wide[1];
  }
}

}  // namespace

bool HasRowProduct(int64_t inputs) { return inputs % 16 == 0; }
bool HasNf4RowProduct(int64_t inputs) { return inputs % kNf4TileInputs == 0; }

cudaError_t LaunchRowProduct(const RowProductShape& shape, ConstRows a, ConstRows weight,
                             ConstRows addend, MutableRows out, cudaStream_t stream) {
  const auto* rows = static_cast<const Bf16*>(weight.data);
  const Operands operands{a, addend, out};
  if (shape.inputs % 32 == 0) {
    return LaunchFor(shape, PlainWeights<32>{rows, weight.stride, shape.outputs}, operands, stream);
  }
  return LaunchFor(shape, PlainWeights<16>{rows, weight.stride, shape.outputs}, operands, stream);
}

cudaError_t LaunchNf4RowProduct(const RowProductShape& shape, ConstRows a, const uint8_t* codes,
                                const float* absmax, ConstRows addend, MutableRows out,
                                cudaStream_t stream) {
  const Nf4Weights weights{codes, absmax, static_cast<int>(shape.inputs / kNf4TileInputs),
                           static_cast<int>(Nf4TilesOf(shape.outputs))};
  return LaunchFor(shape, weights, {a, addend, out}, stream);
}

cudaError_t LaunchNf4TilesDequantize(ElementType type, int64_t outputs, int64_t inputs,
                                     const uint8_t* codes, const float* absmax, void* out,
                                     cudaStream_t stream) {
  const int64_t parts = Nf4TilesOf(outputs) * (inputs / kNf4TileInputs) * 2 * kWarp;
  const auto blocks = static_cast<unsigned>((parts + 255) / 256);
  if (type == ElementType::kBFloat16) {
    DequantizeTiles<<<blocks, 256, 0, stream>>>(outputs, inputs, codes, absmax,
                                                static_cast<Bf16*>(out));
  } else {
    DequantizeTiles<<<blocks, 256, 0, stream>>>(outputs, inputs, codes, absmax,
                                                static_cast<float*>(out));
  }
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
