#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/row_kernels.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int64_t kGrainRows = 16;
constexpr int64_t kGrainColumns = 64;

// Dense rows that start every `stride` elements.
template <typename T>
struct Rows {
  T* data = nullptr;
  int64_t stride = 0;
  SFT_INLINE T* at(int64_t row) const { return data + row * stride; }
};

template <typename T>
struct BackwardArguments {
  Rows<const T> dy, x, residual;  // residual.data may be null
  Rows<T> dx;
  const T* weight;
  const float* rstd;
  NormForm form;
  int64_t width;
};

template <typename T>
struct ForwardArguments {
  Rows<const T> x, residual;  // residual.data may be null
  Rows<T> y;                  // may be residual
  const T* weight;
  float* rstd;
  float epsilon;
  NormForm form;
  int64_t width;
};

template <typename T>
SFT_INLINE void ForwardRows(const ForwardArguments<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = a.x.at(row);
    T* y = a.y.at(row);
    const float r = RowRstd(x, a.epsilon, a.width);
    a.rstd[row] = r;
    if (a.residual.data == nullptr) {
      NormaliseRow(x, a.weight, r, a.form, a.width, y);
      continue;
    }
    const T* residual = a.residual.at(row);
    for (int64_t i = 0; i < a.width; ++i) {
      const float normalised = RoundedFirst<T>(static_cast<float>(x[i]) * r, a.form);
      const T normed = static_cast<T>((a.form.plus + static_cast<float>(a.weight[i])) * normalised);
      y[i] = static_cast<T>(static_cast<float>(residual[i]) + static_cast<float>(normed));
    }
  }
}

template <typename T>
SFT_INLINE void BackwardRows(const BackwardArguments<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = a.dy.at(row);
    const T* x = a.x.at(row);
    T* dx = a.dx.at(row);
    const float r = a.rstd[row];
    const float along = AlongRow(dy, x, a.weight, r, a.form.plus, a.width);
    const auto gradient = [&](int64_t i) {
      const float g = static_cast<float>(dy[i]) * (a.form.plus + static_cast<float>(a.weight[i]));
      return r * (g - static_cast<float>(x[i]) * along);
    };
    if (a.residual.data == nullptr) {
      for (int64_t i = 0; i < a.width; ++i) dx[i] = static_cast<T>(gradient(i));
    } else {
      const T* residual = a.residual.at(row);
      for (int64_t i = 0; i < a.width; ++i) {
        dx[i] = static_cast<T>(gradient(i) + static_cast<float>(residual[i]));
      }
    }
  }
}

// Columns [begin, end) of dweight, all rows: the order of the sum does not depend on the threads.
template <typename T>
SFT_INLINE void WeightColumns(const BackwardArguments<T>& a, int64_t rows, int64_t begin,
                              int64_t end, float* dweight) {
  for (int64_t i = begin; i < end; ++i) dweight[i] = 0.0f;
  for (int64_t row = 0; row < rows; ++row) {
    const T* dy = a.dy.at(row);
    const T* x = a.x.at(row);
    const float r = a.rstd[row];
    for (int64_t i = begin; i < end; ++i) {
      const float normalised = RoundedFirst<T>(static_cast<float>(x[i]) * r, a.form);
      dweight[i] += static_cast<float>(dy[i]) * normalised;
    }
  }
}

// target_clones does not apply to templates: one overload a type.
SFT_SIMD_CLONES void Forward(const ForwardArguments<float>& a, int64_t begin, int64_t end) {
  ForwardRows(a, begin, end);
}
SFT_SIMD_CLONES void Forward(const ForwardArguments<BFloat16>& a, int64_t begin, int64_t end) {
  ForwardRows(a, begin, end);
}
SFT_SIMD_CLONES void Backward(const BackwardArguments<float>& a, int64_t begin, int64_t end) {
  BackwardRows(a, begin, end);
}
SFT_SIMD_CLONES void Backward(const BackwardArguments<BFloat16>& a, int64_t begin, int64_t end) {
  BackwardRows(a, begin, end);
}
SFT_SIMD_CLONES void WeightGrad(const BackwardArguments<float>& a, int64_t rows, int64_t begin,
                                int64_t end, float* dweight) {
  WeightColumns(a, rows, begin, end, dweight);
}
SFT_SIMD_CLONES void WeightGrad(const BackwardArguments<BFloat16>& a, int64_t rows, int64_t begin,
                                int64_t end, float* dweight) {
  WeightColumns(a, rows, begin, end, dweight);
}

template <typename T>
Rows<const T> ReadRows(const Tensor& x) {
  return {x.const_data_ptr<T>(), x.stride(0)};
}
template <typename T>
Rows<T> WriteRows(Tensor& x) {
  return {x.mutable_data_ptr<T>(), x.stride(0)};
}

void CheckNorm(const Tensor& x, const Tensor& weight, const char* operation) {
  TORCH_CHECK(x.dim() == 2, operation, ": x is ", x.sizes(), ", must be [tokens, width]");
  CheckRows(x, x.size(0), x.size(1), x, operation);
  CheckVector(weight, x.size(1), x, operation);
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, operation,
              ": x must be fp32 or bf16");
}

template <typename T>
void ForwardAs(const Tensor& x, const Tensor& weight, const Tensor& residual,
               const ops::NormOptions& options, Tensor& y, Tensor& rstd) {
  const ForwardArguments<T> arguments{
      .x = ReadRows<T>(x),
      .residual = residual.defined() ? ReadRows<T>(residual) : Rows<const T>{},
      .y = WriteRows<T>(y),
      .weight = weight.const_data_ptr<T>(),
      .rstd = rstd.mutable_data_ptr<float>(),
      .epsilon = static_cast<float>(options.epsilon),
      .form = FormOf(options.kind),
      .width = x.size(1)};
  at::parallel_for(0, x.size(0), kGrainRows,
                   [&](int64_t begin, int64_t end) { Forward(arguments, begin, end); });
}

Tensor NormInto(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& residual,
                const ops::NormOptions& options) {
  Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? ForwardAs<float> : ForwardAs<BFloat16>;
  run(x, weight, residual, options, y, rstd);
  return rstd;
}

template <typename T>
void BackwardAs(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                plan::NormKind kind, const Tensor& residual, Tensor& dx, Tensor& dweight) {
  const BackwardArguments<T> arguments{
      .dy = ReadRows<T>(dy),
      .x = ReadRows<T>(x),
      .residual = residual.defined() ? ReadRows<T>(residual) : Rows<const T>{},
      .dx = WriteRows<T>(dx),
      .weight = weight.const_data_ptr<T>(),
      .rstd = rstd.const_data_ptr<float>(),
      .form = FormOf(kind),
      .width = x.size(1)};
  if (dweight.numel() > 0) {  // first: dx may overwrite dy
    float* dw = dweight.mutable_data_ptr<float>();
    at::parallel_for(0, x.size(1), kGrainColumns, [&](int64_t begin, int64_t end) {
      WeightGrad(arguments, x.size(0), begin, end, dw);
    });
  }
  at::parallel_for(0, x.size(0), kGrainRows,
                   [&](int64_t begin, int64_t end) { Backward(arguments, begin, end); });
}

}  // namespace

Tensor RmsNorm(Tensor& y, const Tensor& x, const Tensor& weight, const ops::NormOptions& options,
               const ops::Fp8Rows& fp8) {
  CheckNorm(x, weight, "RmsNorm");
  CheckRows(y, x.size(0), x.size(1), x, "RmsNorm: y");
  Tensor rstd = NormInto(y, x, weight, Tensor(), options);
  Fp8QuantizeToo(fp8, y, "RmsNorm");
  return rstd;
}

Tensor RmsNormAdd(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& residual,
                  const ops::NormOptions& options) {
  CheckNorm(x, weight, "RmsNormAdd");
  CheckRows(y, x.size(0), x.size(1), x, "RmsNormAdd: y");
  CheckRows(residual, x.size(0), x.size(1), x, "RmsNormAdd: residual");
  return NormInto(y, x, weight, residual, options);
}

Tensor RmsNormBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                       const Tensor& rstd, plan::NormKind kind, const Tensor& residual,
                       bool need_weight_grad, const ops::Fp8Rows& fp8) {
  CheckNorm(x, weight, "RmsNormBackward");
  CheckRows(dx, x.size(0), x.size(1), x, "RmsNormBackward: dx");
  CheckRows(dy, x.size(0), x.size(1), x, "RmsNormBackward: dy");
  if (residual.defined()) CheckRows(residual, x.size(0), x.size(1), x, "RmsNormBackward: residual");
  TORCH_CHECK(rstd.is_contiguous() && rstd.numel() == x.size(0), "RmsNormBackward: rstd must be [",
              x.size(0), "], dense");
  Tensor dweight = at::empty({need_weight_grad ? x.size(1) : 0}, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? BackwardAs<float> : BackwardAs<BFloat16>;
  run(dy, x, weight, rstd, kind, residual, dx, dweight);
  Fp8QuantizeToo(fp8, dx, "RmsNormBackward");
  return dweight;
}

}  // namespace sft::engine::cpu
