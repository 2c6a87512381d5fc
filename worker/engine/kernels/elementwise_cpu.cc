#include <ATen/Parallel.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/row_kernels.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

constexpr int64_t kGrainTokens = 16;

template <typename T>
SFT_INLINE void RotateHeads(T* x, const float* cos, const float* sin, float sign, int64_t heads,
                            int64_t size, int64_t half) {
  for (int64_t head = 0; head < heads; ++head, x += size) {
    RotateHead(x, cos, sin, sign, half, x);
  }
}

SFT_SIMD_CLONES void Rotate(float* x, const float* cos, const float* sin, float sign, int64_t heads,
                            int64_t size, int64_t half) {
  RotateHeads(x, cos, sin, sign, heads, size, half);
}
SFT_SIMD_CLONES void Rotate(BFloat16* x, const float* cos, const float* sin, float sign,
                            int64_t heads, int64_t size, int64_t half) {
  RotateHeads(x, cos, sin, sign, heads, size, half);
}

template <typename T>
void RopeAs(Tensor& x, const Tensor& cos, const Tensor& sin, float sign) {
  const int64_t half = cos.size(1);
  const int64_t stride = x.stride(0);
  T* values = x.mutable_data_ptr<T>();
  const float* c = cos.const_data_ptr<float>();
  const float* s = sin.const_data_ptr<float>();
  at::parallel_for(0, x.size(0), kGrainTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      Rotate(values + token * stride, c + token * half, s + token * half, sign, x.size(1),
             x.size(2), half);
    }
  });
}

// {gate, up}
std::pair<Tensor, Tensor> Halves(const Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  return {gate_up.narrow(1, 0, width), gate_up.narrow(1, width, width)};
}

Tensor Activated(const Tensor& gate, plan::ActivationKind kind) {
  return kind == plan::ActivationKind::kSilu ? at::silu(gate) : at::gelu(gate, "tanh");
}

// Calls part(first, count) for all rows of `width` elements, a few at a time. LibTorch's vector
// code and the scalar code at its ends differ in the last bit; calls this small it does not divide,
// so that an element's bits depend on its place in the row alone. `dense`: it would run through
// rows as one where that is no multiple of its vectors.
template <typename Part>
void ByRows(int64_t rows, int64_t width, bool dense, const Part& part) {
  constexpr int64_t kUndivided = 32768, kVectors = 64;
  const bool joined = dense && width % kVectors != 0;
  const int64_t most = joined || width == 0 ? 1 : std::max<int64_t>(1, kUndivided / width);
  at::parallel_for(0, (rows + most - 1) / most, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) part(i * most, std::min(most, rows - i * most));
  });
}

Tensor ActivatedBackward(const Tensor& dy, const Tensor& x, plan::ActivationKind kind) {
  return kind == plan::ActivationKind::kSilu ? at::silu_backward(dy, x)
                                             : at::gelu_backward(dy, x, "tanh");
}

void CheckGlu(const Tensor& narrow, const Tensor& gate_up, const char* operation) {
  TORCH_CHECK(gate_up.dim() == 2 && gate_up.size(1) % 2 == 0, operation, ": gate_up is ",
              gate_up.sizes(), ", must be [tokens, 2 width]");
  CheckRows(gate_up, gate_up.size(0), gate_up.size(1), gate_up, operation);
  CheckRows(narrow, gate_up.size(0), gate_up.size(1) / 2, gate_up, operation);
}

template <typename T>
void PlaceFactorsAs(Tensor& matrix, at::TensorList a, at::TensorList b, at::IntArrayRef first_row,
                    float scale, const FactorPlaces& places) {
  T* values = matrix.mutable_data_ptr<T>();
  const int64_t stride = matrix.stride(0);
  int64_t first_rank = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t rank = a[i].size(0);
    const T* down = a[i].const_data_ptr<T>();
    const T* up = b[i].const_data_ptr<T>();
    for (int64_t r = 0; r < rank; ++r) {
      std::copy_n(down + r * a[i].stride(0), places.columns,
                  values + (places.rows + first_rank + r) * stride);
    }
    at::parallel_for(0, places.rows, 256, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* to = values + row * stride + places.columns + first_rank;
        const int64_t from = row - first_row[i];
        if (from < 0 || from >= b[i].size(0)) {
          std::fill_n(to, rank, static_cast<T>(0.0f));
          continue;
        }
        const T* source = up + from * b[i].stride(0);
        for (int64_t r = 0; r < rank; ++r) {
          to[r] = static_cast<T>(scale * static_cast<float>(source[r]));
        }
      }
    });
    first_rank += rank;
  }
}

}  // namespace

void Rope(Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  TORCH_CHECK(x.dim() == 3, "Rope: x is ", x.sizes(), ", must be [tokens, heads, size]");
  CheckHeads(x, x.size(0), x.size(2), x, "Rope: x");
  CheckAngles(cos, sin, x.size(0), RotatedSize(cos, x.size(2), "Rope"), x, "Rope");
  const float sign = inverse ? -1.0f : 1.0f;
  if (x.scalar_type() == at::kFloat) {
    RopeAs<float>(x, cos, sin, sign);
  } else {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "Rope: x must be fp32 or bf16");
    RopeAs<BFloat16>(x, cos, sin, sign);
  }
}

namespace {

// plan::ActivationKind::kClampedSwiGlu, of one element. At the limits themselves the gradient
// passes.
struct ClampedPair {
  static constexpr float kLimit = 7.0f, kSlope = 1.702f;

  ClampedPair(float g, float u)
      : gate(std::min(g, kLimit)),
        up(std::clamp(u, -kLimit, kLimit)),
        share(1.0f / (1.0f + std::exp(-kSlope * gate))),
        passes_gate(!(g > kLimit)),
        passes_up(!(std::abs(u) > kLimit)) {}
  float Product() const { return (up + 1.0f) * gate * share; }
  float GateGradient(float dy) const {
    const float slope = share * (1.0f + kSlope * gate * (1.0f - share));
    return passes_gate ? dy * (up + 1.0f) * slope : 0.0f;
  }
  float UpGradient(float dy) const { return passes_up ? dy * gate * share : 0.0f; }

  float gate, up, share;
  bool passes_gate, passes_up;
};

template <typename T>
void ClampedSwiGluAs(Tensor& out, const Tensor& gate_up) {
  at::parallel_for(0, out.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = gate_up.const_data_ptr<T>() + row * gate_up.stride(0);
      T* to = out.mutable_data_ptr<T>() + row * out.stride(0);
      for (int64_t i = 0; i < out.size(1); ++i) {
        const ClampedPair pair(static_cast<float>(from[2 * i]),
                               static_cast<float>(from[2 * i + 1]));
        to[i] = static_cast<T>(pair.Product());
      }
    }
  });
}

template <typename T>
void ClampedSwiGluBackwardAs(Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up) {
  at::parallel_for(0, dy.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = gate_up.const_data_ptr<T>() + row * gate_up.stride(0);
      const T* gradient = dy.const_data_ptr<T>() + row * dy.stride(0);
      T* to = dgate_up.mutable_data_ptr<T>() + row * dgate_up.stride(0);
      for (int64_t i = 0; i < dy.size(1); ++i) {
        const ClampedPair pair(static_cast<float>(from[2 * i]),
                               static_cast<float>(from[2 * i + 1]));
        const auto d = static_cast<float>(gradient[i]);
        to[2 * i] = static_cast<T>(pair.GateGradient(d));
        to[2 * i + 1] = static_cast<T>(pair.UpGradient(d));
      }
    }
  });
}

}  // namespace

void Glu(Tensor& out, const Tensor& gate_up, plan::ActivationKind kind, const ops::Fp8Rows& fp8) {
  CheckGlu(out, gate_up, "Glu");
  if (kind == plan::ActivationKind::kClampedSwiGlu) {
    if (out.scalar_type() == at::kFloat) {
      ClampedSwiGluAs<float>(out, gate_up);
    } else {
      ClampedSwiGluAs<BFloat16>(out, gate_up);
    }
    Fp8QuantizeToo(fp8, out, "Glu");
    return;
  }
  const Tensor gate = Halves(gate_up).first, up = Halves(gate_up).second;
  ByRows(out.size(0), out.size(1), /*dense=*/false, [&](int64_t first, int64_t count) {
    Tensor rows = out.narrow(0, first, count);
    at::mul_out(rows, Activated(gate.narrow(0, first, count), kind), up.narrow(0, first, count));
  });
  Fp8QuantizeToo(fp8, out, "Glu");
}

void GluBackward(Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                 plan::ActivationKind kind) {
  CheckGlu(dy, gate_up, "GluBackward");
  CheckRows(dgate_up, gate_up.size(0), gate_up.size(1), gate_up, "GluBackward: dgate_up");
  if (kind == plan::ActivationKind::kClampedSwiGlu) {
    if (dy.scalar_type() == at::kFloat) {
      ClampedSwiGluBackwardAs<float>(dgate_up, dy, gate_up);
    } else {
      ClampedSwiGluBackwardAs<BFloat16>(dgate_up, dy, gate_up);
    }
    return;
  }
  const auto [gate, up] = Halves(gate_up);
  auto [dgate, dup] = Halves(dgate_up);
  // All of gate and up is read before their places, which may be those of the results, are written.
  const Tensor gate_gradient = ActivatedBackward(at::mul(dy, up), gate, kind);
  at::mul_out(dup, Activated(gate, kind), dy);
  dgate.copy_(gate_gradient);
}

void Activate(Tensor& out, const Tensor& x, plan::ActivationKind kind, const ops::Fp8Rows& fp8) {
  CheckRows(out, x.size(0), x.size(1), x, "Activate");
  ByRows(x.size(0), x.size(1), x.is_contiguous(), [&](int64_t first, int64_t count) {
    out.narrow(0, first, count).copy_(Activated(x.narrow(0, first, count), kind));
  });
  Fp8QuantizeToo(fp8, out, "Activate");
}

void ActivateBackward(Tensor& dx, const Tensor& dy, const Tensor& x, plan::ActivationKind kind,
                      Tensor& sums) {
  CheckRows(dx, x.size(0), x.size(1), x, "ActivateBackward: dx");
  CheckRows(dy, x.size(0), x.size(1), x, "ActivateBackward: dy");
  dx.copy_(ActivatedBackward(dy, x, kind));
  if (sums.defined()) ColumnSums(sums, dx);
}

void AddBias(Tensor& y, const Tensor& bias) {
  CheckRows(y, y.size(0), y.size(1), y, "AddBias: y");
  CheckVector(bias, y.size(1), y, "AddBias");
  y.add_(bias);
}

void ColumnSums(Tensor& sums, const Tensor& x) {
  CheckColumnSums(sums, x, "ColumnSums");
  sums.copy_(at::sum(x, {0}, /*keepdim=*/false, at::kFloat));
}

void Accumulate(Tensor& sum, const Tensor& part, bool fresh) {
  CheckAccumulate(sum, part);
  if (fresh) {
    sum.copy_(part);
  } else {
    sum.add_(part);
  }
}

void PlaceFactors(Tensor& matrix, at::TensorList a, at::TensorList b, at::IntArrayRef first_row,
                  double scale) {
  const FactorPlaces places = CheckFactors(matrix, a, b, first_row);
  if (matrix.scalar_type() == at::kFloat) {
    PlaceFactorsAs<float>(matrix, a, b, first_row, static_cast<float>(scale), places);
  } else {
    TORCH_CHECK(matrix.scalar_type() == at::kBFloat16, "PlaceFactors: matrix must be fp32 or bf16");
    PlaceFactorsAs<BFloat16>(matrix, a, b, first_row, static_cast<float>(scale), places);
  }
}

}  // namespace sft::engine::cpu
