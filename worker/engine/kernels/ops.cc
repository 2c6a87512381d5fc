#include "worker/engine/kernels/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "worker/engine/kernels/cpu_ops.h"

TORCH_LIBRARY(sft, m) {
  m.def("nf4_quantize(Tensor weight) -> (Tensor codes, Tensor absmax)");
  m.def("absmax_quantize(Tensor absmax) -> (Tensor codes, Tensor nested_absmax, Tensor offset)");
  m.def("nf4_dequantize_(Tensor(a!) out, Tensor codes, Tensor absmax) -> ()");
  m.def(
      "nf4_dequantize_nested_(Tensor(a!) out, Tensor codes, Tensor absmax_codes, "
      "Tensor nested_absmax, Tensor offset) -> ()");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, bool need_weight_grad) "
      "-> (Tensor dx, Tensor dweight)");
  m.def("rope_(Tensor(a!) x, Tensor cos, Tensor sin, bool inverse) -> ()");
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)");
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, int[] lengths, float scale, "
      "int window) -> (Tensor out, Tensor lse)");
  m.def(
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor cu_seqlens, int[] lengths, float scale, int window) "
      "-> (Tensor dq, Tensor dk, Tensor dv)");
  m.def("cross_entropy_(Tensor(a!) logits, Tensor targets, bool backward) -> Tensor");
}

TORCH_LIBRARY_IMPL(sft, CPU, m) {
  namespace cpu = sft::engine::cpu;
  m.impl("nf4_quantize", &cpu::Nf4Quantize);
  m.impl("absmax_quantize", &cpu::AbsmaxQuantize);
  m.impl("nf4_dequantize_", &cpu::Nf4Dequantize);
  m.impl("nf4_dequantize_nested_", &cpu::Nf4DequantizeNested);
  m.impl("rms_norm", &cpu::RmsNorm);
  m.impl("rms_norm_backward", &cpu::RmsNormBackward);
  m.impl("rope_", &cpu::Rope);
  m.impl("swiglu", &cpu::Swiglu);
  m.impl("swiglu_backward", &cpu::SwigluBackward);
  m.impl("attention", &cpu::Attention);
  m.impl("attention_backward", &cpu::AttentionBackward);
  m.impl("cross_entropy_", &cpu::CrossEntropy);
}

namespace sft::engine::ops {

namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

template <typename Signature>
auto Find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

Nf4Codes Nf4Quantize(const Tensor& weight) {
  static const auto op = Find<Pair(const Tensor&)>("sft::nf4_quantize");
  auto [codes, absmax] = op.call(weight);
  return {codes, absmax};
}

NestedAbsmax AbsmaxQuantize(const Tensor& absmax) {
  static const auto op = Find<Triple(const Tensor&)>("sft::absmax_quantize");
  auto [codes, nested_absmax, offset] = op.call(absmax);
  return {codes, nested_absmax, offset};
}

void Nf4Dequantize(Tensor& out, const Tensor& codes, const Tensor& absmax) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const Tensor&)>("sft::nf4_dequantize_");
  op.call(out, codes, absmax);
}

void Nf4DequantizeNested(Tensor& out, const Tensor& codes, const Tensor& absmax_codes,
                         const Tensor& nested_absmax, const Tensor& offset) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
          "sft::nf4_dequantize_nested_");
  op.call(out, codes, absmax_codes, nested_absmax, offset);
}

Pair RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = Find<Pair(const Tensor&, const Tensor&, double)>("sft::rms_norm");
  return op.call(x, weight, eps);
}

Pair RmsNormBackward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                     bool need_weight_grad) {
  static const auto op =
      Find<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool)>(
          "sft::rms_norm_backward");
  return op.call(dy, x, weight, rstd, need_weight_grad);
}

void Rope(Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  static const auto op = Find<void(Tensor&, const Tensor&, const Tensor&, bool)>("sft::rope_");
  op.call(x, cos, sin, inverse);
}

Tensor Swiglu(const Tensor& gate, const Tensor& up) {
  static const auto op = Find<Tensor(const Tensor&, const Tensor&)>("sft::swiglu");
  return op.call(gate, up);
}

Pair SwigluBackward(const Tensor& dy, const Tensor& gate, const Tensor& up) {
  static const auto op =
      Find<Pair(const Tensor&, const Tensor&, const Tensor&)>("sft::swiglu_backward");
  return op.call(dy, gate, up);
}

Pair Attention(const Tensor& q, const Tensor& k, const Tensor& v, const Documents& documents,
               double scale, int64_t window) {
  static const auto op = Find<Pair(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   at::IntArrayRef, double, int64_t)>("sft::attention");
  return op.call(q, k, v, documents.cu_seqlens, documents.lengths, scale, window);
}

Triple AttentionBackward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& out, const Tensor& lse, const Documents& documents,
                         double scale, int64_t window) {
  static const auto op =
      Find<Triple(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const Tensor&, const Tensor&, at::IntArrayRef, double, int64_t)>(
          "sft::attention_backward");
  return op.call(dout, q, k, v, out, lse, documents.cu_seqlens, documents.lengths, scale, window);
}

Tensor CrossEntropy(Tensor& logits, const Tensor& targets, bool backward) {
  static const auto op = Find<Tensor(Tensor&, const Tensor&, bool)>("sft::cross_entropy_");
  return op.call(logits, targets, backward);
}

}  // namespace sft::engine::ops
