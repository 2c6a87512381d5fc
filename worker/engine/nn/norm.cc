#include "worker/engine/nn/norm.h"

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

Tensor Norm::Forward(Activation& y, const Tensor& x, const Pass& pass) const {
  if (options.kind != plan::NormKind::kLayerNorm) {
    return ops::RmsNorm(y.rows, x, pass.weights[weight], options, y.fp8);
  }
  return ops::LayerNorm(y.rows, x, pass.weights[weight], pass.weights[bias], options.epsilon,
                        y.fp8);
}

Tensor Norm::ForwardAdd(Tensor& y, const Tensor& x, const Tensor& residual,
                        const Pass& pass) const {
  if (options.kind == plan::NormKind::kLayerNorm) {
    throw InternalError("no family has a LayerNorm behind a sub-layer");
  }
  return ops::RmsNormAdd(y, x, pass.weights[weight], residual, options);
}

void Norm::Backward(Activation& dx, const Tensor& dy, const Tensor& x, const Tensor& statistics,
                    const Tensor& residual, const Pass& pass, UnitGradients& gradients) const {
  const bool wanted = trained(gradients);
  if (options.kind != plan::NormKind::kLayerNorm) {
    dx.sums = Tensor();
    const Tensor dweight = ops::RmsNormBackward(dx.rows, dy, x, pass.weights[weight], statistics,
                                                options.kind, residual, wanted, dx.fp8);
    if (wanted) gradients.Add(weight, dweight);
    return;
  }
  const Tensor both = ops::LayerNormBackward(dx.rows, dy, x, pass.weights[weight], statistics,
                                             residual, wanted, dx.sums, dx.fp8);
  if (!wanted) return;
  gradients.Add(weight, both[0]);
  gradients.Add(bias, both[1]);
}

}  // namespace sft::engine
