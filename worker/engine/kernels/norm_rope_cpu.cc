#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/row_kernels.h"
#include "worker/engine/kernels/rows.h"

// RmsNorm of each head and Rope in one pass: what RmsNorm and Rope give one after the other, with
// the normed head rounded to the type between them.

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int64_t kGrainTokens = 16;
constexpr int64_t kSliceTokens = 64;  // of which each sums its own part of the weight gradients

struct HeadNorm {
  float epsilon;
  NormForm form;
};

// The heads of one token that have one weight.
template <typename T>
SFT_INLINE void ForwardHeads(const T* x, const T* weight, const float* cos, const float* sin,
                             const HeadNorm& norm, int64_t heads, int64_t half, T* y) {
  for (int64_t head = 0; head < heads; ++head, x += 2 * half, y += 2 * half) {
    NormaliseRow(x, weight, RowRstd(x, norm.epsilon, 2 * half), norm.form, 2 * half, y);
    RotateHead(y, cos, sin, 1.0f, half, y);
  }
}

// `gradient` holds one head; dweight, which is added to, may be null.
template <typename T>
SFT_INLINE void BackwardHeads(T* dx, const T* x, const T* weight, const float* cos,
                              const float* sin, const HeadNorm& norm, int64_t heads, int64_t half,
                              float* gradient, float* dweight) {
  const int64_t size = 2 * half;
  for (int64_t head = 0; head < heads; ++head, x += size, dx += size) {
    RotateHead(dx, cos, sin, -1.0f, half, gradient);
    const float r = RowRstd(x, norm.epsilon, size);
    const float along = AlongRow(gradient, x, weight, r, norm.form.plus, size);
    if (dweight != nullptr) {
      for (int64_t i = 0; i < size; ++i) {
        dweight[i] += gradient[i] * RoundedFirst<T>(static_cast<float>(x[i]) * r, norm.form);
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      const float g = gradient[i] * (norm.form.plus + static_cast<float>(weight[i]));
      dx[i] = static_cast<T>(r * (g - static_cast<float>(x[i]) * along));
    }
  }
}

// target_clones does not apply to templates: one overload a type.
SFT_SIMD_CLONES void Forward(const float* x, const float* weight, const float* cos,
                             const float* sin, const HeadNorm& norm, int64_t heads, int64_t half,
                             float* y) {
  ForwardHeads(x, weight, cos, sin, norm, heads, half, y);
}
SFT_SIMD_CLONES void Forward(const BFloat16* x, const BFloat16* weight, const float* cos,
                             const float* sin, const HeadNorm& norm, int64_t heads, int64_t half,
                             BFloat16* y) {
  ForwardHeads(x, weight, cos, sin, norm, heads, half, y);
}
SFT_SIMD_CLONES void Backward(float* dx, const float* x, const float* weight, const float* cos,
                              const float* sin, const HeadNorm& norm, int64_t heads, int64_t half,
                              float* gradient, float* dweight) {
  BackwardHeads(dx, x, weight, cos, sin, norm, heads, half, gradient, dweight);
}
SFT_SIMD_CLONES void Backward(BFloat16* dx, const BFloat16* x, const BFloat16* weight,
                              const float* cos, const float* sin, const HeadNorm& norm,
                              int64_t heads, int64_t half, float* gradient, float* dweight) {
  BackwardHeads(dx, x, weight, cos, sin, norm, heads, half, gradient, dweight);
}

template <typename T>
void ForwardAs(Tensor& q, Tensor& k, const Tensor& qkv, const Tensor& q_weight,
               const Tensor& k_weight, const Tensor& cos, const Tensor& sin, const HeadNorm& norm) {
  const int64_t size = q_weight.numel(), half = size / 2;
  const int64_t heads = q.size(1), kv_heads = k.size(1);
  const T* source = qkv.const_data_ptr<T>();
  const T* q_scale = q_weight.const_data_ptr<T>();
  const T* k_scale = k_weight.const_data_ptr<T>();
  const float* c = cos.const_data_ptr<float>();
  const float* s = sin.const_data_ptr<float>();
  T* q_out = q.mutable_data_ptr<T>();
  T* k_out = k.mutable_data_ptr<T>();
  at::parallel_for(0, qkv.size(0), kGrainTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const T* x = source + token * qkv.stride(0);
      const float* cosines = c + token * half;
      const float* sines = s + token * half;
      Forward(x, q_scale, cosines, sines, norm, heads, half, q_out + token * q.stride(0));
      Forward(x + heads * size, k_scale, cosines, sines, norm, kv_heads, half,
              k_out + token * k.stride(0));
    }
  });
}

// Slice i of kSliceTokens tokens adds its weight gradients to partials[i], q's then k's.
template <typename T>
void BackwardAs(Tensor& dqkv, const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight,
                const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv_heads,
                const HeadNorm& norm, float* partials) {
  const int64_t size = q_weight.numel(), half = size / 2, tokens = qkv.size(0);
  const T* source = qkv.const_data_ptr<T>();
  const T* q_scale = q_weight.const_data_ptr<T>();
  const T* k_scale = k_weight.const_data_ptr<T>();
  const float* c = cos.const_data_ptr<float>();
  const float* s = sin.const_data_ptr<float>();
  T* target = dqkv.mutable_data_ptr<T>();
  const int64_t slices = (tokens + kSliceTokens - 1) / kSliceTokens;
  at::parallel_for(0, slices, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> gradient(static_cast<size_t>(size));
    for (int64_t slice = begin; slice < end; ++slice) {
      float* dq = partials == nullptr ? nullptr : partials + slice * 2 * size;
      float* dk = partials == nullptr ? nullptr : dq + size;
      const int64_t last = std::min(tokens, (slice + 1) * kSliceTokens);
      for (int64_t token = slice * kSliceTokens; token < last; ++token) {
        const T* x = source + token * qkv.stride(0);
        T* dx = target + token * dqkv.stride(0);
        const float* cosines = c + token * half;
        const float* sines = s + token * half;
        Backward(dx, x, q_scale, cosines, sines, norm, heads, half, gradient.data(), dq);
        Backward(dx + heads * size, x + heads * size, k_scale, cosines, sines, norm, kv_heads, half,
                 gradient.data(), dk);
      }
    }
  });
}

HeadNorm HeadNormOf(const ops::NormOptions& options) {
  return {static_cast<float>(options.epsilon), FormOf(options.kind)};
}

}  // namespace

void NormRope(Tensor& q, Tensor& k, const Tensor& qkv, const Tensor& q_weight,
              const Tensor& k_weight, const Tensor& cos, const Tensor& sin,
              const ops::NormOptions& options) {
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3, "NormRope: q is ", q.sizes(), ", k is ", k.sizes(),
              ", must be [tokens, heads, size]");
  CheckNormRope(qkv, q_weight, k_weight, cos, sin, q.size(1), k.size(1), "NormRope");
  CheckHeads(q, qkv.size(0), q_weight.numel(), qkv, "NormRope: q");
  CheckHeads(k, qkv.size(0), q_weight.numel(), qkv, "NormRope: k");
  const HeadNorm norm = HeadNormOf(options);
  if (qkv.scalar_type() == at::kFloat) {
    ForwardAs<float>(q, k, qkv, q_weight, k_weight, cos, sin, norm);
  } else {
    TORCH_CHECK(qkv.scalar_type() == at::kBFloat16, "NormRope: qkv must be fp32 or bf16");
    ForwardAs<BFloat16>(q, k, qkv, q_weight, k_weight, cos, sin, norm);
  }
}

ops::NormRopeGradients NormRopeBackward(Tensor& dqkv, const Tensor& qkv, const Tensor& q_weight,
                                        const Tensor& k_weight, const Tensor& cos,
                                        const Tensor& sin, int64_t heads, int64_t kv_heads,
                                        const ops::NormOptions& options, bool need_weight_grad) {
  CheckNormRope(qkv, q_weight, k_weight, cos, sin, heads, kv_heads, "NormRopeBackward");
  CheckRows(dqkv, qkv.size(0), qkv.size(1), qkv, "NormRopeBackward: dqkv");
  const bool is_float = qkv.scalar_type() == at::kFloat;
  TORCH_CHECK(is_float || qkv.scalar_type() == at::kBFloat16,
              "NormRopeBackward: qkv must be fp32 or bf16");
  const int64_t size = q_weight.numel();
  const int64_t slices = (qkv.size(0) + kSliceTokens - 1) / kSliceTokens;
  Tensor partials = at::zeros({need_weight_grad ? slices : 0, 2, size}, at::kFloat);
  const auto run = is_float ? BackwardAs<float> : BackwardAs<BFloat16>;
  run(dqkv, qkv, q_weight, k_weight, cos, sin, heads, kv_heads, HeadNormOf(options),
      need_weight_grad ? partials.mutable_data_ptr<float>() : nullptr);
  Tensor gradients = at::zeros({2, need_weight_grad ? size : 0}, at::kFloat);
  float* sums = gradients.mutable_data_ptr<float>();
  const float* parts = partials.const_data_ptr<float>();
  for (int64_t slice = 0; slice < partials.size(0); ++slice) {
    for (int64_t i = 0; i < 2 * size; ++i) sums[i] += parts[slice * 2 * size + i];
  }
  return {gradients[0], gradients[1]};
}

}  // namespace sft::engine::cpu
