// Products of rows that are sorted into groups, each with a matrix of its own, on Hopper: the
// experts of a mixture. See launch.h for what all launchers keep to.
//
// The borders of the groups are read on the GPU, so nobody waits for them. Thread blocks stay and
// take tiles of 128 rows of a group by ticket, so that one that starts late, beside a collective,
// holds nobody up; one thread fetches operands by TMA, two warp groups multiply. A row's result is
// summed in one order whoever computes it and whatever stands beside it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// The most groups that a launch takes.
inline constexpr int kMaxGroups = 512;

// Matrices of bf16 or FP8, one for each group, `group_stride` elements apart: of the two dimensions
// of each one is dense. Strides are multiples of 16 bytes and data starts on 16 bytes.
struct GroupMatrices {
  const void* data = nullptr;
  int64_t row_stride = 0;  // of the dimension that is not dense
  int64_t group_stride = 0;
  bool across = false;  // dense along the outputs, else along the sum
};

// out = alpha * a b, or a b + more_a more_b, plus the group's bias. Rows of group g are
// [begins[g], begins[g + 1]); rows outside all groups are left alone.
struct GroupedProduct {
  const int32_t* begins = nullptr;  // [groups + 1]
  int groups = 0;
  int64_t rows = 0;  // that a, more_a and out have
  int outputs = 0, depth = 0;
  ConstRows a;           // [rows, depth]
  GroupMatrices b;       // [depth, outputs] each
  int more_depth = 0;    // 0: no second product
  ConstRows more_a;      // [rows, more_depth]
  GroupMatrices more_b;  // [more_depth, outputs] each, dense along the dimension that b is
  // Starts on 16 bytes.
  const void* bias = nullptr;  // bf16 [groups, outputs], or null
  MutableRows out;             // [rows, outputs]
  float alpha = 1.0f;          // 1 with a second product
  int32_t* ticket = nullptr;   // workspace
};
// For compute capability 9.0 alone; `outputs` a multiple of 8.
cudaError_t LaunchGroupedGemm(const GroupedProduct& gemm, int multiprocessors, cudaStream_t stream);

// The same in FP8 (e4m3): out = (a * a_scale) (b * b_scale) + more_a more_b, plus the bias. Each
// row of a and each output of a group has its scale; b is dense along the sum, `depth` a multiple
// of 16. The second product is in bf16, added to the first once that has its scales; more_b may be
// dense along either dimension. Tensor cores keep sums in the 14 bits or so that they hold; without
// `fast_sums` every 128 elements of the sum are added up in fp32.
struct GroupedFp8Product {
  const int32_t* begins = nullptr;  // [groups + 1]
  int groups = 0;
  int64_t rows = 0;
  int outputs = 0, depth = 0;
  ConstRows a;                     // [rows, depth]
  const float* a_scale = nullptr;  // [rows]
  GroupMatrices b;                 // [depth, outputs] each
  const float* b_scale = nullptr;  // [groups, outputs]; starts on 8 bytes
  int more_depth = 0;              // 0: no second product
  ConstRows more_a;                // [rows, more_depth]
  GroupMatrices more_b;            // [more_depth, outputs] each
  const void* bias = nullptr;      // as GroupedProduct's
  MutableRows out;                 // bf16 [rows, outputs]
  bool fast_sums = false;
  int32_t* ticket = nullptr;  // workspace
};
// For compute capability 9.0 alone; `outputs` a multiple of 8.
cudaError_t LaunchGroupedFp8Gemm(const GroupedFp8Product& gemm, int multiprocessors,
                                 cudaStream_t stream);

// sums[g] += alpha * wide_g^T thin_g: a sum over the rows of each group. All rows of `wide` are
// finite: those behind a group's end count zero times. Thread blocks share tiles out by their
// number, without tickets.
struct GroupedSums {
  const int32_t* begins = nullptr;
  int groups = 0;
  int64_t rows = 0;
  int wide_columns = 0, thin_columns = 0;
  ConstRows wide, thin;  // bf16 [rows, columns]
  // Element (w, t) of group g stands at g * group_stride + w * wide_stride + t * thin_stride.
  ElementType type = ElementType::kFloat32;
  void* sums = nullptr;
  int64_t group_stride = 0, wide_stride = 0, thin_stride = 0;
  float alpha = 1.0f;
};
// For compute capability 9.0 alone; reads `wide` once for 64 columns of `thin`.
cudaError_t LaunchGroupedGradient(const GroupedSums& gradient, int multiprocessors,
                                  cudaStream_t stream);

}  // namespace sft::engine::cuda
