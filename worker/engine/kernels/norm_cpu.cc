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
  int64_t width;
};

template <typename T>
SFT_INLINE void ForwardRows(Rows<const T> x, const T* weight, float eps, int64_t begin, int64_t end,
                            int64_t width, Rows<T> y, float* rstd) {
  for (int64_t row = begin; row < end; ++row) {
    rstd[row] = RowRstd(x.at(row), eps, width);
    NormaliseRow(x.at(row), weight, rstd[row], width, y.at(row));
  }
}

template <typename T>
SFT_INLINE void BackwardRows(const BackwardArguments<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = a.dy.at(row);
    const T* x = a.x.at(row);
    T* dx = a.dx.at(row);
    const float r = a.rstd[row];
    const float along = AlongRow(dy, x, a.weight, r, a.width);
    const auto gradient = [&](int64_t i) {
      const float g = static_cast<float>(dy[i]) * static_cast<float>(a.weight[i]);
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
      const T normalised = static_cast<T>(static_cast<float>(x[i]) * r);
      dweight[i] += static_cast<float>(dy[i]) * static_cast<float>(normalised);
    }
  }
}

// target_clones does not apply to templates: one overload a type.
SFT_SIMD_CLONES void Forward(Rows<const float> x, const float* weight, float eps, int64_t begin,
                             int64_t end, int64_t width, Rows<float> y, float* rstd) {
  ForwardRows(x, weight, eps, begin, end, width, y, rstd);
}
SFT_SIMD_CLONES void Forward(Rows<const BFloat16> x, const BFloat16* weight, float eps,
                             int64_t begin, int64_t end, int64_t width, Rows<BFloat16> y,
                             float* rstd) {
  ForwardRows(x, weight, eps, begin, end, width, y, rstd);
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
void ForwardAs(const Tensor& x, const Tensor& weight, float eps, Tensor& y, Tensor& rstd) {
  const auto source = ReadRows<T>(x);
  const auto target = WriteRows<T>(y);
  const T* scale = weight.const_data_ptr<T>();
  float* r = rstd.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0), kGrainRows, [&](int64_t begin, int64_t end) {
    Forward(source, scale, eps, begin, end, x.size(1), target, r);
  });
}

template <typename T>
void BackwardAs(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                const Tensor& residual, Tensor& dx, Tensor& dweight) {
  const BackwardArguments<T> arguments{
      .dy = ReadRows<T>(dy),
      .x = ReadRows<T>(x),
      .residual = residual.defined() ? ReadRows<T>(residual) : Rows<const T>{},
      .dx = WriteRows<T>(dx),
      .weight = weight.const_data_ptr<T>(),
      .rstd = rstd.const_data_ptr<float>(),
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

Tensor RmsNorm(Tensor& y, const Tensor& x, const Tensor& weight, double eps,
               const ops::Fp8Rows& fp8) {
  CheckNorm(x, weight, "RmsNorm");
  CheckRows(y, x.size(0), x.size(1), x, "RmsNorm: y");
  Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? ForwardAs<float> : ForwardAs<BFloat16>;
  run(x, weight, static_cast<float>(eps), y, rstd);
  Fp8QuantizeToo(fp8, y, "RmsNorm");
  return rstd;
}

Tensor RmsNormBackward(Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& weight,
                       const Tensor& rstd, const Tensor& residual, bool need_weight_grad,
                       const ops::Fp8Rows& fp8) {
  CheckNorm(x, weight, "RmsNormBackward");
  CheckRows(dx, x.size(0), x.size(1), x, "RmsNormBackward: dx");
  CheckRows(dy, x.size(0), x.size(1), x, "RmsNormBackward: dy");
  if (residual.defined()) CheckRows(residual, x.size(0), x.size(1), x, "RmsNormBackward: residual");
  TORCH_CHECK(rstd.is_contiguous() && rstd.numel() == x.size(0), "RmsNormBackward: rstd must be [",
              x.size(0), "], dense");
  Tensor dweight = at::empty({need_weight_grad ? x.size(1) : 0}, x.options().dtype(at::kFloat));
  const auto run = x.scalar_type() == at::kFloat ? BackwardAs<float> : BackwardAs<BFloat16>;
  run(dy, x, weight, rstd, residual, dx, dweight);
  Fp8QuantizeToo(fp8, dx, "RmsNormBackward");
  return dweight;
}

}  // namespace sft::engine::cpu
