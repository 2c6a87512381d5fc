#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

// The CPU kernels in fp32 are the reference; tests/unit holds those against autograd. A bf16 result
// is compared with the fp32 one of the same (bf16) inputs: what is left is the rounding of outputs.

namespace sft::engine {
namespace {

struct Precision {
  at::ScalarType type;
  double tolerance;
};
constexpr Precision kPrecisions[] = {{at::kFloat, 2e-6}, {at::kBFloat16, 4e-3}};
constexpr plan::NormKind kNormKinds[] = {plan::NormKind::kRms, plan::NormKind::kRmsFp32,
                                         plan::NormKind::kRmsOnePlus};
constexpr plan::ActivationKind kActivationKinds[] = {plan::ActivationKind::kSilu,
                                                     plan::ActivationKind::kGeluTanh};

// Each of the first with each of the second.
template <typename A, size_t N, typename B, size_t M>
std::vector<std::pair<A, B>> Product(const A (&first)[N], const B (&second)[M]) {
  std::vector<std::pair<A, B>> pairs;
  for (const A& a : first) {
    for (const B& b : second) pairs.emplace_back(a, b);
  }
  return pairs;
}

// `x` as the GPU gets it, and the same values in fp32 for the reference.
struct Input {
  Input(const at::Tensor& x, at::ScalarType type)
      : gpu(ToGpu(x.to(type))), reference(x.to(type).to(at::kFloat)) {}
  at::Tensor gpu, reference;
};

// Rows on the GPU with a gap of `gap` elements beside each, which holds 77: 64 keeps them aligned.
struct Strided {
  Strided(at::IntArrayRef sizes, at::ScalarType type, int64_t gap)
      : buffer(ToGpu(at::full({sizes[0], sizes[1] + gap}, 77.0, type))),
        rows(buffer.narrow(1, 0, sizes[1])) {}
  Strided(const at::Tensor& x, int64_t gap) : Strided(x.sizes(), x.scalar_type(), gap) {
    rows.copy_(x);
  }
  bool GapIsUntouched() const {
    const int64_t width = rows.size(1);
    return (buffer.narrow(1, width, buffer.size(1) - width) == 77.0).all().item<bool>();
  }
  at::Tensor buffer, rows;
};

// Whether `sums` are the sums of the columns of `x`, but for the rounding of sums in fp32.
bool AreSumsOf(const at::Tensor& sums, const at::Tensor& x) {
  const at::Tensor exact = x.cpu().to(at::kDouble),
                   error = sums.cpu().to(at::kDouble) - exact.sum(0);
  return (error.abs() <= 1e-5 * exact.abs().sum(0)).all().item<bool>();
}

class RowsTest : public GpuTest,
                 public ::testing::WithParamInterface<std::pair<int64_t, int64_t>> {};

TEST_P(RowsTest, RmsNormForwardAndBackwardEqualTheReference) {
  const auto [rows, width] = GetParam();
  for (const auto& [precision, kind] : Product(kPrecisions, kNormKinds)) {
    const auto& [type, tolerance] = precision;
    const ops::NormOptions options(1e-6, kind);
    const Input x(Normal({rows, width}, 1, 3.0), type), w(Normal({width}, 2), type);
    const Input dy(Normal({rows, width}, 3), type), residual(Normal({rows, width}, 4), type);
    at::Tensor y_ref = at::empty({rows, width}), dx_ref = at::empty({rows, width});
    at::Tensor sum_ref = at::empty({rows, width});
    const at::Tensor rstd_ref = ops::RmsNorm(y_ref, x.reference, w.reference, options);
    const at::Tensor dw_ref = ops::RmsNormBackward(dx_ref, dy.reference, x.reference, w.reference,
                                                   rstd_ref, kind, at::Tensor(), true);
    ops::RmsNormBackward(sum_ref, dy.reference, x.reference, w.reference, rstd_ref, kind,
                         residual.reference, false);
    for (const int64_t gap : {64, 3}) {
      const Strided source(x.gpu, gap), gradient(dy.gpu, gap), skip(residual.gpu, gap);
      Strided y(x.gpu.sizes(), type, gap), dx(x.gpu.sizes(), type, gap);
      const at::Tensor rstd = ops::RmsNorm(y.rows, source.rows, w.gpu, options);
      EXPECT_LT(RelativeError(y.rows, y_ref), tolerance) << type;
      EXPECT_LT(RelativeError(rstd, rstd_ref), 2e-6) << type;
      const at::Tensor dw = ops::RmsNormBackward(dx.rows, gradient.rows, source.rows, w.gpu, rstd,
                                                 kind, at::Tensor(), true);
      EXPECT_LT(RelativeError(dx.rows, dx_ref), tolerance) << type;
      EXPECT_EQ(dw.scalar_type(), at::kFloat);
      // A sum over all rows in fp32, in another order than the reference's.
      EXPECT_LT(RelativeError(dw, dw_ref), rows > 4096 ? 2 * tolerance : tolerance) << type;
      const at::Tensor none = ops::RmsNormBackward(dx.rows, gradient.rows, source.rows, w.gpu, rstd,
                                                   kind, skip.rows, false);
      EXPECT_EQ(none.numel(), 0);
      EXPECT_LT(RelativeError(dx.rows, sum_ref), tolerance) << type;
      EXPECT_TRUE(SameBits(ops::RmsNormAdd(dx.rows, source.rows, w.gpu, skip.rows, options), rstd));
      EXPECT_TRUE(SameBits(dx.rows, skip.rows + y.rows)) << type << " gap " << gap;
      EXPECT_TRUE(y.GapIsUntouched() && dx.GapIsUntouched()) << type << " gap " << gap;
    }
  }
}

TEST_P(RowsTest, RmsNormBackwardMayOverwriteItsGradientOrItsResidual) {
  const auto [rows, width] = GetParam();
  for (const auto& precision : kPrecisions) {
    const at::Tensor x = ToGpu(Normal({rows, width}, 1)).to(precision.type);
    const at::Tensor w = ToGpu(Normal({width}, 2)).to(precision.type);
    at::Tensor dy = ToGpu(Normal({rows, width}, 3)).to(precision.type);
    at::Tensor residual = ToGpu(Normal({rows, width}, 4)).to(precision.type);
    at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
    const at::Tensor rstd = ops::RmsNorm(y, x, w, 1e-6);
    const at::Tensor dw =
        ops::RmsNormBackward(dx, dy, x, w, rstd, plan::NormKind::kRms, residual, true);
    at::Tensor over_dy = dy.clone();
    EXPECT_TRUE(SameBits(
        ops::RmsNormBackward(over_dy, over_dy, x, w, rstd, plan::NormKind::kRms, residual, true),
        dw));
    EXPECT_TRUE(SameBits(over_dy, dx)) << precision.type;
    EXPECT_TRUE(SameBits(
        ops::RmsNormBackward(residual, dy, x, w, rstd, plan::NormKind::kRms, residual, true), dw));
    EXPECT_TRUE(SameBits(residual, dx)) << precision.type;
  }
}

TEST_P(RowsTest, GluForwardAndBackwardEqualTheReference) {
  const auto [rows, width] = GetParam();
  for (const auto& [precision, kind] : Product(kPrecisions, kActivationKinds)) {
    const auto& [type, tolerance] = precision;
    const Input both(Normal({rows, 2 * width}, 4, 2.0), type);
    const Input dy(Normal({rows, width}, 5), type);
    at::Tensor out_ref = at::empty({rows, width}), gradient_ref = at::empty({rows, 2 * width});
    ops::Glu(out_ref, both.reference, kind);
    ops::GluBackward(gradient_ref, dy.reference, both.reference, kind);
    for (const int64_t gap : {64, 3}) {
      Strided gate_up(both.gpu, gap), out(dy.gpu.sizes(), type, gap);
      Strided gradient(both.gpu.sizes(), type, gap);
      ops::Glu(out.rows, gate_up.rows, kind);
      ops::GluBackward(gradient.rows, Strided(dy.gpu, gap).rows, gate_up.rows, kind);
      EXPECT_LT(RelativeError(out.rows, out_ref), tolerance) << type;
      EXPECT_LT(RelativeError(gradient.rows, gradient_ref), tolerance) << type;
      ops::GluBackward(gate_up.rows, dy.gpu, gate_up.rows, kind);
      EXPECT_TRUE(SameBits(gate_up.rows, gradient.rows)) << "in the place of gate and up";
      EXPECT_TRUE(out.GapIsUntouched() && gradient.GapIsUntouched() && gate_up.GapIsUntouched());
    }
  }
}

TEST_P(RowsTest, LayerNormForwardAndBackwardEqualTheReference) {
  const auto [rows, width] = GetParam();
  for (const auto& [type, tolerance] : kPrecisions) {
    const Input x(Normal({rows, width}, 1, 3.0) + 2.0, type), w(Normal({width}, 2), type);
    const Input b(Normal({width}, 5), type);
    const Input dy(Normal({rows, width}, 3), type), residual(Normal({rows, width}, 4), type);
    at::Tensor y_ref = at::empty({rows, width}), dx_ref = at::empty({rows, width});
    const at::Tensor statistics_ref =
        ops::LayerNorm(y_ref, x.reference, w.reference, b.reference, 1e-5);
    at::Tensor nowhere;
    const at::Tensor both_ref =
        ops::LayerNormBackward(dx_ref, dy.reference, x.reference, w.reference, statistics_ref,
                               residual.reference, true, nowhere);
    for (const int64_t gap : {64, 3}) {
      const Strided source(x.gpu, gap), gradient(dy.gpu, gap), skip(residual.gpu, gap);
      Strided y(x.gpu.sizes(), type, gap), dx(x.gpu.sizes(), type, gap), over(dy.gpu, gap);
      const at::Tensor statistics = ops::LayerNorm(y.rows, source.rows, w.gpu, b.gpu, 1e-5);
      EXPECT_LT(RelativeError(y.rows, y_ref), tolerance) << type;
      const at::Tensor both = ops::LayerNormBackward(dx.rows, gradient.rows, source.rows, w.gpu,
                                                     statistics, skip.rows, true, nowhere);
      EXPECT_LT(RelativeError(dx.rows, dx_ref), 2 * tolerance) << type;
      EXPECT_LT(RelativeError(both, both_ref), 10 * tolerance) << type;
      for (const bool weights : {true, false}) {
        Strided summed(x.gpu.sizes(), type, gap);
        at::Tensor sums = at::full({width}, 77.0, statistics.options()), again = sums.clone();
        const at::Tensor with = ops::LayerNormBackward(summed.rows, gradient.rows, source.rows,
                                                       w.gpu, statistics, skip.rows, weights, sums);
        EXPECT_TRUE(SameBits(summed.rows, dx.rows)) << type << " gap " << gap;
        EXPECT_TRUE(AreSumsOf(sums, dx.rows) && summed.GapIsUntouched()) << type << " gap " << gap;
        ops::LayerNormBackward(summed.rows, gradient.rows, source.rows, w.gpu, statistics,
                               skip.rows, weights, again);
        EXPECT_TRUE(SameBits(sums, again)) << type << " gap " << gap;
        if (weights) {
          EXPECT_LT(RelativeError(with, both_ref), 10 * tolerance) << type;
        }
      }
      const at::Tensor none = ops::LayerNormBackward(over.rows, over.rows, source.rows, w.gpu,
                                                     statistics, skip.rows, false, nowhere);
      EXPECT_EQ(none.size(1), 0);
      EXPECT_TRUE(SameBits(over.rows, dx.rows)) << type << " gap " << gap;
      EXPECT_TRUE(y.GapIsUntouched() && dx.GapIsUntouched() && over.GapIsUntouched()) << type;
    }
  }
}

TEST_P(RowsTest, ActivationsWithoutAGateEqualTheReference) {
  const auto [rows, width] = GetParam();
  for (const auto& [precision, kind] : Product(kPrecisions, kActivationKinds)) {
    const auto& [type, tolerance] = precision;
    const Input x(Normal({rows, width}, 4, 2.0), type), dy(Normal({rows, width}, 5), type);
    at::Tensor out_ref = at::empty({rows, width}), dx_ref = at::empty({rows, width});
    ops::Activate(out_ref, x.reference, kind);
    at::Tensor none;
    ops::ActivateBackward(dx_ref, dy.reference, x.reference, kind, none);
    for (const int64_t gap : {64, 3}) {
      Strided in_place(x.gpu, gap), out(x.gpu.sizes(), type, gap);
      ops::Activate(out.rows, in_place.rows, kind);
      Strided summed(x.gpu, gap);
      at::Tensor sums = at::empty({width}, in_place.rows.options().dtype(at::kFloat));
      const Strided gradient(dy.gpu, gap);
      ops::ActivateBackward(in_place.rows, gradient.rows, in_place.rows, kind, none);
      ops::ActivateBackward(summed.rows, gradient.rows, summed.rows, kind, sums);
      EXPECT_TRUE(SameBits(summed.rows, in_place.rows)) << type << " gap " << gap;
      EXPECT_TRUE(AreSumsOf(sums, summed.rows)) << type << " gap " << gap;
      at::Tensor again = at::empty_like(sums);
      Strided repeated(x.gpu, gap);
      ops::ActivateBackward(repeated.rows, gradient.rows, repeated.rows, kind, again);
      EXPECT_TRUE(SameBits(again, sums) && summed.GapIsUntouched()) << type << " gap " << gap;
      EXPECT_LT(RelativeError(out.rows, out_ref), tolerance) << type;
      EXPECT_LT(RelativeError(in_place.rows, dx_ref), tolerance) << type;
      EXPECT_TRUE(out.GapIsUntouched() && in_place.GapIsUntouched()) << type;
    }
  }
}

TEST_P(RowsTest, ColumnsAreSummedInOneOrder) {
  const auto [rows, width] = GetParam();
  for (const auto& precision : kPrecisions) {
    const at::Tensor x = ToGpu(Normal({rows, width}, 6)).to(precision.type);
    at::Tensor sums = at::empty({width}, x.options().dtype(at::kFloat));
    ops::ColumnSums(sums, x);
    EXPECT_TRUE(AreSumsOf(sums, x)) << precision.type;
    for (const int64_t gap : {64, 3}) {
      at::Tensor again = at::full_like(sums, 77.0);
      ops::ColumnSums(again, Strided(x, gap).rows);
      EXPECT_TRUE(SameBits(again, sums)) << precision.type << " gap " << gap;
    }
  }
}

TEST_P(RowsTest, AccumulateAddsOrStartsAnew) {
  const auto [rows, width] = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor part = Normal({rows * width + 1}, 20).to(type);
    const at::Tensor sum = Normal({rows * width + 1}, 21);
    for (const int64_t first : {0, 1}) {  // from 1 on, nothing is aligned
      for (const bool fresh : {false, true}) {
        at::Tensor expected = sum.clone().narrow(0, first, rows * width);
        at::Tensor got = ToGpu(sum).narrow(0, first, rows * width);
        ops::Accumulate(expected, part.narrow(0, first, rows * width), fresh);
        ops::Accumulate(got, ToGpu(part).narrow(0, first, rows * width), fresh);
        EXPECT_TRUE(SameBits(got, ToGpu(expected))) << type << " from " << first;
      }
    }
  }
}

TEST_P(RowsTest, CrossEntropyAndItsGradientEqualTheReference) {
  const auto [rows, vocabulary] = GetParam();
  for (const auto& [type, tolerance] : kPrecisions) {
    Input logits(Normal({rows, vocabulary}, 6, 4.0), type);
    at::Tensor targets = at::arange(rows, at::kLong).mul_(7919).remainder_(vocabulary);
    targets.slice(0, 1, rows, 3).fill_(-100);
    const at::Tensor before = logits.gpu.clone();
    const double loss = ops::CrossEntropy(logits.gpu, ToGpu(targets), false).item<double>();
    EXPECT_TRUE(SameBits(logits.gpu, before)) << "a forward must leave the logits";
    EXPECT_EQ(ops::CrossEntropy(logits.gpu, ToGpu(targets), true).item<double>(), loss);
    const double expected = ops::CrossEntropy(logits.reference, targets, true).item<double>();
    EXPECT_NEAR(loss, expected, 2e-6 * expected + 1e-6) << type;
    EXPECT_LT(RelativeError(logits.gpu, logits.reference), tolerance) << type;
    // Row by row, with the same gradient.
    at::Tensor single = before.clone();
    const at::Tensor losses = ops::RowCrossEntropy(single, ToGpu(targets), true);
    EXPECT_EQ(losses.scalar_type(), at::kDouble);
    EXPECT_TRUE(SameBits(single, logits.gpu)) << type;
    EXPECT_NEAR(losses.sum().item<double>(), loss, 2e-6 * loss + 1e-6) << type;
    EXPECT_EQ(losses.slice(0, 1, rows, 3).abs().sum().item<double>(), 0.0) << type;
    // Rows that start on 16 bytes whatever the vocabulary, and ragged ones.
    for (const int64_t gap : {(8 - vocabulary % 8) % 8, int64_t{3}}) {
      Strided apart(before, gap);
      EXPECT_NEAR(ops::CrossEntropy(apart.rows, ToGpu(targets), true).item<double>(), loss,
                  2e-6 * loss + 1e-6);
      EXPECT_LT(RelativeError(apart.rows, logits.reference), tolerance) << type << " gap " << gap;
      EXPECT_TRUE(apart.GapIsUntouched()) << type << " gap " << gap;
    }
  }
}

TEST_P(RowsTest, ABiasIsAddedToEachRow) {
  const auto [rows, width] = GetParam();
  for (const auto& precision : kPrecisions) {
    const at::Tensor y = ToGpu(Normal({rows, width}, 1)).to(precision.type);
    const at::Tensor bias = ToGpu(Normal({width}, 2)).to(precision.type);
    for (const int64_t gap : {64, 3}) {
      Strided sum(y, gap);
      ops::AddBias(sum.rows, bias);
      EXPECT_TRUE(SameBits(sum.rows, y + bias) && sum.GapIsUntouched()) << gap;
    }
  }
}

// Among them: every way to share a row out to threads, and the head of Qwen3.
INSTANTIATE_TEST_SUITE_P(
    Shapes, RowsTest,
    ::testing::Values(std::pair(1, 8), std::pair(3, 7), std::pair(5, 64), std::pair(17, 96),
                      std::pair(11, 256), std::pair(33, 576), std::pair(2, 1000),
                      std::pair(129, 1537), std::pair(40, 2048), std::pair(300, 5120),
                      std::pair(21, 8192), std::pair(7, 16384), std::pair(2, 25600),
                      std::pair(20011, 128), std::pair(9, 151936), std::pair(1, 1024),
                      std::pair(1001, 1024), std::pair(517, 3072), std::pair(4099, 4096)),
    [](const auto& info) {
      return std::to_string(info.param.first) + "x" + std::to_string(info.param.second);
    });

TEST_F(GpuTest, RowOperationsTakeNoRows) {
  at::Tensor none = ToGpu(at::empty({0, 64}, at::kBFloat16)), half = none.narrow(1, 0, 32);
  const at::Tensor weight = ToGpu(at::ones({64}, at::kBFloat16));
  const at::Tensor rstd = ops::RmsNorm(none, none, weight, 1e-6);
  EXPECT_EQ(rstd.numel(), 0);
  const at::Tensor dw = ops::RmsNormBackward(none, none, none, weight, rstd, plan::NormKind::kRms,
                                             at::Tensor(), true);
  EXPECT_EQ(dw.abs().sum().item<float>(), 0.0f);
  ops::Glu(half, none, plan::ActivationKind::kSilu);
  ops::GluBackward(none, half, none, plan::ActivationKind::kSilu);
  at::Tensor sums = ToGpu(at::ones({64}));
  ops::ActivateBackward(none, none, none, plan::ActivationKind::kGeluTanh, sums);
  EXPECT_TRUE(SameBits(sums, ToGpu(at::zeros({64}))));
  sums.fill_(1.0);
  ops::ColumnSums(sums, none);
  EXPECT_TRUE(SameBits(sums, ToGpu(at::zeros({64}))));
  at::Tensor logits = none.clone();
  const at::Tensor targets = ToGpu(at::empty({0}, at::kLong));
  EXPECT_EQ(ops::CrossEntropy(logits, targets, true).item<float>(), 0.0f);
}

TEST_F(GpuTest, RopeRotatesAViewInPlaceAndBack) {
  const int64_t tokens = 37, heads = 6;
  for (const int64_t size : {10, 64, 128}) {
    for (const auto& [type, tolerance] : kPrecisions) {
      // Heads [2, 2 + heads) of a row that holds more: the rest must not change.
      const Input all(Normal({tokens, (heads + 4) * size}, 8), type);
      const auto view = [&](const at::Tensor& x) {
        return x.narrow(1, 2 * size, heads * size).view({tokens, heads, size});
      };
      const at::Tensor angles = Normal({tokens, size / 2}, 9, 3.0);
      const at::Tensor before = all.gpu.clone();
      at::Tensor x = view(all.gpu), x_ref = view(all.reference);
      ops::Rope(x, ToGpu(angles.cos()), ToGpu(angles.sin()), false);
      ops::Rope(x_ref, angles.cos(), angles.sin(), false);
      EXPECT_LT(RelativeError(all.gpu, all.reference), tolerance) << type << " size " << size;
      EXPECT_TRUE(SameBits(all.gpu.narrow(1, 0, 2 * size), before.narrow(1, 0, 2 * size)));
      ops::Rope(x, ToGpu(angles.cos()), ToGpu(angles.sin()), true);
      EXPECT_LT(RelativeError(all.gpu, before), 2 * tolerance) << type << " size " << size;
    }
  }
}

// A fused projection of 5 query heads and 2 key (and value) heads, and its CPU image.
struct FusedHeads {
  static constexpr int64_t kTokens = 1037, kHeads = 5, kKeyHeads = 2;
  static constexpr int64_t kAll = kHeads + 2 * kKeyHeads;
  FusedHeads(int64_t head_dim, at::ScalarType type, int64_t gap)
      : size(head_dim),
        values(Normal({kTokens, kAll * size}, 1, 2.0), type),
        gradient(Normal({kTokens, kAll * size}, 2), type),
        q_weight(Normal({size}, 3), type),
        k_weight(Normal({size}, 4), type),
        qkv(values.gpu, gap) {
    const at::Tensor angles = Normal({kTokens, size / 2}, 5, 3.0);
    cos = angles.cos();
    sin = angles.sin();
  }
  at::Tensor Heads(const at::Tensor& rows, int64_t first, int64_t count) const {
    return rows.narrow(1, first * size, count * size).unflatten(1, {count, size});
  }
  int64_t size;
  Input values, gradient, q_weight, k_weight;
  Strided qkv;
  at::Tensor cos, sin;
};

TEST_F(GpuTest, NormRopeIsRmsNormThenRopeBitForBit) {
  for (const int64_t size : {10, 64, 72, 80, 96, 128, 256}) {
    for (const auto& [precision, kind] : Product(kPrecisions, kNormKinds)) {
      const auto& [type, tolerance] = precision;
      const ops::NormOptions options(1e-6, kind);
      for (const int64_t gap : {64, 3}) {
        const FusedHeads f(size, type, gap);
        const at::Tensor cos = ToGpu(f.cos), sin = ToGpu(f.sin);
        Strided q_rows({f.kTokens, f.kHeads * size}, type, gap);
        Strided k_rows({f.kTokens, f.kKeyHeads * size}, type, gap);
        at::Tensor q = f.Heads(q_rows.rows, 0, f.kHeads), k = f.Heads(k_rows.rows, 0, f.kKeyHeads);
        ops::NormRope(q, k, f.qkv.rows, f.q_weight.gpu, f.k_weight.gpu, cos, sin, options);
        const auto separately = [&](int64_t first, int64_t count, const at::Tensor& weight) {
          const at::Tensor x = f.Heads(f.qkv.rows, first, count).contiguous().view({-1, size});
          at::Tensor y = at::empty_like(x);
          ops::RmsNorm(y, x, weight, options);
          at::Tensor result = y.view({f.kTokens, count, size});
          ops::Rope(result, cos, sin, false);
          return result;
        };
        EXPECT_TRUE(SameBits(q, separately(0, f.kHeads, f.q_weight.gpu))) << type << size;
        EXPECT_TRUE(SameBits(k, separately(f.kHeads, f.kKeyHeads, f.k_weight.gpu))) << type << size;
        EXPECT_TRUE(q_rows.GapIsUntouched() && k_rows.GapIsUntouched()) << type << size;
        at::Tensor q_ref = at::empty({f.kTokens, f.kHeads, size});
        at::Tensor k_ref = at::empty({f.kTokens, f.kKeyHeads, size});
        ops::NormRope(q_ref, k_ref, f.values.reference, f.q_weight.reference, f.k_weight.reference,
                      f.cos, f.sin, options);
        EXPECT_LT(RelativeError(q, q_ref), 1.5 * tolerance) << type << size;  // rounded twice
        EXPECT_LT(RelativeError(k, k_ref), 1.5 * tolerance) << type << size;
      }
    }
  }
}

TEST_F(GpuTest, NormRopeBackwardEqualsTheReferenceInPlaceAndRepeats) {
  for (const int64_t size : {10, 64, 72, 80, 96, 128, 256}) {
    for (const auto& [precision, kind] : Product(kPrecisions, kNormKinds)) {
      const auto& [type, tolerance] = precision;
      const ops::NormOptions options(1e-6, kind);
      for (const int64_t gap : {64, 3}) {
        const FusedHeads f(size, type, gap);
        const at::Tensor cos = ToGpu(f.cos), sin = ToGpu(f.sin);
        at::Tensor expected = f.gradient.reference.clone();
        const auto [q_ref, k_ref] = ops::NormRopeBackward(
            expected, f.values.reference, f.q_weight.reference, f.k_weight.reference, f.cos, f.sin,
            f.kHeads, f.kKeyHeads, options, true);
        const auto run = [&](Strided& dqkv, bool weights) {
          return ops::NormRopeBackward(dqkv.rows, f.qkv.rows, f.q_weight.gpu, f.k_weight.gpu, cos,
                                       sin, f.kHeads, f.kKeyHeads, options, weights);
        };
        Strided dqkv(f.gradient.gpu, gap), again(f.gradient.gpu, gap), plain(f.gradient.gpu, gap);
        const auto [q, k] = run(dqkv, true);
        EXPECT_LT(RelativeError(dqkv.rows, expected), tolerance) << type << size;
        EXPECT_LT(RelativeError(q, q_ref), tolerance) << type << size;
        EXPECT_LT(RelativeError(k, k_ref), tolerance) << type << size;
        const int64_t first_value = f.kHeads + f.kKeyHeads;
        EXPECT_TRUE(SameBits(f.Heads(dqkv.rows, first_value, f.kKeyHeads),
                             f.Heads(f.gradient.gpu, first_value, f.kKeyHeads)));
        EXPECT_TRUE(dqkv.GapIsUntouched()) << type << size;
        const auto [q_again, k_again] = run(again, true);
        EXPECT_TRUE(SameBits(q, q_again) && SameBits(k, k_again)) << type << size;
        EXPECT_TRUE(SameBits(again.rows, dqkv.rows)) << type << size;
        EXPECT_EQ(run(plain, false).q_weight.numel(), 0);
        EXPECT_TRUE(SameBits(plain.rows, dqkv.rows)) << type << size;
      }
    }
  }
}

TEST_F(GpuTest, PlaceFactorsHasTheBitsOfTheCpuKernel) {
  struct Case {
    int64_t columns, rank, gap;
    int members;
  };
  for (const Case& c : {Case{4096, 16, 64, 3}, Case{100, 3, 5, 2}, Case{256, 8, 64, 11}}) {
    for (const auto& precision : kPrecisions) {
      std::vector<at::Tensor> a, b, gpu_a, gpu_b;
      std::vector<int64_t> first_row;
      int64_t rows = 7;  // and 7 before each member, which belong to none
      for (int i = 0; i < c.members; ++i) {
        const int64_t height = 64 * (i + 1);
        a.push_back(Normal({c.rank, c.columns}, 10 + i).to(precision.type));
        b.push_back(Normal({height, c.rank}, 30 + i).to(precision.type));
        gpu_a.push_back(ToGpu(a.back()));
        gpu_b.push_back(ToGpu(b.back()));
        first_row.push_back(rows);
        rows += height + 7;
      }
      const int64_t rank = c.rank * c.members;
      at::Tensor expected = at::full({rows + rank, c.columns + rank + c.gap}, 77.0, precision.type);
      at::Tensor actual = ToGpu(expected);
      ops::PlaceFactors(expected, a, b, first_row, 0.7);
      ops::PlaceFactors(actual, gpu_a, gpu_b, first_row, 0.7);
      EXPECT_TRUE(SameBits(actual, expected)) << precision.type << " columns " << c.columns;
    }
  }
}

TEST_F(GpuTest, RowOperationsRepeatBitForBit) {
  const at::Tensor x = ToGpu(Normal({4096, 2048}, 10)).to(at::kBFloat16);
  const at::Tensor w = ToGpu(Normal({2048}, 11)).to(at::kBFloat16);
  const auto run = [&] {
    at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
    const at::Tensor rstd = ops::RmsNorm(y, x, w, 1e-6);
    const at::Tensor dw = ops::RmsNormBackward(dx, y, x, w, rstd, plan::NormKind::kRms, x, true);
    at::Tensor logits = dx.clone();
    const at::Tensor targets = ToGpu(at::arange(4096, at::kLong).remainder_(2048));
    return std::tuple(dw, ops::CrossEntropy(logits, targets, true), logits);
  };
  const auto [dw, loss, grad] = run();
  const auto [dw2, loss2, grad2] = run();
  EXPECT_TRUE(SameBits(dw, dw2));
  EXPECT_TRUE(SameBits(loss, loss2));
  EXPECT_TRUE(SameBits(grad, grad2));
}

}  // namespace
}  // namespace sft::engine
