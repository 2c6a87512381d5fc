#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/row_kernels.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int64_t kGrainTokens = 16;
constexpr int64_t kGrainColumns = 64;

// mean and 1 / sqrt(variance + epsilon) of a row
struct RowStatistics {
  float mean, rstd;
};

template <typename T>
SFT_INLINE RowStatistics StatisticsOf(const T* x, float epsilon, int64_t width) {
  const auto count = static_cast<float>(width);
  const float mean = LaneSum(width, [x](int64_t i) { return static_cast<float>(x[i]); }) / count;
  const float squares = LaneSum(width, [x, mean](int64_t i) {
    const float value = static_cast<float>(x[i]) - mean;
    return value * value;
  });
  return {mean, 1.0f / std::sqrt(squares / count + epsilon)};
}

template <typename T>
void LayerNormAs(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 float epsilon, Tensor& statistics) {
  const int64_t width = x.size(1);
  const T* w = weight.const_data_ptr<T>();
  const T* b = bias.const_data_ptr<T>();
  const T* from = x.const_data_ptr<T>();
  T* to = y.mutable_data_ptr<T>();
  float* means = statistics.mutable_data_ptr<float>();
  float* rstds = means + x.size(0);
  at::parallel_for(0, x.size(0), kGrainTokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* source = from + row * x.stride(0);
      T* target = to + row * y.stride(0);
      const auto [mean, rstd] = StatisticsOf(source, epsilon, width);
      means[row] = mean;
      rstds[row] = rstd;
      for (int64_t i = 0; i < width; ++i) {
        target[i] = static_cast<T>((static_cast<float>(source[i]) - mean) * rstd *
                                       static_cast<float>(w[i]) +
                                   static_cast<float>(b[i]));
      }
    }
  });
}

// With g = dy * weight and z the normed row: dx = rstd * (g - mean(g) - z * mean(g * z)).
template <typename T>
void BackwardAs(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                const Tensor& statistics, const Tensor& residual, Tensor& gradients) {
  const int64_t rows = x.size(0), width = x.size(1);
  const T* w = weight.const_data_ptr<T>();
  const T* xs = x.const_data_ptr<T>();
  const T* dys = dy.const_data_ptr<T>();
  const T* adds = residual.defined() ? residual.const_data_ptr<T>() : nullptr;
  T* to = dx.mutable_data_ptr<T>();
  const float* means = statistics.const_data_ptr<float>();
  const float* rstds = means + rows;
  if (gradients.size(1) > 0) {  // first: dx may overwrite dy
    float* dweight = gradients.mutable_data_ptr<float>();
    float* dbias = dweight + width;
    at::parallel_for(0, width, kGrainColumns, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = begin; i < end; ++i) {
          const float d = static_cast<float>(dys[row * dy.stride(0) + i]);
          dweight[i] +=
              d * (static_cast<float>(xs[row * x.stride(0) + i]) - means[row]) * rstds[row];
          dbias[i] += d;
        }
      }
    });
  }
  at::parallel_for(0, rows, kGrainTokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* source = xs + row * x.stride(0);
      const T* d = dys + row * dy.stride(0);
      const float mean = means[row], rstd = rstds[row], count = static_cast<float>(width);
      const auto scaled = [&](int64_t i) {
        return static_cast<float>(d[i]) * static_cast<float>(w[i]);
      };
      const auto normed = [&](int64_t i) { return (static_cast<float>(source[i]) - mean) * rstd; };
      const float level = LaneSum(width, scaled) / count;
      const float along = LaneSum(width, [&](int64_t i) { return scaled(i) * normed(i); }) / count;
      for (int64_t i = 0; i < width; ++i) {
        const float added =
            adds == nullptr ? 0.0f : static_cast<float>(adds[row * residual.stride(0) + i]);
        to[row * dx.stride(0) + i] =
            static_cast<T>(rstd * (scaled(i) - level - normed(i) * along) + added);
      }
    }
  });
}

}  // namespace

Tensor LayerNorm(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 double epsilon, const ops::Fp8Rows& fp8) {
  CheckLayerNorm(x, weight, "LayerNorm");
  CheckVector(bias, x.size(1), x, "LayerNorm");
  CheckRows(y, x.size(0), x.size(1), x, "LayerNorm: y");
  Tensor statistics = at::empty({2, x.size(0)}, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? LayerNormAs<float> : LayerNormAs<BFloat16>;
  run(y, x, weight, bias, static_cast<float>(epsilon), statistics);
  Fp8QuantizeToo(fp8, y, "LayerNorm");
  return statistics;
}

Tensor LayerNormBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                         const Tensor& statistics, const Tensor& residual, bool need_weight_grads,
                         Tensor& sums, const ops::Fp8Rows& fp8) {
  CheckLayerNormBackward(dx, dy, x, weight, statistics, residual);
  Tensor gradients =
      at::zeros({2, need_weight_grads ? x.size(1) : 0}, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? BackwardAs<float> : BackwardAs<BFloat16>;
  run(dx, dy, x, weight, statistics, residual, gradients);
  if (sums.defined()) ColumnSums(sums, dx);
  Fp8QuantizeToo(fp8, dx, "LayerNormBackward");
  return gradients;
}

}  // namespace sft::engine::cpu
