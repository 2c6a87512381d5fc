#include <ATen/Parallel.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int64_t kGrainTokens = 16;

template <typename T>
__attribute__((always_inline)) inline void RotateHeads(T* x, const float* cos, const float* sin,
                                                       float sign, int64_t heads, int64_t half) {
  for (int64_t head = 0; head < heads; ++head, x += 2 * half) {
    for (int64_t i = 0; i < half; ++i) {
      const float first = static_cast<float>(x[i]);
      const float second = static_cast<float>(x[i + half]);
      const float s = sign * sin[i];
      x[i] = static_cast<T>(first * cos[i] - second * s);
      x[i + half] = static_cast<T>(second * cos[i] + first * s);
    }
  }
}

SFT_SIMD_CLONES void Rotate(float* x, const float* cos, const float* sin, float sign, int64_t heads,
                            int64_t half) {
  RotateHeads(x, cos, sin, sign, heads, half);
}
SFT_SIMD_CLONES void Rotate(BFloat16* x, const float* cos, const float* sin, float sign,
                            int64_t heads, int64_t half) {
  RotateHeads(x, cos, sin, sign, heads, half);
}

template <typename T>
void RopeAs(Tensor& x, const Tensor& cos, const Tensor& sin, float sign) {
  const int64_t half = x.size(2) / 2;
  const int64_t stride = x.stride(0);
  T* values = x.mutable_data_ptr<T>();
  const float* c = cos.const_data_ptr<float>();
  const float* s = sin.const_data_ptr<float>();
  at::parallel_for(0, x.size(0), kGrainTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      Rotate(values + token * stride, c + token * half, s + token * half, sign, x.size(1), half);
    }
  });
}

}  // namespace

void Rope(Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) % 2 == 0, "rope_: x must be [tokens, heads, even size]");
  TORCH_CHECK(x.stride(2) == 1 && x.stride(1) == x.size(2), "rope_: heads must be dense");
  TORCH_CHECK(cos.is_contiguous() && sin.is_contiguous() && cos.sizes() == sin.sizes() &&
                  cos.dim() == 2 && cos.size(0) == x.size(0) && cos.size(1) == x.size(2) / 2,
              "rope_: cos and sin must be [", x.size(0), ", ", x.size(2) / 2, "]");
  const float sign = inverse ? -1.0f : 1.0f;
  if (x.scalar_type() == at::kFloat) {
    RopeAs<float>(x, cos, sin, sign);
  } else {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "rope_: x must be fp32 or bf16");
    RopeAs<BFloat16>(x, cos, sin, sign);
  }
}

Tensor Swiglu(const Tensor& gate, const Tensor& up) { return at::silu(gate).mul_(up); }

std::tuple<Tensor, Tensor> SwigluBackward(const Tensor& dy, const Tensor& gate, const Tensor& up) {
  Tensor dgate = at::silu_backward(at::mul(dy, up), gate);
  return {dgate, at::silu(gate).mul_(dy)};
}

}  // namespace sft::engine::cpu
