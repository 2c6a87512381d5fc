#include <algorithm>

#include "worker/engine/cuda/kernels/early.cuh"
#include "worker/engine/cuda/kernels/mma.cuh"
#include "worker/engine/cuda/kernels/nf4.cuh"
#include "worker/engine/cuda/kernels/row_product.h"
#include "worker/engine/cuda/kernels/vec.cuh"

// A block takes tiles of outputs and all rows, and its warps take steps of the inputs in turn;
// their sums are joined in the warps' order. So a result is the same sum in the same order however
// many rows there are. Weights are the 16 rows of a product on tensor cores and rows its 8 columns.
//
// In one step lane l has inputs [c, c + kStep / 4) of the step, c = l % 4 * kStep / 4, of the
// weight's rows l / 4 and l / 4 + 8 and of row l / 4 of each eight: any order of the inputs gives
// the same product, and this one makes each lane's part one wide access.

namespace sft::engine::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kOutputs = 16;  // of one tile

// Weights as bf16 rows.
template <int kInputs>
struct PlainWeights {
  static constexpr int kStep = kInputs;
  using Part = Vec<Bf16, kStep / 4>;

  const Bf16* rows;
  int64_t stride;

  struct Shared {};
  static __device__ __forceinline__ void Prepare(Shared&) {}
  __device__ __forceinline__ Part Load(int64_t row, int64_t step, int quarter) const {
    return *reinterpret_cast<const Part*>(rows + row * stride + step * kStep +
                                          quarter * (kStep / 4));
  }
  // Inputs 4 i to 4 i + 3 of the part, two to a register.
  static __device__ __forceinline__ void Expand(const Part& part, int i, const Shared&, int,
                                                uint32_t& low, uint32_t& high) {
    const auto* words = reinterpret_cast<const uint32_t*>(part.values);
    low = words[2 * i];
    high = words[2 * i + 1];
  }
};

// Weights as NF4.
struct Nf4Weights {
  static constexpr int kStep = 128;
  struct Part {
    uint4 codes;
    float absmax;
  };

  const uint8_t* codes;
  const float* absmax;
  int64_t inputs;

  // The values of the two codes of a byte, a copy for each of 16 lanes: those that read at a time
  // read from different banks.
  static constexpr int kCopies = 16;
  struct Shared {
    float2 values[256 * kCopies];
  };
  static __device__ __forceinline__ void Prepare(Shared& shared) {
    for (int i = static_cast<int>(threadIdx.x); i < 256 * kCopies; i += kWarps * kWarp) {
      const int byte = i / kCopies;  // the first code is the high one
      shared.values[i] = make_float2(nf4_values.values[byte / 16], nf4_values.values[byte % 16]);
    }
    __syncthreads();
  }
  __device__ __forceinline__ Part Load(int64_t row, int64_t step, int quarter) const {
    return {*reinterpret_cast<const uint4*>(codes + row * (inputs / 2) + step * (kStep / 2) +
                                            quarter * (kStep / 8)),
            absmax[row * (inputs / kNf4Block) + step * (kStep / kNf4Block) + quarter / 2]};
  }
  static __device__ __forceinline__ void Expand(const Part& part, int i, const Shared& shared,
                                                int lane, uint32_t& low, uint32_t& high) {
    const auto* words = reinterpret_cast<const uint32_t*>(&part.codes);
    const auto* table = reinterpret_cast<const unsigned char*>(shared.values);
    const auto pair = [&](uint32_t shifted) {  // the byte in bits 7 to 14
      const uint32_t offset = (shifted & 0x7f80u) | static_cast<uint32_t>(lane % kCopies * 8);
      const float2 values = *reinterpret_cast<const float2*>(table + offset);
      return PackPair(values.x * part.absmax, values.y * part.absmax);
    };
    const uint32_t word = words[i / 2];
    low = pair(i % 2 == 0 ? word << 7 : word >> 9);
    high = pair(i % 2 == 0 ? word >> 1 : word >> 17);
  }
};

struct Operands {
  ConstRows a, addend;
  MutableRows out;
};

// Adds the products of one step to the sums.
template <typename Weights, int kEights, int kTiles>
__device__ __forceinline__ void TakeStep(float (&d)[kTiles][kEights][4],
                                         const typename Weights::Part (&parts)[kTiles][2],
                                         const Bf16* const (&rows)[kEights], int64_t step,
                                         const typename Weights::Shared& shared, int lane) {
  constexpr int kQuarter = Weights::kStep / 4, kWide = kQuarter < 8 ? kQuarter : 8;
  // With few rows, all their elements are loaded before the first is wanted.
  constexpr int kLoads = kQuarter / kWide, kHeld = kEights == 1 ? kLoads : 1;
  Vec<Bf16, kWide> held[kHeld][kEights];
  const auto load = [&](int at) {
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      held[at % kHeld][n] =
          *reinterpret_cast<const Vec<Bf16, kWide>*>(rows[n] + step * Weights::kStep + at * kWide);
    }
  };
  if constexpr (kHeld > 1) {
#pragma unroll
    for (int at = 0; at < kLoads; ++at) load(at);
  }
#pragma unroll
  for (int i = 0; i < kQuarter / 4; ++i) {
    if constexpr (kHeld == 1) {
      if (i % (kWide / 4) == 0) load(i / (kWide / 4));
    }
    uint32_t a[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      Weights::Expand(parts[m][0], i, shared, lane, a[m][0], a[m][2]);
      Weights::Expand(parts[m][1], i, shared, lane, a[m][1], a[m][3]);
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const auto* b = reinterpret_cast<const uint32_t*>(held[i / (kWide / 4) % kHeld][n].values) +
                      i % (kWide / 4) * 2;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) MultiplyAdd(d[m][n], a[m], b[0], b[1]);
    }
  }
}

// The weights of some steps of a tile of outputs.
template <typename Weights, int kTiles, int kAhead>
struct Parts {
  typename Weights::Part parts[kAhead][kTiles][2];

  __device__ __forceinline__ void Load(const Weights& weights, int64_t first_output,
                                       int64_t outputs, int64_t first_step, int64_t steps,
                                       int lane) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Those beyond the last read it again, as do steps.
        const int64_t output = min(first_output + m * kOutputs + half * 8 + lane / 4, outputs - 1);
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
          parts[ahead][m][half] =
              weights.Load(output, min(first_step + ahead * kWarps, steps - 1), lane % 4);
        }
      }
    }
  }
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
__global__ void __launch_bounds__(kWarps* kWarp, kEights* kTiles > 4 ? 1 : 2)
    Multiply(RowProductShape shape, Weights weights, Operands operands) {
  extern __shared__ float sums[];  // [kWarps, kTiles * kOutputs, kEights * 8]
  __shared__ typename Weights::Shared shared;
  constexpr int kQuarter = Weights::kStep / 4, kOfTile = kTiles * kOutputs;
  constexpr int kAhead = kEights * kTiles > 4 ? 1 : 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t steps = shape.inputs / Weights::kStep;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kOfTile;
  LetNextStart();
  int64_t output = static_cast<int64_t>(blockIdx.x) * kOfTile;
  Parts<Weights, kTiles, kAhead> now, next;
  now.Load(weights, output, shape.outputs, warp, steps, lane);
  Weights::Prepare(shared);
  const Bf16* rows[kEights];  // those beyond the last read it again
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
    const int64_t row = min(static_cast<int64_t>(n * 8 + lane / 4), shape.rows - 1);
    rows[n] =
        static_cast<const Bf16*>(operands.a.data) + row * operands.a.stride + lane % 4 * kQuarter;
  }
  // The weights are on their way before the rows may be there.
  WaitForPrevious();
  for (; output < shape.outputs; output += stride) {
    float d[kTiles][kEights][4] = {};
    for (int64_t first = 0; first < steps; first += kAhead * kWarps) {
      const bool ends = first + kAhead * kWarps >= steps;
      next.Load(weights, ends ? output + stride : output, shape.outputs,
                warp + (ends ? 0 : first + kAhead * kWarps), steps, lane);
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int64_t step = first + warp + ahead * kWarps;
        if (step < steps) {
          TakeStep<Weights, kEights, kTiles>(d, now.parts[ahead], rows, step, shared, lane);
        }
      }
      now = next;
    }
    WriteTile<kEights, kTiles>(d, sums, shape, operands, output);
  }
}

template <typename Weights, int kEights, int kTiles>
cudaError_t Launch(const RowProductShape& shape, const Weights& weights, const Operands& operands,
                   cudaStream_t stream) {
  constexpr int kBytes = kWarps * kTiles * kOutputs * kEights * 8 * 4;
  if (const cudaError_t error = cudaFuncSetAttribute(
          Multiply<Weights, kEights, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const int64_t tiles = (shape.outputs + kTiles * kOutputs - 1) / (kTiles * kOutputs);
  const int64_t blocks = std::min<int64_t>(tiles, 2 * Multiprocessors());
  return LaunchEarly(Multiply<Weights, kEights, kTiles>, static_cast<unsigned>(blocks),
                     kWarps * kWarp, kBytes, stream, shape, weights, operands);
}

template <typename Weights>
cudaError_t LaunchFor(const RowProductShape& shape, const Weights& weights,
                      const Operands& operands, cudaStream_t stream) {
  if (shape.rows <= 8) return Launch<Weights, 1, 1>(shape, weights, operands, stream);
  if (shape.rows <= 16) return Launch<Weights, 2, 1>(shape, weights, operands, stream);
  if (shape.rows <= 32) return Launch<Weights, 4, 2>(shape, weights, operands, stream);
  return Launch<Weights, 8, 2>(shape, weights, operands, stream);
}

}  // namespace

bool HasRowProduct(int64_t inputs) { return inputs % 16 == 0; }
bool HasNf4RowProduct(int64_t inputs) { return inputs % Nf4Weights::kStep == 0; }

cudaError_t LaunchRowProduct(const RowProductShape& shape, ConstRows a, ConstRows weight,
                             ConstRows addend, MutableRows out, cudaStream_t stream) {
  const auto* rows = static_cast<const Bf16*>(weight.data);
  const Operands operands{a, addend, out};
  if (shape.inputs % 32 == 0) {
    return LaunchFor(shape, PlainWeights<32>{rows, weight.stride}, operands, stream);
  }
  return LaunchFor(shape, PlainWeights<16>{rows, weight.stride}, operands, stream);
}

cudaError_t LaunchNf4RowProduct(const RowProductShape& shape, ConstRows a, const uint8_t* codes,
                                const float* absmax, ConstRows addend, MutableRows out,
                                cudaStream_t stream) {
  return LaunchFor(shape, Nf4Weights{codes, absmax, shape.inputs}, {a, addend, out}, stream);
}

}  // namespace sft::engine::cuda
