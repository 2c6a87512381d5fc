#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

NormRopeShape NormRopeShapeOf(const Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t size,
                              const char* operation) {
  TORCH_CHECK(size <= NormRopeMaxHeadSize(), operation, ": heads of ", size,
              " are larger than the largest, ", NormRopeMaxHeadSize());
  return {qkv.size(0), static_cast<int>(heads), static_cast<int>(kv_heads), static_cast<int>(size)};
}

}  // namespace

void Rope(Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  TORCH_CHECK(x.dim() == 3, "Rope: x is ", x.sizes(), ", must be [tokens, heads, size]");
  CheckHeads(x, x.size(0), x.size(2), x, "Rope: x");
  CheckAngles(cos, sin, x.size(0), RotatedSize(cos, x.size(2), "Rope"), x, "Rope");
  const ElementType type = TypeOf(x, "Rope");
  if (x.numel() == 0) return;
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchRope(type, {x.size(0), x.size(1), x.size(2), cos.size(1), x.stride(0)},
                            x.mutable_data_ptr(), cos.const_data_ptr<float>(),
                            sin.const_data_ptr<float>(), inverse, scope.stream()));
}

void NormRope(Tensor& q, Tensor& k, const Tensor& qkv, const Tensor& q_weight,
              const Tensor& k_weight, const Tensor& cos, const Tensor& sin,
              const ops::NormOptions& options) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3, "NormRope: q is ", q.sizes(), ", k is ", k.sizes(),
              ", must be [tokens, heads, size]");
  CheckNormRope(qkv, q_weight, k_weight, cos, sin, q.size(1), k.size(1), "NormRope");
  const int64_t size = q_weight.numel();
  CheckHeads(q, qkv.size(0), size, qkv, "NormRope: q");
  CheckHeads(k, qkv.size(0), size, qkv, "NormRope: k");
  const ElementType type = TypeOf(qkv, "NormRope");
  const NormRopeShape shape = NormRopeShapeOf(qkv, q.size(1), k.size(1), size, "NormRope");
  if (q.numel() + k.numel() == 0) return;
  const LaunchScope scope(qkv);
  C10_CUDA_CHECK(LaunchNormRope(type, shape, {qkv.const_data_ptr(), qkv.stride(0)},
                                q_weight.const_data_ptr(), k_weight.const_data_ptr(),
                                cos.const_data_ptr<float>(), sin.const_data_ptr<float>(),
                                ScalingOf(options), {q.mutable_data_ptr(), q.stride(0)},
                                {k.mutable_data_ptr(), k.stride(0)}, scope.stream()));
}

ops::NormRopeGradients NormRopeBackward(Tensor& dqkv, const Tensor& qkv, const Tensor& q_weight,
                                        const Tensor& k_weight, const Tensor& cos,
                                        const Tensor& sin, int64_t heads, int64_t kv_heads,
                                        const ops::NormOptions& options, bool need_weight_grad) {
  CheckNormRope(qkv, q_weight, k_weight, cos, sin, heads, kv_heads, "NormRopeBackward");
  CheckRows(dqkv, qkv.size(0), qkv.size(1), qkv, "NormRopeBackward: dqkv");
  const int64_t size = q_weight.numel();
  const ElementType type = TypeOf(qkv, "NormRopeBackward");
  const NormRopeShape shape = NormRopeShapeOf(qkv, heads, kv_heads, size, "NormRopeBackward");
  const auto floats = qkv.options().dtype(at::kFloat);
  const int64_t wanted = need_weight_grad ? size : 0;
  if (qkv.size(0) * (heads + kv_heads) == 0) {
    return {at::zeros({wanted}, floats), at::zeros({wanted}, floats)};
  }
  Tensor dweights = at::empty({2, wanted}, floats);
  Tensor partials = at::empty({NormRopeWeightPartials(), 2 * wanted}, floats);
  const LaunchScope scope(qkv);
  C10_CUDA_CHECK(LaunchNormRopeBackward(
      type, shape, {dqkv.mutable_data_ptr(), dqkv.stride(0)}, {qkv.const_data_ptr(), qkv.stride(0)},
      q_weight.const_data_ptr(), k_weight.const_data_ptr(), cos.const_data_ptr<float>(),
      sin.const_data_ptr<float>(), ScalingOf(options),
      need_weight_grad ? partials.mutable_data_ptr<float>() : nullptr,
      need_weight_grad ? dweights.mutable_data_ptr<float>() : nullptr, scope.stream()));
  return {dweights[0], dweights[1]};
}

}  // namespace sft::engine::cuda
