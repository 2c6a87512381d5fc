#include "worker/engine/nn/expert_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/projection.h"

namespace sft::engine {

using at::Tensor;

ExpertLinear::ExpertLinear(const UnitInfo& unit, const std::string& name) {
  const std::string module = unit.name + "." + name;
  weight_ = unit.Find(module + ".weight");
  if (weight_ < 0) throw InternalError(unit.name + " has no stack " + name);
  bias_ = unit.Find(module + ".bias");
  lora_a_ = unit.Find(module + ".lora_A.weight");
  lora_b_ = unit.Find(module + ".lora_B.weight");
  const ParamInfo& weight = unit.params[weight_];
  experts_ = weight.experts;
  outputs_ = weight.shape[0] / experts_;
  inputs_ = weight.shape[1];
  if (lora_b_ < 0) return;
  rank_ = unit.params[lora_b_].shape[1];
  scale_ratio_ = unit.params[lora_b_].scale_ratio;
}

Tensor ExpertLinear::Forward(Tensor& y, const Tensor& x, const ExpertRows& rows, const Pass& pass,
                             const Tensor& adapter_rows) const {
  Tensor xa;
  if (rank_ > 0) xa = at::empty({x.size(0), rank_}, x.options());
  for (int64_t e = 0; e < experts_; ++e) {
    const int64_t begin = rows.begin(e), count = rows.count(e);
    if (count == 0) continue;
    const auto of = [&](const Tensor& all) {
      return all.defined() ? all.narrow(0, begin, count) : Tensor();
    };
    Tensor output = of(y), product = of(xa);
    if (pass.tile == 0) {
      RunExpert(e, output, product, of(x), of(adapter_rows), pass);
      continue;
    }
    // A row's bits may not depend on where it lies: kernels choose by how memory is aligned.
    Tensor apart = at::empty(output.sizes(), output.options());
    if (rank_ > 0) product = at::empty(product.sizes(), product.options());
    RunExpert(e, apart, product, of(x).clone(), of(adapter_rows), pass);
    output.copy_(apart);
  }
  return xa;
}

void ExpertLinear::RunExpert(int64_t e, Tensor& y, Tensor& xa, const Tensor& x,
                             const Tensor& adapter_rows, const Pass& pass) const {
  AddProduct(y, x, Of(pass.weights[weight_], e, outputs_), {}, 1.0, pass);
  if (bias_ >= 0) ops::AddBias(y, Bias(pass)[e]);
  if (rank_ == 0) return;
  AddProduct(xa, x, Of(pass.weights[lora_a_], e, rank_), {}, 1.0, pass);
  if (adapter_rows.defined()) xa.mul_(adapter_rows);
  AddProduct(y, xa, Of(pass.weights[lora_b_], e, outputs_), y, ScaleOf(pass), pass);
}

Tensor ExpertLinear::AdapterGradient(const Tensor& dy, const ExpertRows& rows,
                                     const Pass& pass) const {
  if (rank_ == 0) return {};
  Tensor dxa = at::empty({dy.size(0), rank_}, dy.options());
  for (int64_t e = 0; e < experts_; ++e) {
    if (rows.count(e) == 0) continue;
    Tensor product = dxa.narrow(0, rows.begin(e), rows.count(e));
    ops::Gemm(product, dy.narrow(0, rows.begin(e), rows.count(e)),
              Of(pass.weights[lora_b_], e, outputs_), ScaleOf(pass), 0.0);
  }
  return dxa;
}

Tensor ExpertLinear::InputGradient(Tensor& dx, const Tensor& dy, const ExpertRows& rows,
                                   const Pass& pass) const {
  const Tensor dxa = AdapterGradient(dy, rows, pass);
  for (int64_t e = 0; e < experts_; ++e) {
    const int64_t begin = rows.begin(e), count = rows.count(e);
    if (count == 0) continue;
    Tensor gradient = dx.narrow(0, begin, count);
    ops::Gemm(gradient, dy.narrow(0, begin, count), Of(pass.weights[weight_], e, outputs_), 1.0,
              0.0);
    if (rank_ == 0) continue;
    ops::Gemm(gradient, dxa.narrow(0, begin, count), Of(pass.weights[lora_a_], e, rank_), 1.0, 1.0);
  }
  return dxa;
}

void ExpertLinear::AddGradients(const Tensor& dy, const Tensor& x, const Tensor& xa,
                                const Tensor& dxa, const ExpertRows& rows, const Pass& pass,
                                UnitGradients& gradients) const {
  const ProductSum weight = gradients.Wants(weight_) ? gradients.Product(weight_) : ProductSum();
  const Tensor a = gradients.Buffer(lora_a_), b = gradients.Buffer(lora_b_);
  const Tensor bias = gradients.Buffer(bias_);
  for (int64_t e = 0; e < experts_; ++e) {
    const int64_t begin = rows.begin(e), count = rows.count(e);
    if (count == 0) {
      // The whole gradient of this expert in the micro-batch is zero.
      if (weight.sum.defined() && weight.beta == 0.0) Of(weight.sum, e, outputs_).zero_();
      continue;
    }
    const auto of = [&](const Tensor& all) { return all.narrow(0, begin, count); };
    if (weight.sum.defined()) {
      Tensor sum = Of(weight.sum, e, outputs_);
      ops::Gemm(sum, of(dy).t(), of(x), 1.0, weight.beta);
    }
    if (a.defined()) {
      Tensor sum = Of(a, e, rank_);
      ops::Gemm(sum, of(dxa).t(), of(x), 1.0, 1.0);
    }
    if (b.defined()) {
      Tensor sum = Of(b, e, outputs_);
      ops::Gemm(sum, of(dy).t(), of(xa), ScaleOf(pass), 1.0);
    }
    if (bias.defined()) Of(bias, e, outputs_).add_(at::sum(of(dy), {0}, false, at::kFloat));
  }
}

bool ExpertLinear::trained(UnitGradients& gradients) const {
  return gradients.Wants(weight_) || gradients.Wants(bias_) || gradients.Wants(lora_a_) ||
         gradients.Wants(lora_b_);
}

Tensor ExpertLinear::Bias(const Pass& pass) const {
  return bias_ < 0 ? Tensor() : pass.weights[bias_].view({experts_, outputs_});
}

}  // namespace sft::engine
