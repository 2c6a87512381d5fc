#pragma once

#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>

// The arithmetic of AddSinks and SinkGradient (operations.def), for every device. A sink s is one
// more score of its head's rows, which has no value: with l the logsumexp of the others,
//
//   l' = log(e^l + e^s)    out' = out e^l / (e^l + e^s)    ds = -sum e^(s - l') <dout, out'>

namespace sft::engine::sinks {

// `by_head`: lse as [Hq, T].
inline void Scale(at::Tensor& out, const at::Tensor& by_head, const at::Tensor& sinks) {
  out.mul_(at::sigmoid(by_head.sub(sinks.view({-1, 1}))).t().unsqueeze(2));
}
// lse [Hq, T], or with documents before it.
inline void Widen(at::Tensor& lse, const at::Tensor& sinks) {
  at::logaddexp_out(lse, lse, sinks.view({-1, 1}));
}
inline at::Tensor Gradient(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& by_head,
                           const at::Tensor& sinks) {
  const at::Tensor along = at::sum(dout.to(at::kFloat).mul(out), {2});  // [T, Hq]
  const at::Tensor share = at::exp(sinks.view({-1, 1}).sub(by_head)).t();
  return at::sum(share.mul(along), {0}).neg();
}

}  // namespace sft::engine::sinks
