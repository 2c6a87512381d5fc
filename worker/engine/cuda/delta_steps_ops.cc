#include "worker/engine/cuda/kernels/linear_attention.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/delta_checks.h"

// Linear attention for generation: ShortConvNext and GatedDeltaNext.

namespace sft::engine::cuda {

namespace {

using at::Tensor;

PieceList ListOf(const ops::Pieces& pieces, const Tensor& like, const char* operation) {
  const Tensor& table = pieces.table;
  const auto count = static_cast<int64_t>(pieces.lengths.size());
  TORCH_CHECK(table.defined() && table.scalar_type() == at::kLong && table.dim() == 2 &&
                  table.size(0) == 3 && table.size(1) == count && table.stride(1) == 1 &&
                  table.device() == like.device(),
              operation, ": the table of pieces must be int64 [3, ", count,
              "], dense in the second dimension, beside the rows");
  constexpr int64_t kMostPieces = 65535;  // blocks along a dimension of a grid
  TORCH_CHECK(count <= kMostPieces, operation, ": ", count, " pieces, at most ", kMostPieces);
  const auto* first = table.const_data_ptr<int64_t>();
  return {.first = first,
          .rows = first + table.stride(0),
          .states = first + 2 * table.stride(0),
          .pieces = static_cast<int32_t>(count)};
}

}  // namespace

void ShortConvNext(Tensor& out, Tensor& before, const Tensor& x, const Tensor& weight,
                   const ops::Pieces& pieces) {
  constexpr const char* kName = "ShortConvNext";
  const int64_t tokens = x.size(0);
  CheckShortConv(x, weight, {{}, tokens}, kName);
  CheckRows(out, x.size(0), x.size(1), x, "ShortConvNext: out");
  CheckPieces(pieces, before, {kShortConvWidth - 1, x.size(1)}, x.scalar_type(), x, kName);
  if (x.numel() == 0) return;
  const ElementType weight_type =
      weight.scalar_type() == at::kFloat ? ElementType::kFloat32 : ElementType::kBFloat16;
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchShortConvNext(
      TypeOf(x, kName), {x.size(0), x.size(1)}, ListOf(pieces, x, kName), Read(x), weight_type,
      weight.const_data_ptr(), before.mutable_data_ptr(), Write(out), scope.stream()));
}

void GatedDeltaNext(Tensor& out, Tensor& states, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& g, const Tensor& beta, const ops::Pieces& pieces) {
  constexpr const char* kName = "GatedDeltaNext";
  const int64_t tokens = q.size(0);
  CheckGatedDelta(q, k, v, g, beta, {{}, tokens});
  CheckHeadsLike(out, v, "GatedDeltaNext: out");
  CheckPieces(pieces, states, {v.size(1), q.size(2), v.size(2)}, at::kFloat, q, kName);
  TORCH_CHECK(q.size(2) <= kMostDeltaSize, kName, ": keys of ", q.size(2), ", at most ",
              kMostDeltaSize, " on a GPU");
  if (out.numel() == 0) return;
  const DeltaNextShape shape{.key_heads = static_cast<int32_t>(q.size(1)),
                             .value_heads = static_cast<int32_t>(v.size(1)),
                             .key_size = static_cast<int32_t>(q.size(2)),
                             .value_size = static_cast<int32_t>(v.size(2)),
                             .pieces = ListOf(pieces, q, kName)};
  const DeltaOperands operands{.q = Read(q),
                               .k = Read(k),
                               .v = Read(v),
                               .g = g.const_data_ptr<float>(),
                               .beta = beta.const_data_ptr<float>()};
  const LaunchScope scope(q);
  C10_CUDA_CHECK(LaunchDeltaNext(TypeOf(q, kName), shape, operands,
                                 states.mutable_data_ptr<float>(), Write(out), scope.stream()));
}

}  // namespace sft::engine::cuda
