#include "worker/engine/nn/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

namespace sft::engine {

using at::Tensor;

void UnitGradients::Add(int param, const Tensor& gradient) {
  if (Tensor buffer = Buffer(param); buffer.defined()) buffer.add_(gradient);
}

void AddOuterProduct(Tensor& gradient, const Tensor& a, const Tensor& b, double scale) {
  if (a.scalar_type() == gradient.scalar_type()) {
    gradient.addmm_(a.t(), b, 1, scale);
  } else {
    gradient.add_(at::mm(a.t(), b), scale);
  }
}

Tensor Linear::Forward(const Tensor& x, const Pass& pass, Tensor& xa) const {
  const Tensor weight_t = pass.weights[weight].t();
  Tensor y = bias >= 0 ? at::addmm(pass.weights[bias], x, weight_t) : at::mm(x, weight_t);
  if (!adapted()) return y;
  const Tensor dropped = pass.dropout ? Dropout(x, pass.lora.dropout, *pass.dropout, module) : x;
  xa = at::mm(dropped, pass.weights[lora_a].t());
  return y.addmm_(xa, pass.weights[lora_b].t(), 1, pass.lora.scale);
}

bool Linear::trained(UnitGradients& gradients) const {
  return gradients.Wants(weight) || gradients.Wants(bias) || gradients.Wants(lora_a);
}

void Linear::Backward(const Tensor& dy, const Tensor& x, const Tensor& xa, const Pass& pass,
                      UnitGradients& gradients, Tensor* dx) const {
  if (Tensor dw = gradients.Buffer(weight); dw.defined()) AddOuterProduct(dw, dy, x);
  if (Tensor db = gradients.Buffer(bias); db.defined())
    db.add_(at::sum(dy, {0}, false, at::kFloat));
  if (dx != nullptr) {
    if (dx->defined()) {
      dx->addmm_(dy, pass.weights[weight]);
    } else {
      *dx = at::mm(dy, pass.weights[weight]);
    }
  }
  if (!adapted()) return;
  if (Tensor db = gradients.Buffer(lora_b); db.defined()) {
    AddOuterProduct(db, dy, xa, pass.lora.scale);
  }
  const bool drops = pass.dropout != nullptr && pass.lora.dropout > 0.0;
  Tensor da = gradients.Buffer(lora_a);
  if (!da.defined() && dx == nullptr) return;
  const Tensor dxa = at::mm(dy, pass.weights[lora_b]).mul_(pass.lora.scale);
  if (da.defined()) {
    AddOuterProduct(da, dxa, drops ? Dropout(x, pass.lora.dropout, *pass.dropout, module) : x);
  }
  if (dx == nullptr) return;
  if (drops) {
    dx->add_(Dropout(at::mm(dxa, pass.weights[lora_a]), pass.lora.dropout, *pass.dropout, module));
  } else {
    dx->addmm_(dxa, pass.weights[lora_a]);
  }
}

}  // namespace sft::engine
