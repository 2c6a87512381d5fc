#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "common/plan/attention_calls.h"
#include "worker/engine/cuda/kernels/linear_attention.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/delta_checks.h"

// Linear attention: ShortConv, GatedDelta and GatedRmsNorm.

namespace sft::engine::cuda {

namespace {

using at::Tensor;

DocumentList ListOf(const ops::Documents& documents, const Tensor& like, const char* operation) {
  const Tensor& starts = documents.cu_seqlens;
  const auto count = static_cast<int64_t>(documents.lengths.size());
  TORCH_CHECK(starts.scalar_type() == at::kInt && starts.is_contiguous() &&
                  starts.numel() == count + 1 && starts.device() == like.device(),
              operation, ": cu_seqlens must be int32 [", count + 1, "], dense, beside the tokens");
  return {.cu_seqlens = starts.const_data_ptr<int32_t>(),
          .documents = static_cast<int32_t>(count),
          .longest = count > 0
                         ? *std::max_element(documents.lengths.begin(), documents.lengths.end())
                         : 0};
}

// As the kernels take it: scalar_type was checked.
ElementType WeightType(const Tensor& weight) {
  return weight.scalar_type() == at::kFloat ? ElementType::kFloat32 : ElementType::kBFloat16;
}

GatedNormShape NormShapeOf(const Tensor& x, const Tensor& weight, const char* operation) {
  TORCH_CHECK(weight.numel() <= kMostGatedNormSize, operation, ": heads of ", weight.numel(),
              ", at most ", kMostGatedNormSize, " on a GPU");
  return {.tokens = x.size(0),
          .heads = static_cast<int32_t>(x.size(1) / weight.numel()),
          .size = static_cast<int32_t>(weight.numel())};
}

DeltaShape DeltaShapeOf(const Tensor& q, const Tensor& v, const ops::Documents& documents) {
  TORCH_CHECK(q.size(2) <= kMostDeltaSize && v.size(2) <= kMostDeltaSize, "GatedDelta: heads of ",
              q.size(2), " and ", v.size(2), ", at most ", kMostDeltaSize, " on a GPU");
  return {.tokens = q.size(0),
          .key_heads = static_cast<int32_t>(q.size(1)),
          .value_heads = static_cast<int32_t>(v.size(1)),
          .key_size = static_cast<int32_t>(q.size(2)),
          .value_size = static_cast<int32_t>(v.size(2)),
          .documents = ListOf(documents, q, "GatedDelta")};
}

DeltaOperands DeltaOperandsOf(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                              const Tensor& beta) {
  return {.q = Read(q),
          .k = Read(k),
          .v = Read(v),
          .g = g.const_data_ptr<float>(),
          .beta = beta.const_data_ptr<float>()};
}

// Calls launch(plan, workspace) for tensor cores.
template <typename Launch>
void LaunchChunks(const DeltaShape& shape, bool backward, const Tensor& like,
                  const Launch& launch) {
  const DeltaPlan plan = PlanDelta(shape, backward, plan::kDeltaWorkspace);
  const Tensor workspace = at::empty({plan.bytes}, like.options().dtype(at::kByte));
  C10_CUDA_CHECK(launch(plan, workspace.mutable_data_ptr()));
}

// Calls launch(workspace, blocks) with as many blocks as have something to do and room.
template <typename Launch>
void LaunchPlain(const DeltaShape& shape, bool backward, const Tensor& like, const Launch& launch) {
  const int64_t floats = DeltaPlainFloats(shape, backward);
  const int64_t tasks = int64_t{shape.documents.documents} * shape.key_heads;
  const int64_t blocks = std::clamp<int64_t>(plan::kDeltaWorkspace / (4 * floats), 1, tasks);
  const Tensor workspace = at::empty({blocks * floats}, like.options().dtype(at::kFloat));
  C10_CUDA_CHECK(launch(workspace.mutable_data_ptr<float>(), blocks));
}

}  // namespace

void ShortConv(Tensor& out, const Tensor& x, const Tensor& weight,
               const ops::Documents& documents) {
  CheckShortConv(x, weight, documents, "ShortConv");
  CheckRows(out, x.size(0), x.size(1), x, "ShortConv: out");
  if (x.numel() == 0) return;
  const DocumentList list = ListOf(documents, x, "ShortConv");
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchShortConv(TypeOf(x, "ShortConv"), {x.size(0), x.size(1)}, list, Read(x),
                                 WeightType(weight), weight.const_data_ptr(), Write(out),
                                 scope.stream()));
}

Tensor ShortConvBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const ops::Documents& documents, bool need_weight_grad) {
  constexpr const char* kName = "ShortConvBackward";
  CheckShortConv(x, weight, documents, kName);
  CheckRows(dx, x.size(0), x.size(1), x, "ShortConvBackward: dx");
  CheckRows(dy, x.size(0), x.size(1), x, "ShortConvBackward: dy");
  const RowsShape shape = {x.size(0), x.size(1)};
  const auto floats = x.options().dtype(at::kFloat);
  const int64_t channels = need_weight_grad ? shape.width : 0;
  if (x.numel() == 0) return at::zeros({channels, kShortConvWidth}, floats);
  Tensor dweight = at::empty({channels, kShortConvWidth}, floats), partials;
  if (need_weight_grad) {
    partials = at::empty({ShortConvPartials(shape), kShortConvWidth * shape.width}, floats);
  }
  const DocumentList list = ListOf(documents, x, kName);
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchShortConvBackward(
      TypeOf(x, kName), shape, list, Read(dy), Read(x), WeightType(weight), weight.const_data_ptr(),
      Write(dx), need_weight_grad ? partials.mutable_data_ptr<float>() : nullptr,
      dweight.mutable_data_ptr<float>(), scope.stream()));
  return dweight;
}

void GatedDelta(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                const Tensor& beta, const ops::Documents& documents) {
  CheckGatedDelta(q, k, v, g, beta, documents);
  CheckHeadsLike(out, v, "GatedDelta: out");
  if (out.numel() == 0) return;
  const DeltaShape shape = DeltaShapeOf(q, v, documents);
  const DeltaOperands operands = DeltaOperandsOf(q, k, v, g, beta);
  const ElementType type = TypeOf(q, "GatedDelta");
  const LaunchScope scope(q);
  if (HasDeltaChunks(type, shape, operands, Write(out))) {
    return LaunchChunks(shape, /*backward=*/false, q, [&](const DeltaPlan& plan, void* workspace) {
      return LaunchDeltaChunks(shape, operands, Write(out), plan, workspace, scope.stream());
    });
  }
  LaunchPlain(shape, /*backward=*/false, q, [&](float* workspace, int64_t blocks) {
    return LaunchDeltaPlain(type, shape, operands, Write(out), workspace, blocks, scope.stream());
  });
}

void GatedDeltaBackward(Tensor& dq, Tensor& dk, Tensor& dv, Tensor& dg, Tensor& dbeta,
                        const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& g, const Tensor& beta, const ops::Documents& documents) {
  CheckGatedDelta(q, k, v, g, beta, documents);
  CheckHeadsLike(dq, q, "GatedDeltaBackward: dq");
  CheckHeadsLike(dk, k, "GatedDeltaBackward: dk");
  CheckHeadsLike(dv, v, "GatedDeltaBackward: dv");
  CheckHeadsLike(dout, v, "GatedDeltaBackward: dout");
  CheckGates(dg, g.size(0), g.size(1), q, "GatedDeltaBackward: dg");
  CheckGates(dbeta, g.size(0), g.size(1), q, "GatedDeltaBackward: dbeta");
  if (q.size(0) == 0) return;
  const DeltaShape shape = DeltaShapeOf(q, v, documents);
  const DeltaOperands operands = DeltaOperandsOf(q, k, v, g, beta);
  const DeltaGradients gradients{.dout = Read(dout),
                                 .dq = Write(dq),
                                 .dk = Write(dk),
                                 .dv = Write(dv),
                                 .dg = dg.mutable_data_ptr<float>(),
                                 .dbeta = dbeta.mutable_data_ptr<float>()};
  const ElementType type = TypeOf(q, "GatedDeltaBackward");
  const LaunchScope scope(q);
  if (HasDeltaChunks(type, shape, operands, gradients)) {
    return LaunchChunks(shape, /*backward=*/true, q, [&](const DeltaPlan& plan, void* workspace) {
      return LaunchDeltaChunksBackward(shape, operands, gradients, plan, workspace, scope.stream());
    });
  }
  LaunchPlain(shape, /*backward=*/true, q, [&](float* workspace, int64_t blocks) {
    return LaunchDeltaPlainBackward(type, shape, operands, gradients, workspace, blocks,
                                    scope.stream());
  });
}

Tensor GatedRmsNorm(Tensor& y, const Tensor& x, const Tensor& gate, const Tensor& weight,
                    double epsilon, const ops::Fp8Rows& fp8) {
  constexpr const char* kName = "GatedRmsNorm";
  CheckGatedNorm(x, gate, weight, kName);
  CheckRows(y, x.size(0), x.size(1), x, "GatedRmsNorm: y");
  const GatedNormShape shape = NormShapeOf(x, weight, kName);
  Tensor rstd = at::empty({shape.tokens, shape.heads}, weight.options());
  if (x.numel() > 0) {
    const LaunchScope scope(x);
    C10_CUDA_CHECK(LaunchGatedRmsNorm(TypeOf(x, kName), shape, Read(x), Read(gate),
                                      weight.const_data_ptr<float>(), static_cast<float>(epsilon),
                                      Write(y), rstd.mutable_data_ptr<float>(), scope.stream()));
  }
  if (WantsFp8(fp8, y, kName)) {
    Tensor values = fp8.values, scale = fp8.scale;
    Fp8Quantize(values, scale, y);
  }
  return rstd;
}

Tensor GatedRmsNormBackward(Tensor& dx, Tensor& dgate, const Tensor& dy, const Tensor& x,
                            const Tensor& gate, const Tensor& weight, const Tensor& rstd,
                            bool need_weight_grad) {
  constexpr const char* kName = "GatedRmsNormBackward";
  CheckGatedNorm(x, gate, weight, kName);
  for (const Tensor& rows : {dx, dgate, dy}) CheckRows(rows, x.size(0), x.size(1), x, kName);
  TORCH_CHECK(rstd.is_contiguous() && rstd.scalar_type() == at::kFloat &&
                  rstd.numel() * weight.numel() == x.numel() && rstd.device() == x.device(),
              kName, ": rstd is ", rstd.sizes(), ", must be GatedRmsNorm's of x");
  const GatedNormShape shape = NormShapeOf(x, weight, kName);
  const int64_t size = need_weight_grad ? shape.size : 0;
  if (x.numel() == 0) return at::zeros({size}, weight.options());
  const ElementType type = TypeOf(x, kName);
  Tensor dweight = at::empty({size}, weight.options()), partials;
  if (need_weight_grad) {
    partials = at::empty({GatedNormPartials(type, shape), size}, weight.options());
  }
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchGatedRmsNormBackward(
      type, shape, Read(dy), Read(x), Read(gate), weight.const_data_ptr<float>(),
      rstd.const_data_ptr<float>(), Write(dx), Write(dgate),
      need_weight_grad ? partials.mutable_data_ptr<float>() : nullptr,
      dweight.mutable_data_ptr<float>(), scope.stream()));
  return dweight;
}

}  // namespace sft::engine::cuda
