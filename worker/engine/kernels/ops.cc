#include "worker/engine/kernels/ops.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>

#include "worker/engine/kernels/cpu_ops.h"

TORCH_LIBRARY(sft, m) {
  m.def("nf4_quantize(Tensor weight) -> (Tensor codes, Tensor absmax)");
  m.def("absmax_quantize(Tensor absmax) -> (Tensor codes, Tensor nested_absmax, Tensor offset)");
  m.def("nf4_dequantize_(Tensor(a!) out, Tensor codes, Tensor absmax) -> ()");
  m.def(
      "nf4_dequantize_nested_(Tensor(a!) out, Tensor codes, Tensor absmax_codes, "
      "Tensor nested_absmax, Tensor offset) -> ()");
  m.def("int8_quantize(Tensor weight, Tensor absmax) -> Tensor");
  m.def("int8_dequantize_(Tensor(a!) out, Tensor codes, Tensor scale) -> ()");
  m.def("gemm_(Tensor(a!) out, Tensor a, Tensor b, float alpha, float beta) -> ()");
  m.def("gemm_add_(Tensor(a!) out, Tensor a, Tensor b, Tensor addend) -> ()");
  m.def("accumulate_(Tensor(a!) sum, Tensor part, bool fresh) -> ()");
  m.def(
      "place_factors_(Tensor(a!) matrix, Tensor[] a, Tensor[] b, int[] first_row, float scale) "
      "-> ()");
  m.def("fp8_quantize_(Tensor(a!) out, Tensor(b!) scale, Tensor x) -> ()");
  m.def("fp8_quantize_with_(Tensor(a!) out, Tensor x, Tensor scale) -> ()");
  m.def(
      "fp8_from_nf4_(Tensor(a!) out, Tensor codes, Tensor absmax_codes, Tensor? nested_absmax, "
      "Tensor? offset, Tensor scale, bool transposed) -> ()");
  m.def(
      "fp8_place_factors_(Tensor(a!) matrix, Tensor row_scale, Tensor[] a, Tensor[] b, "
      "int[] first_row, float scale, bool transposed) -> ()");
  m.def(
      "fp8_gemm_(Tensor(a!) out, Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, "
      "Tensor? addend, bool fast_sums=False) -> ()");
  m.def(
      "rms_norm_(Tensor(a!) y, Tensor x, Tensor weight, float eps, Tensor(b!)? fp8, "
      "Tensor(c!)? fp8_scale) -> Tensor");
  m.def(
      "rms_norm_backward_(Tensor(a!) dx, Tensor dy, Tensor x, Tensor weight, Tensor rstd, "
      "Tensor? residual, bool need_weight_grad, Tensor(b!)? fp8, Tensor(c!)? fp8_scale) -> Tensor");
  m.def("rope_(Tensor(a!) x, Tensor cos, Tensor sin, bool inverse) -> ()");
  m.def(
      "norm_rope_(Tensor(a!) q, Tensor(b!) k, Tensor qkv, Tensor q_weight, Tensor k_weight, "
      "Tensor cos, Tensor sin, float eps) -> ()");
  m.def(
      "norm_rope_backward_(Tensor(a!) dqkv, Tensor qkv, Tensor q_weight, Tensor k_weight, "
      "Tensor cos, Tensor sin, int heads, int kv_heads, float eps, bool need_weight_grad) "
      "-> (Tensor dq_weight, Tensor dk_weight)");
  m.def("swiglu_(Tensor(a!) out, Tensor gate_up, Tensor(b!)? fp8, Tensor(c!)? fp8_scale) -> ()");
  m.def("swiglu_backward_(Tensor(a!) dgate_up, Tensor dy, Tensor gate_up) -> ()");
  m.def("has_swiglu_factors(Tensor gate_up, int rank) -> bool");
  m.def(
      "swiglu_factors_backward_(Tensor(a!) gate_up, Tensor(b!) dxa, Tensor dy, Tensor xa, "
      "Tensor b_gate, Tensor b_up, Tensor dxa_down, Tensor(c!) db_gate, Tensor(d!) db_up, "
      "Tensor(e!) da_down, float scale) -> ()");
  m.def(
      "attention_(Tensor(a!) out, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, int[] lengths, "
      "float scale, int window) -> Tensor");
  m.def(
      "attention_backward_(Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor dout, Tensor q, "
      "Tensor k, Tensor v, Tensor out, Tensor lse, Tensor cu_seqlens, int[] lengths, float scale, "
      "int window) -> ()");
  m.def("attention_kind(Tensor q, int[] lengths) -> str");
  m.def("attention_reads_shape_alone(Tensor q) -> bool");
  m.def("cross_entropy_(Tensor(a!) logits, Tensor targets, bool backward) -> Tensor");
  m.def("empty_at_the_end(Tensor like, int bytes) -> Tensor");
  m.def("empty_pinned(Tensor like, int bytes) -> Tensor");
  m.def(
      "adamw_step_(Tensor(a!)[] weights, Tensor[] grads, Tensor(b!)[] copies, Tensor(c!)[] m, "
      "Tensor(d!)[] v, Tensor(e!)[] m_absmax, Tensor(f!)[] v_absmax, int[] keys, int[] offsets, "
      "Tensor? maps, float[] factors) -> ()");
}

TORCH_LIBRARY_IMPL(sft, CPU, m) {
  namespace cpu = sft::engine::cpu;
  m.impl("nf4_quantize", &cpu::Nf4Quantize);
  m.impl("absmax_quantize", &cpu::AbsmaxQuantize);
  m.impl("nf4_dequantize_", &cpu::Nf4Dequantize);
  m.impl("nf4_dequantize_nested_", &cpu::Nf4DequantizeNested);
  m.impl("int8_quantize", &cpu::Int8Quantize);
  m.impl("int8_dequantize_", &cpu::Int8Dequantize);
  m.impl("gemm_", &cpu::Gemm);
  m.impl("gemm_add_", &cpu::GemmAdd);
  m.impl("accumulate_", &cpu::Accumulate);
  m.impl("place_factors_", &cpu::PlaceFactors);
  m.impl("fp8_quantize_", &cpu::Fp8Quantize);
  m.impl("fp8_quantize_with_", &cpu::Fp8QuantizeWith);
  m.impl("fp8_from_nf4_", &cpu::Fp8FromNf4);
  m.impl("fp8_place_factors_", &cpu::Fp8PlaceFactors);
  m.impl("fp8_gemm_", &cpu::Fp8Gemm);
  m.impl("rms_norm_", &cpu::RmsNorm);
  m.impl("rms_norm_backward_", &cpu::RmsNormBackward);
  m.impl("rope_", &cpu::Rope);
  m.impl("norm_rope_", &cpu::NormRope);
  m.impl("norm_rope_backward_", &cpu::NormRopeBackward);
  m.impl("swiglu_", &cpu::Swiglu);
  m.impl("swiglu_backward_", &cpu::SwigluBackward);
  m.impl("has_swiglu_factors", &cpu::HasSwigluFactors);
  m.impl("swiglu_factors_backward_", &cpu::SwigluFactorsBackward);
  m.impl("attention_", &cpu::Attention);
  m.impl("attention_backward_", &cpu::AttentionBackward);
  m.impl("attention_kind", &cpu::AttentionKind);
  m.impl("attention_reads_shape_alone", &cpu::AttentionReadsShapeAlone);
  m.impl("cross_entropy_", &cpu::CrossEntropy);
  m.impl("empty_at_the_end", &cpu::EmptyBytes);
  m.impl("empty_pinned", &cpu::EmptyBytes);
}

namespace sft::engine::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

template <typename Signature>
auto Find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

OptionalTensor WhereDefined(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

}  // namespace

void SetDeterministic(bool deterministic) {
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  // Else LibTorch fills every new tensor: 5 % of a step, for memory that is always written to.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

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
  static const auto op = Find<void(Tensor&, const Tensor&, const Tensor&)>("sft::nf4_dequantize_");
  op.call(out, codes, absmax);
}

void Nf4DequantizeNested(Tensor& out, const Tensor& codes, const Tensor& absmax_codes,
                         const Tensor& nested_absmax, const Tensor& offset) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
          "sft::nf4_dequantize_nested_");
  op.call(out, codes, absmax_codes, nested_absmax, offset);
}

Tensor Int8Quantize(const Tensor& weight, const Tensor& absmax) {
  static const auto op = Find<Tensor(const Tensor&, const Tensor&)>("sft::int8_quantize");
  return op.call(weight, absmax);
}

void Int8Dequantize(Tensor& out, const Tensor& codes, const Tensor& scale) {
  static const auto op = Find<void(Tensor&, const Tensor&, const Tensor&)>("sft::int8_dequantize_");
  op.call(out, codes, scale);
}

void Gemm(Tensor& out, const Tensor& a, const Tensor& b, double alpha, double beta) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const Tensor&, double, double)>("sft::gemm_");
  op.call(out, a, b, alpha, beta);
}

void GemmAdd(Tensor& out, const Tensor& a, const Tensor& b, const Tensor& addend) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const Tensor&, const Tensor&)>("sft::gemm_add_");
  op.call(out, a, b, addend);
}

void Accumulate(Tensor& sum, const Tensor& part, bool fresh) {
  static const auto op = Find<void(Tensor&, const Tensor&, bool)>("sft::accumulate_");
  op.call(sum, part, fresh);
}

void PlaceFactors(Tensor& matrix, at::TensorList a, at::TensorList b, at::IntArrayRef first_row,
                  double scale) {
  static const auto op =
      Find<void(Tensor&, at::TensorList, at::TensorList, at::IntArrayRef, double)>(
          "sft::place_factors_");
  op.call(matrix, a, b, first_row, scale);
}

void Fp8Quantize(Tensor& out, Tensor& scale, const Tensor& x) {
  static const auto op = Find<void(Tensor&, Tensor&, const Tensor&)>("sft::fp8_quantize_");
  op.call(out, scale, x);
}

void Fp8QuantizeWith(Tensor& out, const Tensor& x, const Tensor& scale) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const Tensor&)>("sft::fp8_quantize_with_");
  op.call(out, x, scale);
}

void Fp8FromNf4(Tensor& out, const Tensor& codes, const Tensor& absmax_codes,
                const Tensor& nested_absmax, const Tensor& offset, const Tensor& scale,
                bool transposed) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                const Tensor&, bool)>("sft::fp8_from_nf4_");
  op.call(out, codes, absmax_codes, WhereDefined(nested_absmax), WhereDefined(offset), scale,
          transposed);
}

void Fp8PlaceFactors(Tensor& matrix, const Tensor& row_scale, at::TensorList a, at::TensorList b,
                     at::IntArrayRef first_row, double scale, bool transposed) {
  static const auto op = Find<void(Tensor&, const Tensor&, at::TensorList, at::TensorList,
                                   at::IntArrayRef, double, bool)>("sft::fp8_place_factors_");
  op.call(matrix, row_scale, a, b, first_row, scale, transposed);
}

void Fp8Gemm(Tensor& out, const Tensor& a, const Tensor& a_scale, const Tensor& b,
             const Tensor& b_scale, const Tensor& addend, bool fast_sums) {
  static const auto op = Find<void(Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, const OptionalTensor&, bool)>("sft::fp8_gemm_");
  op.call(out, a, a_scale, b, b_scale, WhereDefined(addend), fast_sums);
}

Tensor RmsNorm(Tensor& y, const Tensor& x, const Tensor& weight, double eps, const Fp8Rows& fp8) {
  static const auto op =
      Find<Tensor(Tensor&, const Tensor&, const Tensor&, double, const OptionalTensor&,
                  const OptionalTensor&)>("sft::rms_norm_");
  return op.call(y, x, weight, eps, WhereDefined(fp8.values), WhereDefined(fp8.scale));
}

Tensor RmsNormBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                       const Tensor& rstd, const Tensor& residual, bool need_weight_grad,
                       const Fp8Rows& fp8) {
  static const auto op =
      Find<Tensor(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  const OptionalTensor&, bool, const OptionalTensor&, const OptionalTensor&)>(
          "sft::rms_norm_backward_");
  return op.call(dx, dy, x, weight, rstd, WhereDefined(residual), need_weight_grad,
                 WhereDefined(fp8.values), WhereDefined(fp8.scale));
}

void Rope(Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  static const auto op = Find<void(Tensor&, const Tensor&, const Tensor&, bool)>("sft::rope_");
  op.call(x, cos, sin, inverse);
}

void NormRope(Tensor& q, Tensor& k, const Tensor& qkv, const Tensor& q_weight,
              const Tensor& k_weight, const Tensor& cos, const Tensor& sin, double eps) {
  static const auto op = Find<void(Tensor&, Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, const Tensor&, double)>("sft::norm_rope_");
  op.call(q, k, qkv, q_weight, k_weight, cos, sin, eps);
}

Pair NormRopeBackward(Tensor& dqkv, const Tensor& qkv, const Tensor& q_weight,
                      const Tensor& k_weight, const Tensor& cos, const Tensor& sin, int64_t heads,
                      int64_t kv_heads, double eps, bool need_weight_grad) {
  static const auto op =
      Find<Pair(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                int64_t, int64_t, double, bool)>("sft::norm_rope_backward_");
  return op.call(dqkv, qkv, q_weight, k_weight, cos, sin, heads, kv_heads, eps, need_weight_grad);
}

void Swiglu(Tensor& out, const Tensor& gate_up, const Fp8Rows& fp8) {
  static const auto op =
      Find<void(Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&)>(
          "sft::swiglu_");
  op.call(out, gate_up, WhereDefined(fp8.values), WhereDefined(fp8.scale));
}

void SwigluBackward(Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) {
  static const auto op = Find<void(Tensor&, const Tensor&, const Tensor&)>("sft::swiglu_backward_");
  op.call(dgate_up, dy, gate_up);
}

bool HasSwigluFactors(const Tensor& gate_up, int64_t rank) {
  static const auto op = Find<bool(const Tensor&, int64_t)>("sft::has_swiglu_factors");
  return op.call(gate_up, rank);
}

void SwigluFactorsBackward(Tensor& gate_up, Tensor& dxa, const Tensor& dy,
                           const SwigluFactors& factors) {
  static const auto op =
      Find<void(Tensor&, Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                const Tensor&, Tensor&, Tensor&, Tensor&, double)>("sft::swiglu_factors_backward_");
  Tensor db_gate = factors.db_gate, db_up = factors.db_up, da_down = factors.da_down;
  op.call(gate_up, dxa, dy, factors.xa, factors.b_gate, factors.b_up, factors.dxa_down, db_gate,
          db_up, da_down, factors.scale);
}

Tensor Attention(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Documents& documents, double scale, int64_t window) {
  static const auto op =
      Find<Tensor(Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  at::IntArrayRef, double, int64_t)>("sft::attention_");
  return op.call(out, q, k, v, documents.cu_seqlens, documents.lengths, scale, window);
}

void AttentionBackward(Tensor& dq, Tensor& dk, Tensor& dv, const Tensor& dout, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                       const Documents& documents, double scale, int64_t window) {
  static const auto op =
      Find<void(Tensor&, Tensor&, Tensor&, const Tensor&, const Tensor&, const Tensor&,
                const Tensor&, const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef, double,
                int64_t)>("sft::attention_backward_");
  op.call(dq, dk, dv, dout, q, k, v, out, lse, documents.cu_seqlens, documents.lengths, scale,
          window);
}

std::string AttentionKind(const Tensor& q, at::IntArrayRef lengths) {
  static const auto op = Find<std::string(const Tensor&, at::IntArrayRef)>("sft::attention_kind");
  return op.call(q, lengths);
}

bool AttentionReadsShapeAlone(const Tensor& q) {
  static const auto op = Find<bool(const Tensor&)>("sft::attention_reads_shape_alone");
  return op.call(q);
}

Tensor CrossEntropy(Tensor& logits, const Tensor& targets, bool backward) {
  static const auto op = Find<Tensor(Tensor&, const Tensor&, bool)>("sft::cross_entropy_");
  return op.call(logits, targets, backward);
}

Tensor EmptyAtTheEnd(const Tensor& like, int64_t bytes) {
  static const auto op = Find<Tensor(const Tensor&, int64_t)>("sft::empty_at_the_end");
  return op.call(like, bytes);
}

Tensor EmptyPinned(const Tensor& like, int64_t bytes) {
  static const auto op = Find<Tensor(const Tensor&, int64_t)>("sft::empty_pinned");
  return op.call(like, bytes);
}

void AdamWStep(const AdamWTensors& t, const Tensor& maps, const AdamWFactors& f) {
  using Tensors = at::TensorList;
  static const auto op =
      Find<void(Tensors, Tensors, Tensors, Tensors, Tensors, Tensors, Tensors, at::IntArrayRef,
                at::IntArrayRef, const OptionalTensor&, at::ArrayRef<double>)>("sft::adamw_step_");
  // fp32 values, which doubles hold as they are.
  const std::array<double, 8> factors = {
      f.keep,      f.one_minus_beta1, f.beta2,   f.one_minus_beta2,
      f.step_size, f.sqrt_bias2,      f.epsilon, f.grad_scale};
  op.call(t.weights, t.grads, t.copies, t.m, t.v, t.m_absmax, t.v_absmax, t.keys, t.offsets,
          WhereDefined(maps), factors);
}

}  // namespace sft::engine::ops
