#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine::cpu {

using at::Tensor;

namespace {

void CheckProduct(const Tensor& out, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(out.dim() == 2 && a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) &&
                  out.size(0) == a.size(0) && out.size(1) == b.size(1),
              "gemm_: ", a.sizes(), " times ", b.sizes(), " is not ", out.sizes());
  TORCH_CHECK(a.scalar_type() == b.scalar_type() &&
                  (out.scalar_type() == a.scalar_type() || out.scalar_type() == at::kFloat),
              "gemm_: ", a.scalar_type(), " times ", b.scalar_type(), " into ", out.scalar_type());
}

}  // namespace

void Gemm(Tensor& out, const Tensor& a, const Tensor& b, double alpha, double beta) {
  CheckProduct(out, a, b);
  if (out.scalar_type() != a.scalar_type()) {
    at::addmm_out(out, out, a.to(at::kFloat), b.to(at::kFloat), beta, alpha);
  } else {
    at::addmm_out(out, out, a, b, beta, alpha);
  }
}

void GemmAdd(Tensor& out, const Tensor& a, const Tensor& b, const Tensor& addend) {
  CheckProduct(out, a, b);
  TORCH_CHECK(addend.sizes() == out.sizes() && addend.scalar_type() == out.scalar_type(),
              "gemm_add_: the addend is ", addend.scalar_type(), addend.sizes());
  out.copy_(addend);
  Gemm(out, a, b, 1.0, 1.0);
}

}  // namespace sft::engine::cpu
