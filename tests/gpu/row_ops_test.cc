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

// `x` as the GPU gets it, and the same values in fp32 for the reference.
struct Input {
  Input(const at::Tensor& x, at::ScalarType type)
      : gpu(ToGpu(x.to(type))), reference(x.to(type).to(at::kFloat)) {}
  at::Tensor gpu, reference;
};

class RowsTest : public GpuTest,
                 public ::testing::WithParamInterface<std::pair<int64_t, int64_t>> {};

TEST_P(RowsTest, RmsNormForwardAndBackwardEqualTheReference) {
  const auto [rows, width] = GetParam();
  for (const auto& [type, tolerance] : kPrecisions) {
    const Input x(Normal({rows, width}, 1, 3.0), type), w(Normal({width}, 2), type);
    const Input dy(Normal({rows, width}, 3), type);
    const auto [y, rstd] = ops::RmsNorm(x.gpu, w.gpu, 1e-6);
    const auto [y_ref, rstd_ref] = ops::RmsNorm(x.reference, w.reference, 1e-6);
    EXPECT_LT(RelativeError(y, y_ref), tolerance) << type;
    EXPECT_LT(RelativeError(rstd, rstd_ref), 2e-6) << type;
    const auto [dx, dw] = ops::RmsNormBackward(dy.gpu, x.gpu, w.gpu, rstd, true);
    const auto [dx_ref, dw_ref] =
        ops::RmsNormBackward(dy.reference, x.reference, w.reference, rstd_ref, true);
    EXPECT_LT(RelativeError(dx, dx_ref), tolerance) << type;
    EXPECT_EQ(dw.scalar_type(), at::kFloat);
    // A sum over all rows in fp32, in another order than the reference's.
    EXPECT_LT(RelativeError(dw, dw_ref), rows > 4096 ? 2 * tolerance : tolerance) << type;
    EXPECT_EQ(std::get<1>(ops::RmsNormBackward(dy.gpu, x.gpu, w.gpu, rstd, false)).numel(), 0);
  }
}

TEST_P(RowsTest, SwigluForwardAndBackwardEqualTheReference) {
  const auto [rows, width] = GetParam();
  for (const auto& [type, tolerance] : kPrecisions) {
    // Halves of one matrix, as a fused projection gives them.
    const Input both(Normal({rows, 2 * width}, 4, 2.0), type);
    const Input dy(Normal({rows, width}, 5), type);
    const auto halves = [width = width](const at::Tensor& x) {
      return std::pair(x.narrow(1, 0, width), x.narrow(1, width, width));
    };
    const auto [gate, up] = halves(both.gpu);
    const auto [gate_ref, up_ref] = halves(both.reference);
    EXPECT_LT(RelativeError(ops::Swiglu(gate, up), ops::Swiglu(gate_ref, up_ref)), tolerance);
    const auto [dgate, dup] = ops::SwigluBackward(dy.gpu, gate, up);
    const auto [dgate_ref, dup_ref] = ops::SwigluBackward(dy.reference, gate_ref, up_ref);
    EXPECT_LT(RelativeError(dgate, dgate_ref), tolerance) << type;
    EXPECT_LT(RelativeError(dup, dup_ref), tolerance) << type;
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
  }
}

// The last two are a QK-norm of a large model and the head of Qwen3.
INSTANTIATE_TEST_SUITE_P(Shapes, RowsTest,
                         ::testing::Values(std::pair(1, 8), std::pair(3, 7), std::pair(5, 64),
                                           std::pair(17, 96), std::pair(33, 576),
                                           std::pair(2, 1000), std::pair(129, 1537),
                                           std::pair(300, 5120), std::pair(2, 25600),
                                           std::pair(20011, 128), std::pair(9, 151936)));

TEST_F(GpuTest, RowOperationsTakeNoRows) {
  const at::Tensor none = ToGpu(at::empty({0, 64}, at::kBFloat16));
  const at::Tensor weight = ToGpu(at::ones({64}, at::kBFloat16));
  EXPECT_EQ(std::get<0>(ops::RmsNorm(none, weight, 1e-6)).numel(), 0);
  EXPECT_EQ(ops::Swiglu(none, none).numel(), 0);
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

TEST_F(GpuTest, RowOperationsRepeatBitForBit) {
  const at::Tensor x = ToGpu(Normal({4096, 2048}, 10)).to(at::kBFloat16);
  const at::Tensor w = ToGpu(Normal({2048}, 11)).to(at::kBFloat16);
  const auto run = [&] {
    const auto [y, rstd] = ops::RmsNorm(x, w, 1e-6);
    const auto [dx, dw] = ops::RmsNormBackward(y, x, w, rstd, true);
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
