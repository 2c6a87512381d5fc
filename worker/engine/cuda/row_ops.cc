#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

void CheckNorm(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(x.is_contiguous() && weight.is_contiguous(), "rms_norm: inputs must be contiguous");
  TORCH_CHECK(x.dim() >= 1 && weight.numel() == x.size(-1), "rms_norm: weight has ", weight.numel(),
              " elements, rows have ", x.size(-1));
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "rms_norm: x is ", x.scalar_type(),
              ", weight is ", weight.scalar_type());
}

// A matrix of rows with a dense last dimension; views of a fused projection stay where they lie.
Tensor AsRows(const Tensor& x) {
  return x.dim() == 2 && x.stride(1) == 1 ? x : x.contiguous().view({-1, x.size(-1)});
}

SwigluShape ShapeOf(const Tensor& gate, const Tensor& up) {
  return {gate.size(0), gate.size(1), gate.stride(0), up.stride(0)};
}

void CheckSwiglu(const Tensor& gate, const Tensor& up) {
  TORCH_CHECK(
      gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.dim() >= 1,
      "swiglu: gate is ", gate.scalar_type(), gate.sizes(), ", up is ", up.scalar_type(),
      up.sizes());
}

}  // namespace

std::tuple<Tensor, Tensor> RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  CheckNorm(x, weight);
  const ElementType type = TypeOf(x, "rms_norm");
  Tensor y = at::empty_like(x);
  Tensor rstd = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat));
  if (x.numel() == 0) return {y, rstd};
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchRmsNorm(type, {rstd.numel(), weight.numel()}, x.const_data_ptr(),
                               weight.const_data_ptr(), static_cast<float>(eps),
                               y.mutable_data_ptr(), rstd.mutable_data_ptr<float>(),
                               scope.stream()));
  return {y, rstd};
}

std::tuple<Tensor, Tensor> RmsNormBackward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                           const Tensor& rstd, bool need_weight_grad) {
  CheckNorm(x, weight);
  TORCH_CHECK(dy.is_contiguous() && dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type(),
              "rms_norm_backward: bad dy");
  const ElementType type = TypeOf(x, "rms_norm_backward");
  const RmsNormShape shape = {rstd.numel(), weight.numel()};
  const auto floats = x.options().dtype(at::kFloat);
  Tensor dx = at::empty_like(x);
  if (x.numel() == 0) return {dx, at::zeros({need_weight_grad ? shape.width : 0}, floats)};
  Tensor dweight = at::empty({need_weight_grad ? shape.width : 0}, floats);
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchRmsNormBackward(type, shape, dy.const_data_ptr(), x.const_data_ptr(),
                                       weight.const_data_ptr(), rstd.const_data_ptr<float>(),
                                       dx.mutable_data_ptr(), scope.stream()));
  if (need_weight_grad) {
    Tensor partials = at::empty({RmsNormWeightPartials(shape), shape.width}, floats);
    C10_CUDA_CHECK(LaunchRmsNormWeightBackward(
        type, shape, dy.const_data_ptr(), x.const_data_ptr(), rstd.const_data_ptr<float>(),
        partials.mutable_data_ptr<float>(), dweight.mutable_data_ptr<float>(), scope.stream()));
  }
  return {dx, dweight};
}

void Rope(Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) % 2 == 0, "rope_: x must be [tokens, heads, even size]");
  TORCH_CHECK(x.stride(2) == 1 && x.stride(1) == x.size(2), "rope_: heads must be dense");
  TORCH_CHECK(cos.is_contiguous() && sin.is_contiguous() && cos.sizes() == sin.sizes() &&
                  cos.dim() == 2 && cos.size(0) == x.size(0) && cos.size(1) == x.size(2) / 2,
              "rope_: cos and sin must be [", x.size(0), ", ", x.size(2) / 2, "]");
  const ElementType type = TypeOf(x, "rope_");
  if (x.numel() == 0) return;
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchRope(type, {x.size(0), x.size(1), x.size(2) / 2, x.stride(0)},
                            x.mutable_data_ptr(), cos.const_data_ptr<float>(),
                            sin.const_data_ptr<float>(), inverse, scope.stream()));
}

Tensor Swiglu(const Tensor& gate, const Tensor& up) {
  CheckSwiglu(gate, up);
  const ElementType type = TypeOf(gate, "swiglu");
  Tensor out = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return out;
  const Tensor gates = AsRows(gate), ups = AsRows(up);
  const LaunchScope scope(gate);
  C10_CUDA_CHECK(LaunchSwiglu(type, ShapeOf(gates, ups), gates.const_data_ptr(),
                              ups.const_data_ptr(), out.mutable_data_ptr(), scope.stream()));
  return out;
}

std::tuple<Tensor, Tensor> SwigluBackward(const Tensor& dy, const Tensor& gate, const Tensor& up) {
  CheckSwiglu(gate, up);
  CheckSwiglu(dy, up);
  const ElementType type = TypeOf(gate, "swiglu_backward");
  Tensor dgate = at::empty(gate.sizes(), gate.options());
  Tensor dup = at::empty(up.sizes(), up.options());
  if (gate.numel() == 0) return {dgate, dup};
  const Tensor dys = AsRows(dy), gates = AsRows(gate), ups = AsRows(up);
  const LaunchScope scope(gate);
  C10_CUDA_CHECK(LaunchSwigluBackward(
      type, ShapeOf(gates, ups), dys.const_data_ptr(), dys.stride(0), gates.const_data_ptr(),
      ups.const_data_ptr(), dgate.mutable_data_ptr(), dup.mutable_data_ptr(), scope.stream()));
  return {dgate, dup};
}

Tensor CrossEntropy(Tensor& logits, const Tensor& targets, bool backward) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && targets.numel() == logits.size(0),
              "cross_entropy_: logits ", logits.sizes(), " for ", targets.numel(), " targets");
  TORCH_CHECK(targets.scalar_type() == at::kLong && targets.is_contiguous() && targets.is_cuda(),
              "cross_entropy_: targets must be contiguous int64 on the GPU");
  const ElementType type = TypeOf(logits, "cross_entropy_");
  const auto floats = logits.options().dtype(at::kFloat);
  if (logits.numel() == 0) return at::zeros({}, floats);
  Tensor losses = at::empty({logits.size(0)}, floats);
  const LaunchScope scope(logits);
  C10_CUDA_CHECK(LaunchCrossEntropy(type, logits.size(0), logits.size(1), logits.mutable_data_ptr(),
                                    targets.const_data_ptr<int64_t>(), backward,
                                    losses.mutable_data_ptr<float>(), scope.stream()));
  return losses.sum(at::kDouble).to(at::kFloat);
}

}  // namespace sft::engine::cuda
