#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine::cpu {

using at::Tensor;

namespace {

void CheckProduct(const Tensor& out, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(out.dim() == 2 && a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) &&
                  out.size(0) == a.size(0) && out.size(1) == b.size(1),
              "Gemm: ", a.sizes(), " times ", b.sizes(), " is not ", out.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type() &&
                  (out.scalar_type() == a.scalar_type() || out.scalar_type() == at::kFloat),
              "Gemm: ", a.scalar_type(), " times ", b.scalar_type(), " into ", out.scalar_type());
}

// On x86 processors without AVX-512 oneDNN has no products in bf16, and LibTorch's own loop takes
// ten times as long as fp32.
bool IsFastInBf16() {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return fast;
#else
  return true;
#endif
}

void GemmInFp32(Tensor& out, const Tensor& a, const Tensor& b, double alpha, double beta) {
  Tensor sum = out;
  if (out.scalar_type() != at::kFloat) {
    sum = beta == 0 ? at::empty(out.sizes(), out.options().dtype(at::kFloat)) : out.to(at::kFloat);
  }
  at::addmm_out(sum, sum, a.to(at::kFloat), b.to(at::kFloat), beta, alpha);
  if (!sum.is_same(out)) out.copy_(sum);
}

}  // namespace

void Gemm(Tensor& out, const Tensor& a, const Tensor& b, double alpha, double beta) {
  CheckProduct(out, a, b);
  const bool widened = out.scalar_type() != a.scalar_type();
  if (widened || (a.scalar_type() == at::kBFloat16 && !IsFastInBf16())) {
    GemmInFp32(out, a, b, alpha, beta);
  } else {
    at::addmm_out(out, out, a, b, beta, alpha);
  }
}

void GemmAdd(Tensor& out, const Tensor& a, const Tensor& b, const Tensor& addend,
             const Tensor& bias) {
  CheckProduct(out, a, b);
  if (addend.defined()) {
    TORCH_CHECK(addend.sizes() == out.sizes() && addend.scalar_type() == out.scalar_type(),
                "GemmAdd: the addend is ", addend.scalar_type(), addend.sizes());
    out.copy_(addend);
  }
  Gemm(out, a, b, 1.0, addend.defined() ? 1.0 : 0.0);
  if (bias.defined()) AddBias(out, bias);
}

void Fp8Gemm(Tensor& out, const Tensor& a, const Tensor& a_scale, const Tensor& b,
             const Tensor& b_scale, const Tensor& addend, bool /*fast_sums*/) {
  TORCH_CHECK(a.scalar_type() == at::kFloat8_e4m3fn && b.scalar_type() == at::kFloat8_e4m3fn &&
                  a_scale.numel() == a.size(0) && b_scale.numel() == b.size(0),
              "Fp8Gemm: ", a.scalar_type(), a.sizes(), " with ", a_scale.numel(), " scales times ",
              b.scalar_type(), b.sizes(), " with ", b_scale.numel());
  TORCH_CHECK(!addend.defined() ||
                  (addend.sizes() == out.sizes() && addend.scalar_type() == out.scalar_type()),
              "Fp8Gemm: the addend is not of ", out.scalar_type(), out.sizes());
  const Tensor rows = a.to(at::kFloat).mul_(a_scale.unsqueeze(1));
  const Tensor columns = b.to(at::kFloat).mul_(b_scale.unsqueeze(1)).t();
  Tensor product = at::mm(rows, columns);
  if (addend.defined()) product.add_(addend);
  out.copy_(product);
}

}  // namespace sft::engine::cpu
