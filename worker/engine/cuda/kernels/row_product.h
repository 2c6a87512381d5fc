// Launcher of products of few rows with a weight that is read once; see launch.h for what all
// launchers keep to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// Most rows of one launch.
inline constexpr int64_t kMostProductRows = 64;

// out [rows, outputs] = alpha * a [rows, inputs] weight^T (+ addend), in bf16.
struct RowProductShape {
  int64_t rows = 0, outputs = 0, inputs = 0;
  float alpha = 1.0f;
};

// Whether there is a kernel for weights of so many inputs: as bf16 rows, or as NF4.
bool HasRowProduct(int64_t inputs);
bool HasNf4RowProduct(int64_t inputs);

// A row's bits do not depend on the rows beside it nor on how many they are. `addend.data` null:
// there is none; it may be out. Rows of a and of the weight are aligned to 16 bytes. The weight may
// not be what the kernel before it writes: it is loaded before that one has ended.
cudaError_t LaunchRowProduct(const RowProductShape& shape, ConstRows a, ConstRows weight,
                             ConstRows addend, MutableRows out, cudaStream_t stream);

// NF4 (kernels/nf4_tables.h) in the order in which a warp reads it. A tile is 16 outputs and 128
// inputs, outputs beyond the last zeros; tiles stand by outputs, then inputs. In a tile, lane l of
// either half has 16 bytes, one lane after the other: output half * 8 + l / 4, inputs 16 (l % 4) to
// 16 (l % 4) + 15 of the tile's first block of 64, then of its second. Its absmax: for each of
// eight outputs, those of the first half's two blocks, then of the second half's.
inline constexpr int64_t kNf4TileOutputs = 16, kNf4TileInputs = 128;
constexpr int64_t Nf4TilesOf(int64_t outputs) {
  return (outputs + kNf4TileOutputs - 1) / kNf4TileOutputs;
}

// The sums over a block of 64 inputs are made of the codes' values rounded to bf16, and multiplied
// by its absmax in fp32.
cudaError_t LaunchNf4RowProduct(const RowProductShape& shape, ConstRows a, const uint8_t* codes,
                                const float* absmax, ConstRows addend, MutableRows out,
                                cudaStream_t stream);
// out [outputs, inputs], dense: the values, as LaunchNf4Dequantize has them.
cudaError_t LaunchNf4TilesDequantize(ElementType type, int64_t outputs, int64_t inputs,
                                     const uint8_t* codes, const float* absmax, void* out,
                                     cudaStream_t stream);

}  // namespace sft::engine::cuda
