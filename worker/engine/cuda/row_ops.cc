#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

void CheckNorm(const Tensor& x, const Tensor& weight, const char* operation) {
  TORCH_CHECK(x.dim() == 2, operation, ": x is ", x.sizes(), ", must be [tokens, width]");
  CheckRows(x, x.size(0), x.size(1), x, operation);
  CheckVector(weight, x.size(1), x, operation);
}

void CheckGlu(const Tensor& narrow, const Tensor& gate_up, const char* operation) {
  TORCH_CHECK(gate_up.dim() == 2 && gate_up.size(1) % 2 == 0, operation, ": gate_up is ",
              gate_up.sizes(), ", must be [tokens, 2 width]");
  CheckRows(gate_up, gate_up.size(0), gate_up.size(1), gate_up, operation);
  CheckRows(narrow, gate_up.size(0), gate_up.size(1) / 2, gate_up, operation);
}

Tensor NormInto(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& residual,
                const ops::NormOptions& options, const Fp8Output& fp8) {
  const ElementType type = TypeOf(x, "RmsNorm");
  Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  if (x.numel() == 0) return rstd;
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchRmsNorm(type, {x.size(0), x.size(1)}, Read(x), weight.const_data_ptr(),
                               ScalingOf(options),
                               residual.defined() ? Read(residual) : ConstRows{}, Write(y),
                               rstd.mutable_data_ptr<float>(), fp8, scope.stream()));
  return rstd;
}

void QuantizeRows(const ops::Fp8Rows& fp8, const Tensor& x) {
  Tensor values = fp8.values, scale = fp8.scale;
  Fp8Quantize(values, scale, x);
}

// Calls launch(partials, stream) to sum the columns of rows like `x` into `sums`.
template <typename Launch>
void SumThrough(Tensor& sums, const Tensor& x, const char* operation, const Launch& launch) {
  CheckColumnSums(sums, x, operation);
  if (x.numel() == 0) {
    sums.zero_();
    return;
  }
  const LaunchScope scope(x);
  Tensor partials = at::empty({ColumnPartials({x.size(0), x.size(1)}), x.size(1)}, sums.options());
  C10_CUDA_CHECK(launch(partials.mutable_data_ptr<float>(), scope.stream()));
}

}  // namespace

Tensor RmsNorm(Tensor& y, const Tensor& x, const Tensor& weight, const ops::NormOptions& options,
               const ops::Fp8Rows& fp8) {
  CheckNorm(x, weight, "RmsNorm");
  CheckRows(y, x.size(0), x.size(1), x, "RmsNorm: y");
  return NormInto(y, x, weight, Tensor(), options, WriteFp8Too(fp8, y, "RmsNorm"));
}

Tensor RmsNormAdd(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& residual,
                  const ops::NormOptions& options) {
  CheckNorm(x, weight, "RmsNormAdd");
  CheckRows(y, x.size(0), x.size(1), x, "RmsNormAdd: y");
  CheckRows(residual, x.size(0), x.size(1), x, "RmsNormAdd: residual");
  return NormInto(y, x, weight, residual, options, {});
}

Tensor RmsNormBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                       const Tensor& rstd, plan::NormKind kind, const Tensor& residual,
                       bool need_weight_grad, const ops::Fp8Rows& fp8) {
  CheckNorm(x, weight, "RmsNormBackward");
  CheckRows(dx, x.size(0), x.size(1), x, "RmsNormBackward: dx");
  CheckRows(dy, x.size(0), x.size(1), x, "RmsNormBackward: dy");
  if (residual.defined()) CheckRows(residual, x.size(0), x.size(1), x, "RmsNormBackward: residual");
  TORCH_CHECK(rstd.is_contiguous() && rstd.numel() == x.size(0) && rstd.device() == x.device(),
              "RmsNormBackward: rstd must be [", x.size(0), "], dense, beside x");
  const ElementType type = TypeOf(x, "RmsNormBackward");
  const Fp8Output quantised = WriteFp8Too(fp8, dx, "RmsNormBackward");
  const RowsShape shape = {x.size(0), x.size(1)};
  const auto floats = x.options().dtype(at::kFloat);
  if (x.numel() == 0) return at::zeros({need_weight_grad ? shape.width : 0}, floats);
  Tensor dweight = at::empty({need_weight_grad ? shape.width : 0}, floats);
  const LaunchScope scope(x);
  const float* r = rstd.const_data_ptr<float>();
  if (need_weight_grad) {  // first: dx may overwrite dy
    Tensor partials = at::empty({ColumnPartials(shape), shape.width}, floats);
    C10_CUDA_CHECK(LaunchRmsNormWeightBackward(type, shape, Read(dy), Read(x), r, FormOf(kind),
                                               partials.mutable_data_ptr<float>(),
                                               dweight.mutable_data_ptr<float>(), scope.stream()));
  }
  C10_CUDA_CHECK(LaunchRmsNormBackward(
      type, shape, Read(dy), Read(x), weight.const_data_ptr(), r, FormOf(kind),
      residual.defined() ? Read(residual) : ConstRows{}, Write(dx), quantised, scope.stream()));
  return dweight;
}

void Glu(Tensor& out, const Tensor& gate_up, plan::ActivationKind kind, const ops::Fp8Rows& fp8) {
  CheckGlu(out, gate_up, "Glu");
  const ElementType type = TypeOf(gate_up, "Glu");
  const Fp8Output quantised = WriteFp8Too(fp8, out, "Glu");
  if (out.numel() == 0) return;
  const LaunchScope scope(gate_up);
  C10_CUDA_CHECK(LaunchGlu(type, {out.size(0), out.size(1)}, kind, Read(gate_up), Write(out),
                           quantised, scope.stream()));
}

void GluBackward(Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                 plan::ActivationKind kind) {
  CheckGlu(dy, gate_up, "GluBackward");
  CheckRows(dgate_up, gate_up.size(0), gate_up.size(1), gate_up, "GluBackward: dgate_up");
  const ElementType type = TypeOf(gate_up, "GluBackward");
  if (dy.numel() == 0) return;
  const LaunchScope scope(gate_up);
  C10_CUDA_CHECK(LaunchGluBackward(type, {dy.size(0), dy.size(1)}, kind, Read(dy), Read(gate_up),
                                   Write(dgate_up), scope.stream()));
}

void Activate(Tensor& out, const Tensor& x, plan::ActivationKind kind, const ops::Fp8Rows& fp8) {
  CheckRows(out, x.size(0), x.size(1), x, "Activate");
  const ElementType type = TypeOf(x, "Activate");
  if (x.numel() > 0) {
    const LaunchScope scope(x);
    C10_CUDA_CHECK(
        LaunchActivate(type, {x.size(0), x.size(1)}, kind, Read(x), Write(out), scope.stream()));
  }
  if (WantsFp8(fp8, out, "Activate")) QuantizeRows(fp8, out);
}

void ActivateBackward(Tensor& dx, const Tensor& dy, const Tensor& x, plan::ActivationKind kind,
                      Tensor& sums) {
  CheckRows(dx, x.size(0), x.size(1), x, "ActivateBackward: dx");
  CheckRows(dy, x.size(0), x.size(1), x, "ActivateBackward: dy");
  const ElementType type = TypeOf(x, "ActivateBackward");
  if (x.numel() > 0) {
    const LaunchScope scope(x);
    C10_CUDA_CHECK(LaunchActivateBackward(type, {x.size(0), x.size(1)}, kind, Read(dy), Read(x),
                                          Write(dx), scope.stream()));
  }
  if (sums.defined()) ColumnSums(sums, dx);
}

void ColumnSums(Tensor& sums, const Tensor& x) {
  const ElementType type = TypeOf(x, "ColumnSums");
  SumThrough(sums, x, "ColumnSums", [&](float* partials, cudaStream_t stream) {
    return LaunchColumnSumsOf(type, {x.size(0), x.size(1)}, Read(x), partials,
                              sums.mutable_data_ptr<float>(), stream);
  });
}

Tensor LayerNorm(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 double epsilon, const ops::Fp8Rows& fp8) {
  CheckLayerNorm(x, weight, "LayerNorm");
  CheckVector(bias, x.size(1), x, "LayerNorm");
  CheckRows(y, x.size(0), x.size(1), x, "LayerNorm: y");
  const ElementType type = TypeOf(x, "LayerNorm");
  Tensor statistics = at::empty({2, x.size(0)}, x.options().dtype(at::kFloat));
  if (x.numel() > 0) {
    const LaunchScope scope(x);
    C10_CUDA_CHECK(LaunchLayerNorm(type, {x.size(0), x.size(1)}, Read(x), weight.const_data_ptr(),
                                   bias.const_data_ptr(), static_cast<float>(epsilon), Write(y),
                                   statistics.mutable_data_ptr<float>(), scope.stream()));
  }
  if (WantsFp8(fp8, y, "LayerNorm")) QuantizeRows(fp8, y);
  return statistics;
}

Tensor LayerNormBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const Tensor& statistics, const Tensor& residual, bool need_weight_grads,
                         Tensor& sums, const ops::Fp8Rows& fp8) {
  CheckLayerNormBackward(dx, dy, x, weight, statistics, residual);
  const ElementType type = TypeOf(x, "LayerNormBackward");
  const RowsShape shape = {x.size(0), x.size(1)};
  if (sums.defined()) CheckColumnSums(sums, dx, "LayerNormBackward");
  const auto floats = x.options().dtype(at::kFloat);
  Tensor gradients = at::empty({2, need_weight_grads ? shape.width : 0}, floats);
  if (x.numel() == 0) {
    if (sums.defined()) sums.zero_();
    return gradients.zero_();
  }
  LayerNormSums to;
  Tensor partials;
  if (need_weight_grads || sums.defined()) {
    partials = at::empty({LayerNormPartials(shape), 3 * shape.width}, floats);
    to.partials = partials.mutable_data_ptr<float>();
  }
  if (need_weight_grads) to.gradients = gradients.mutable_data_ptr<float>();
  if (sums.defined()) to.columns = sums.mutable_data_ptr<float>();
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchLayerNormBackward(
      type, shape, Read(dy), Read(x), weight.const_data_ptr(), statistics.const_data_ptr<float>(),
      residual.defined() ? Read(residual) : ConstRows{}, Write(dx), to, scope.stream()));
  if (WantsFp8(fp8, dx, "LayerNormBackward")) QuantizeRows(fp8, dx);
  return gradients;
}

void AddBias(Tensor& y, const Tensor& bias) {
  CheckRows(y, y.size(0), y.size(1), y, "AddBias: y");
  CheckVector(bias, y.size(1), y, "AddBias");
  const ElementType type = TypeOf(y, "AddBias");
  if (y.numel() == 0) return;
  const LaunchScope scope(y);
  C10_CUDA_CHECK(
      LaunchAddBias(type, {y.size(0), y.size(1)}, Write(y), bias.const_data_ptr(), scope.stream()));
}

void Accumulate(Tensor& sum, const Tensor& part, bool fresh) {
  CheckAccumulate(sum, part);
  const ElementType type = TypeOf(part, "Accumulate");
  if (part.numel() == 0) return;
  const LaunchScope scope(sum);
  C10_CUDA_CHECK(LaunchAccumulate(type, part.numel(), part.const_data_ptr(), fresh,
                                  sum.mutable_data_ptr<float>(), scope.stream()));
}

void PlaceFactors(Tensor& matrix, at::TensorList a, at::TensorList b, at::IntArrayRef first_row,
                  double scale) {
  const FactorPlaces places = CheckFactors(matrix, a, b, first_row);
  const ElementType type = TypeOf(matrix, "PlaceFactors");
  const LaunchScope scope(matrix);
  ForFactorMembers(
      places, a, b, first_row, [&](const FactorShape& shape, const FactorMembers& members) {
        C10_CUDA_CHECK(LaunchPlaceFactors(type, shape, members, static_cast<float>(scale),
                                          Write(matrix), scope.stream()));
      });
}

namespace {

// The cross entropy of each row, fp32.
Tensor LossOfRows(Tensor& logits, const Tensor& targets, bool backward) {
  TORCH_CHECK(logits.dim() == 2 && targets.numel() == logits.size(0), "CrossEntropy: logits ",
              logits.sizes(), " for ", targets.numel(), " targets");
  CheckRows(logits, logits.size(0), logits.size(1), logits, "CrossEntropy: logits");
  TORCH_CHECK(targets.scalar_type() == at::kLong && targets.is_contiguous() && targets.is_cuda(),
              "CrossEntropy: targets must be contiguous int64 on the GPU");
  const ElementType type = TypeOf(logits, "CrossEntropy");
  const auto floats = logits.options().dtype(at::kFloat);
  if (logits.numel() == 0) return at::zeros({logits.size(0)}, floats);
  Tensor losses = at::empty({logits.size(0)}, floats);
  const LaunchScope scope(logits);
  C10_CUDA_CHECK(LaunchCrossEntropy(type, logits.size(0), logits.size(1), Write(logits),
                                    targets.const_data_ptr<int64_t>(), backward,
                                    losses.mutable_data_ptr<float>(), scope.stream()));
  return losses;
}

}  // namespace

Tensor CrossEntropy(Tensor& logits, const Tensor& targets, bool backward) {
  return LossOfRows(logits, targets, backward).sum(at::kDouble).to(at::kFloat);
}

Tensor RowCrossEntropy(Tensor& logits, const Tensor& targets, bool backward) {
  return LossOfRows(logits, targets, backward).to(at::kDouble);
}

}  // namespace sft::engine::cuda
