#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int kLanes = 16;
constexpr int64_t kGrainRows = 16;
constexpr int64_t kGrainColumns = 64;

#define SFT_INLINE __attribute__((always_inline)) inline

// Sum over i of term(i), in a fixed order of kLanes partial sums that the compiler can vectorise.
template <typename Term>
SFT_INLINE float LaneSum(int64_t count, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (; i < count; ++i) lanes[i % kLanes] += term(i);
  float sum = 0.0f;
  for (float lane : lanes) sum += lane;
  return sum;
}

template <typename T>
SFT_INLINE void ForwardRows(const T* x, const T* weight, float eps, int64_t rows, int64_t hidden,
                            T* y, float* rstd) {
  for (int64_t row = 0; row < rows; ++row, x += hidden, y += hidden) {
    const float sum = LaneSum(hidden, [x](int64_t i) {
      const float value = static_cast<float>(x[i]);
      return value * value;
    });
    const float r = 1.0f / std::sqrt(sum / static_cast<float>(hidden) + eps);
    rstd[row] = r;
    for (int64_t i = 0; i < hidden; ++i) {
      const T normalised = static_cast<T>(static_cast<float>(x[i]) * r);
      y[i] = static_cast<T>(static_cast<float>(weight[i]) * static_cast<float>(normalised));
    }
  }
}

template <typename T>
SFT_INLINE void BackwardRows(const T* dy, const T* x, const T* weight, const float* rstd,
                             int64_t rows, int64_t hidden, T* dx) {
  for (int64_t row = 0; row < rows; ++row, dy += hidden, x += hidden, dx += hidden) {
    const float r = rstd[row];
    const float dot = LaneSum(hidden, [=](int64_t i) {
      return static_cast<float>(dy[i]) * static_cast<float>(weight[i]) * static_cast<float>(x[i]);
    });
    const float along = dot * r * r / static_cast<float>(hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      const float g = static_cast<float>(dy[i]) * static_cast<float>(weight[i]);
      dx[i] = static_cast<T>(r * (g - static_cast<float>(x[i]) * along));
    }
  }
}

// Columns [begin, end) of dweight, all rows: the order of the sum does not depend on the threads.
template <typename T>
SFT_INLINE void WeightColumns(const T* dy, const T* x, const float* rstd, int64_t rows,
                              int64_t hidden, int64_t begin, int64_t end, float* dweight) {
  for (int64_t i = begin; i < end; ++i) dweight[i] = 0.0f;
  for (int64_t row = 0; row < rows; ++row, dy += hidden, x += hidden) {
    const float r = rstd[row];
    for (int64_t i = begin; i < end; ++i) {
      const T normalised = static_cast<T>(static_cast<float>(x[i]) * r);
      dweight[i] += static_cast<float>(dy[i]) * static_cast<float>(normalised);
    }
  }
}

// target_clones does not apply to templates: one overload a type.
SFT_SIMD_CLONES void Forward(const float* x, const float* weight, float eps, int64_t rows,
                             int64_t hidden, float* y, float* rstd) {
  ForwardRows(x, weight, eps, rows, hidden, y, rstd);
}
SFT_SIMD_CLONES void Forward(const BFloat16* x, const BFloat16* weight, float eps, int64_t rows,
                             int64_t hidden, BFloat16* y, float* rstd) {
  ForwardRows(x, weight, eps, rows, hidden, y, rstd);
}
SFT_SIMD_CLONES void Backward(const float* dy, const float* x, const float* weight,
                              const float* rstd, int64_t rows, int64_t hidden, float* dx) {
  BackwardRows(dy, x, weight, rstd, rows, hidden, dx);
}
SFT_SIMD_CLONES void Backward(const BFloat16* dy, const BFloat16* x, const BFloat16* weight,
                              const float* rstd, int64_t rows, int64_t hidden, BFloat16* dx) {
  BackwardRows(dy, x, weight, rstd, rows, hidden, dx);
}
SFT_SIMD_CLONES void WeightGrad(const float* dy, const float* x, const float* rstd, int64_t rows,
                                int64_t hidden, int64_t begin, int64_t end, float* dweight) {
  WeightColumns(dy, x, rstd, rows, hidden, begin, end, dweight);
}
SFT_SIMD_CLONES void WeightGrad(const BFloat16* dy, const BFloat16* x, const float* rstd,
                                int64_t rows, int64_t hidden, int64_t begin, int64_t end,
                                float* dweight) {
  WeightColumns(dy, x, rstd, rows, hidden, begin, end, dweight);
}

void CheckInput(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(x.is_contiguous() && weight.is_contiguous(), "rms_norm: inputs must be contiguous");
  TORCH_CHECK(x.dim() >= 1 && weight.numel() == x.size(-1), "rms_norm: weight has ",
              weight.numel(), " elements, rows have ", x.size(-1));
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "rms_norm: x is ", x.scalar_type(),
              ", weight is ", weight.scalar_type());
}

template <typename T>
void ForwardAs(const Tensor& x, const Tensor& weight, float eps, Tensor& y, Tensor& rstd) {
  const int64_t hidden = weight.numel();
  const T* source = x.const_data_ptr<T>();
  const T* scale = weight.const_data_ptr<T>();
  T* target = y.mutable_data_ptr<T>();
  float* r = rstd.mutable_data_ptr<float>();
  at::parallel_for(0, rstd.numel(), kGrainRows, [&](int64_t begin, int64_t end) {
    Forward(source + begin * hidden, scale, eps, end - begin, hidden, target + begin * hidden,
            r + begin);
  });
}

template <typename T>
void BackwardAs(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                Tensor& dx, Tensor& dweight) {
  const int64_t hidden = weight.numel();
  const int64_t rows = rstd.numel();
  const T* grad = dy.const_data_ptr<T>();
  const T* source = x.const_data_ptr<T>();
  const T* scale = weight.const_data_ptr<T>();
  const float* r = rstd.const_data_ptr<float>();
  T* target = dx.mutable_data_ptr<T>();
  at::parallel_for(0, rows, kGrainRows, [&](int64_t begin, int64_t end) {
    Backward(grad + begin * hidden, source + begin * hidden, scale, r + begin, end - begin, hidden,
             target + begin * hidden);
  });
  if (dweight.numel() == 0) return;
  float* dw = dweight.mutable_data_ptr<float>();
  at::parallel_for(0, hidden, kGrainColumns, [&](int64_t begin, int64_t end) {
    WeightGrad(grad, source, r, rows, hidden, begin, end, dw);
  });
}

}  // namespace

std::tuple<Tensor, Tensor> RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  CheckInput(x, weight);
  Tensor y = at::empty_like(x);
  Tensor rstd = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat));
  if (x.scalar_type() == at::kFloat) {
    ForwardAs<float>(x, weight, static_cast<float>(eps), y, rstd);
  } else {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "rms_norm: x must be fp32 or bf16");
    ForwardAs<BFloat16>(x, weight, static_cast<float>(eps), y, rstd);
  }
  return {y, rstd};
}

std::tuple<Tensor, Tensor> RmsNormBackward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                           const Tensor& rstd, bool need_weight_grad) {
  CheckInput(x, weight);
  TORCH_CHECK(dy.is_contiguous() && dy.sizes() == x.sizes(), "rms_norm_backward: bad dy");
  Tensor dx = at::empty_like(x);
  Tensor dweight =
      at::empty({need_weight_grad ? weight.numel() : 0}, x.options().dtype(at::kFloat));
  if (x.scalar_type() == at::kFloat) {
    BackwardAs<float>(dy, x, weight, rstd, dx, dweight);
  } else {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "rms_norm_backward: x must be fp32 or bf16");
    BackwardAs<BFloat16>(dy, x, weight, rstd, dx, dweight);
  }
  return {dx, dweight};
}

}  // namespace sft::engine::cpu
