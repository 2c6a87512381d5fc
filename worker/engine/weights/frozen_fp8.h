#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/weights/layout.h"
#include "worker/engine/weights/weight_source.h"

// Frozen weights as copies in FP8 that products read in their place.

namespace sft::engine {

// Throws UserError where a linear of the matrix has inputs or outputs that are no multiple of 16,
// which FP8 products need.
void CheckFp8Sizes(const UnitInfo& unit, const MatrixInfo& matrix);

// Zeros in the last fp8_rank - rank columns of `rows`, float8 with the adapters' columns.
void ClearBehindFactors(at::Tensor& rows, const MatrixInfo& matrix);

// Stacks of experts. The scales of rows are powers of two, and 448 the largest that a value may be:
// values of few bits, as those that were published in MXFP4, then lose none where the powers of a
// row's blocks are at most 14 apart; smaller ones are off by 2^-17 of the row's largest.

// Such scales, fp32 [rows], of rows in fp32 or bf16.
at::Tensor ScalesByPowers(const at::Tensor& rows);
// Writes `rows` [E K, N], float8, and their scales where `scale` is undefined: the transposes of
// the experts' matrices, of `stack` [E N, K]. A few experts at a time, so that little memory is
// needed.
void WriteTurned(const at::Tensor& stack, int64_t experts, at::Tensor& rows, at::Tensor& scale);

// FP8 matrices, by UnitInfo::shared_matrices, of the unit's frozen linears whose weights are there;
// the others are undefined. `weights` must stand in their matrices (AllocateMatrices). A linear's
// has room for its adapters, and scales as Fp8Quantize has them; a stack's is as said above. Throws
// UserError as CheckFp8Sizes does.
std::vector<Fp8Matrix> MakeFrozenFp8(const UnitInfo& unit, UnitWeights weights);

}  // namespace sft::engine
