#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/delta_checks.h"
#include "worker/engine/kernels/row_kernels.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int64_t kTokens = 16;  // of one task, and of one part of the weight's gradient

template <typename T>
struct GatedRows {
  T* data = nullptr;
  int64_t stride = 0;
};

template <typename T>
struct GatedArguments {
  GatedRows<const T> x, gate, dy;  // dy: of the backward
  GatedRows<T> out, dgate;         // out: of the backward dx, which may be dy
  const float* weight;             // [size]
  int64_t heads, size;
  float epsilon = 0.0f;
  float* rstd = nullptr;              // [T, heads], of the forward
  const float* known_rstd = nullptr;  // the same, of the backward
  float* dweight = nullptr;           // [tasks, size]: a row for each task; null: not wanted
};

SFT_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

template <typename T>
SFT_INLINE void ForwardTokens(const GatedArguments<T>& a, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const T* x = a.x.data + token * a.x.stride + head * a.size;
      const T* gate = a.gate.data + token * a.gate.stride + head * a.size;
      T* y = a.out.data + token * a.out.stride + head * a.size;
      const float r = RowRstd(x, a.epsilon, a.size);
      a.rstd[token * a.heads + head] = r;
      for (int64_t i = 0; i < a.size; ++i) {
        const auto normed = static_cast<float>(static_cast<T>(static_cast<float>(x[i]) * r));
        const auto z = static_cast<float>(gate[i]);
        y[i] = static_cast<T>(a.weight[i] * normed * (z * Sigmoid(z)));
      }
    }
  }
}

// `scratch` [2, size].
template <typename T>
SFT_INLINE void BackwardTokens(const GatedArguments<T>& a, int64_t begin, int64_t end,
                               float* scratch) {
  float* dweight = a.dweight == nullptr ? nullptr : a.dweight + begin / kTokens * a.size;
  if (dweight != nullptr) std::fill_n(dweight, a.size, 0.0f);
  float* of_product = scratch;  // dy * silu(gate): the gradient of weight * normed
  float* normed = scratch + a.size;
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t column = head * a.size;
      const T* x = a.x.data + token * a.x.stride + column;
      const T* gate = a.gate.data + token * a.gate.stride + column;
      const T* dy = a.dy.data + token * a.dy.stride + column;
      T* dx = a.out.data + token * a.out.stride + column;
      T* dgate = a.dgate.data + token * a.dgate.stride + column;
      const float r = a.known_rstd[token * a.heads + head];
      for (int64_t i = 0; i < a.size; ++i) {
        normed[i] = static_cast<float>(static_cast<T>(static_cast<float>(x[i]) * r));
        const auto z = static_cast<float>(gate[i]), d = static_cast<float>(dy[i]);
        const float share = Sigmoid(z);
        of_product[i] = d * (z * share);
        dgate[i] =
            static_cast<T>(d * a.weight[i] * normed[i] * (share * (1.0f + z * (1.0f - share))));
      }
      if (dweight != nullptr) {
        for (int64_t i = 0; i < a.size; ++i) dweight[i] += of_product[i] * normed[i];
      }
      const float dot = LaneSum(a.size, [=, &a](int64_t i) {
        return of_product[i] * a.weight[i] * static_cast<float>(x[i]);
      });
      const float along = dot * r * r / static_cast<float>(a.size);
      for (int64_t i = 0; i < a.size; ++i) {
        dx[i] =
            static_cast<T>(r * (of_product[i] * a.weight[i] - static_cast<float>(x[i]) * along));
      }
    }
  }
}

// target_clones does not apply to templates: one overload a type.
SFT_SIMD_CLONES void GatedForward(const GatedArguments<float>& a, int64_t begin, int64_t end) {
  ForwardTokens(a, begin, end);
}
SFT_SIMD_CLONES void GatedForward(const GatedArguments<BFloat16>& a, int64_t begin, int64_t end) {
  ForwardTokens(a, begin, end);
}
SFT_SIMD_CLONES void GatedBackward(const GatedArguments<float>& a, int64_t begin, int64_t end,
                                   float* scratch) {
  BackwardTokens(a, begin, end, scratch);
}
SFT_SIMD_CLONES void GatedBackward(const GatedArguments<BFloat16>& a, int64_t begin, int64_t end,
                                   float* scratch) {
  BackwardTokens(a, begin, end, scratch);
}

// Calls run(begin, end) for all tasks of tokens.
template <typename Run>
void ForTasks(int64_t tokens, const Run& run) {
  at::parallel_for(0, (tokens + kTokens - 1) / kTokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      run(task * kTokens, std::min(tokens, (task + 1) * kTokens));
    }
  });
}

template <typename T>
GatedRows<const T> Read(const Tensor& x) {
  return {x.const_data_ptr<T>(), x.stride(0)};
}
template <typename T>
GatedRows<T> Write(Tensor& x) {
  return {x.mutable_data_ptr<T>(), x.stride(0)};
}

template <typename T>
void ForwardAs(Tensor& y, const Tensor& x, const Tensor& gate, const Tensor& weight, double epsilon,
               Tensor& rstd) {
  const GatedArguments<T> a{.x = Read<T>(x),
                            .gate = Read<T>(gate),
                            .dy = {},
                            .out = Write<T>(y),
                            .dgate = {},
                            .weight = weight.const_data_ptr<float>(),
                            .heads = x.size(1) / weight.numel(),
                            .size = weight.numel(),
                            .epsilon = static_cast<float>(epsilon),
                            .rstd = rstd.mutable_data_ptr<float>()};
  ForTasks(x.size(0), [&](int64_t begin, int64_t end) { GatedForward(a, begin, end); });
}

template <typename T>
void BackwardAs(Tensor& dx, Tensor& dgate, const Tensor& dy, const Tensor& x, const Tensor& gate,
                const Tensor& weight, const Tensor& rstd, Tensor& parts) {
  const GatedArguments<T> a{
      .x = Read<T>(x),
      .gate = Read<T>(gate),
      .dy = Read<T>(dy),
      .out = Write<T>(dx),
      .dgate = Write<T>(dgate),
      .weight = weight.const_data_ptr<float>(),
      .heads = x.size(1) / weight.numel(),
      .size = weight.numel(),
      .known_rstd = rstd.const_data_ptr<float>(),
      .dweight = parts.numel() > 0 ? parts.mutable_data_ptr<float>() : nullptr};
  ForTasks(x.size(0), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * a.size);
    GatedBackward(a, begin, end, scratch.data());
  });
}

}  // namespace

Tensor GatedRmsNorm(Tensor& y, const Tensor& x, const Tensor& gate, const Tensor& weight,
                    double epsilon, const ops::Fp8Rows& fp8) {
  CheckGatedNorm(x, gate, weight, "GatedRmsNorm");
  CheckRows(y, x.size(0), x.size(1), x, "GatedRmsNorm: y");
  Tensor rstd = at::empty({x.size(0), x.size(1) / weight.numel()}, weight.options());
  const auto run = x.scalar_type() == at::kFloat ? ForwardAs<float> : ForwardAs<BFloat16>;
  run(y, x, gate, weight, epsilon, rstd);
  Fp8QuantizeToo(fp8, y, "GatedRmsNorm");
  return rstd;
}

Tensor GatedRmsNormBackward(Tensor& dx, Tensor& dgate, const Tensor& dy, const Tensor& x,
                            const Tensor& gate, const Tensor& weight, const Tensor& rstd,
                            bool need_weight_grad) {
  constexpr const char* kName = "GatedRmsNormBackward";
  CheckGatedNorm(x, gate, weight, kName);
  for (const Tensor& rows : {dx, dgate, dy}) CheckRows(rows, x.size(0), x.size(1), x, kName);
  TORCH_CHECK(rstd.is_contiguous() && rstd.scalar_type() == at::kFloat &&
                  rstd.numel() * weight.numel() == x.numel(),
              kName, ": rstd is ", rstd.sizes(), ", must be GatedRmsNorm's of x");
  const int64_t tasks = (x.size(0) + kTokens - 1) / kTokens;
  Tensor parts = at::empty({need_weight_grad ? tasks : 0, weight.numel()}, weight.options());
  const auto run = x.scalar_type() == at::kFloat ? BackwardAs<float> : BackwardAs<BFloat16>;
  run(dx, dgate, dy, x, gate, weight, rstd, parts);
  return need_weight_grad ? parts.sum(0) : at::empty({0}, weight.options());
}

}  // namespace sft::engine::cpu
