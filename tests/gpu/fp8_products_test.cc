// Products of FP8 rows on the GPU, compared with fp64.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "tests/gpu/fp8_data.h"
#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

class Fp8GemmTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const CudaDeviceProperties device = Plugin().devices->Properties(0);
    if (device.compute_major * 10 + device.compute_minor < 89) {
      GTEST_SKIP() << "FP8 products need compute capability 8.9; " << device.name << " has "
                   << device.compute_major << "." << device.compute_minor;
    }
  }
};

// Float8 rows on the GPU in a buffer of rows of a multiple of 64, with 64 to spare which are NaN,
// and what they stand for in fp64.
struct Operand {
  Operand(const Tensor& values, const Tensor& row_scale) : scale(ToGpu(row_scale)) {
    const int64_t width = values.size(1);
    const Tensor bytes = at::full({values.size(0), (width + 63) / 64 * 64 + 64}, 0x7f, at::kByte);
    const Tensor fp8 = values.to(at::kFloat8_e4m3fn);
    bytes.narrow(1, 0, width).copy_(fp8.view(at::kByte));
    rows = ToGpu(bytes).view(at::kFloat8_e4m3fn).narrow(1, 0, width);
    exact = fp8.to(at::kFloat).to(at::kDouble) * row_scale.to(at::kDouble).unsqueeze(1);
  }
  Tensor rows, scale, exact;
};
Operand RandomOperand(int64_t rows, int64_t width, uint64_t seed) {
  return Operand(Normal({rows, width}, seed, 30.0).clamp(-448.0, 448.0),
                 Uniform({rows}, seed + 100, 1e-3, 1.0));
}

// Rows for a result, in a buffer with 24 columns to spare.
struct Fp8Result {
  Fp8Result(int64_t m, int64_t n, at::ScalarType type)
      : buffer(ToGpu(at::full({m, n + 24}, 77.0, type))), rows(buffer.narrow(1, 0, n)) {
    rows.fill_(kNotANumber);  // must not be read
  }
  bool GapIsUntouched() const {
    return (buffer.narrow(1, rows.size(1), 24) == 77.0).all().item<bool>();
  }
  Tensor buffer, rows;
};

constexpr int64_t kProducts[][3] = {{1, 16, 16},       {3, 32, 48},       {17, 64, 16},
                                    {129, 4160, 512},  {64, 4096, 64},    {257, 12352, 256},
                                    {1001, 272, 1040}, {2048, 4112, 1536}};

TEST_F(Fp8GemmTest, EqualsTheProductOfWhatTheRowsStandFor) {
  for (const auto& shape : kProducts) {
    const auto& [m, k, n] = shape;
    const Operand a = RandomOperand(m, k, 1), b = RandomOperand(n, k, 2);
    const Tensor product = at::mm(a.exact, b.exact.t());
    const Tensor sizes = at::mm(a.exact.abs(), b.exact.abs().t());
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const Tensor addend = Placed(ToGpu(Normal({m, n}, 3, 1000.0).to(type)), {0, 64});
      for (const bool adds : {false, true}) {
        Tensor expected = product, bound = sizes;
        if (adds) {
          expected = product + addend.cpu().to(at::kDouble);
          bound = sizes + addend.cpu().to(at::kDouble).abs();
        }
        Fp8Result out(m, n, type);
        ops::Fp8Gemm(out.rows, a.rows, a.scale, b.rows, b.scale, adds ? addend : Tensor(), false);
        // Rounding to bf16, and sums whose terms are cut to 14 bits.
        EXPECT_LT(RelativeError(out.rows, expected), type == at::kFloat ? 2e-3 : 4e-3)
            << at::IntArrayRef(shape) << type << " addend " << adds;
        const Tensor error = (out.rows.cpu().to(at::kDouble) - expected).abs();
        EXPECT_TRUE((error <= bound / 256.0).all().item<bool>())
            << at::IntArrayRef(shape) << type << " addend " << adds;
        EXPECT_TRUE(out.GapIsUntouched()) << at::IntArrayRef(shape) << type << " addend " << adds;
      }
    }
  }
}

// Small whole numbers times powers of two: fp32 sums of them are exact in any order.
TEST_F(Fp8GemmTest, ExactSumsAreRoundedOnce) {
  const auto whole = [](int64_t rows, int64_t width, uint64_t seed) {
    const Tensor exponents = Uniform({rows}, seed + 50, -4.0, 4.0).round();
    return Operand(Normal({rows, width}, seed, 1.2).round().clamp(-3.0, 3.0), exponents.exp2());
  };
  for (const auto& shape : kProducts) {
    const auto& [m, k, n] = shape;
    const Operand a = whole(m, k, 1), b = whole(n, k, 2);
    const Tensor product = at::mm(a.exact, b.exact.t());
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const Tensor addend = ToGpu(Normal({m, n}, 3, 60.0).round().to(type));
      Fp8Result out(m, n, type), sum(m, n, type);
      ops::Fp8Gemm(out.rows, a.rows, a.scale, b.rows, b.scale, {}, false);
      EXPECT_TRUE(at::equal(out.rows.cpu(), product.to(type))) << at::IntArrayRef(shape) << type;
      ops::Fp8Gemm(sum.rows, a.rows, a.scale, b.rows, b.scale, addend, false);
      const Tensor expected = (product + addend.cpu().to(at::kDouble)).to(type);
      EXPECT_TRUE(at::equal(sum.rows.cpu(), expected)) << at::IntArrayRef(shape) << type;
    }
  }
}

// A weight's gradient: sums over tokens, added to what is there.
TEST_F(Fp8GemmTest, AddsToItsOwnResult) {
  for (const auto& [n, tokens, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {48, 32, 64}, {256, 4112, 512}, {1024, 16384, 3072}, {6144, 8192, 4096}}) {
    const Operand dy = RandomOperand(n, tokens, 1), x = RandomOperand(k, tokens, 2);
    const Tensor before = Normal({n, k}, 3, 1000.0);
    const Tensor expected = at::mm(dy.exact, x.exact.t()) + before.to(at::kDouble);
    Tensor sum = ToGpu(before);
    ops::Fp8Gemm(sum, dy.rows, dy.scale, x.rows, x.scale, sum, /*fast_sums=*/false);
    EXPECT_LT(RelativeError(sum, expected), 2e-3) << n << "x" << tokens << "x" << k;
  }
}

// Where a library would share a long sum out to several blocks, at the widths of Qwen3 with
// rank 64.
TEST_F(Fp8GemmTest, FewRowsOfLongSumsAreServed) {
  const auto on_gpu = at::TensorOptions(at::Device(at::kCUDA, 0)).dtype(at::kFloat);
  const auto random = [&](int64_t rows, int64_t width) {
    return at::randn({rows, width}, on_gpu).mul_(30.0).clamp_(-448.0, 448.0).to(at::kFloat8_e4m3fn);
  };
  for (const auto& [k, n] : std::vector<std::pair<int64_t, int64_t>>{
           {4160, 6144}, {9216, 3072}, {12352, 4096}, {25664, 5120}}) {
    const Tensor b = random(n, k), b_scale = at::rand({n}, on_gpu).add_(0.01);
    const Tensor b_plain = b.to(at::kFloat).mul_(b_scale.unsqueeze(1));
    for (const int64_t m : {1, 8, 16, 33, 64, 127, 128, 200, 256, 257, 384, 512, 1000}) {
      const Tensor a = random(m, k), a_scale = at::rand({m}, on_gpu).add_(0.01);
      const Tensor a_plain = a.to(at::kFloat).mul_(a_scale.unsqueeze(1));
      Tensor expected = at::empty({m, n}, on_gpu);
      ops::Gemm(expected, a_plain, b_plain.t(), 1.0, 0.0);
      const Tensor addend = at::ones({m, n}, on_gpu.dtype(at::kBFloat16));
      for (const bool adds : {false, true}) {
        Fp8Result out(m, n, at::kBFloat16);
        EXPECT_NO_THROW(
            ops::Fp8Gemm(out.rows, a, a_scale, b, b_scale, adds ? addend : Tensor(), false))
            << m << "x" << k << "x" << n << " addend " << adds;
        const Tensor difference = out.rows.to(at::kFloat) - (adds ? expected + 1.0 : expected);
        EXPECT_LT((difference.norm() / expected.norm()).item<double>(), 4e-3)
            << m << "x" << k << "x" << n << " addend " << adds;
      }
    }
  }
}

TEST_F(Fp8GemmTest, GivesTheSameBitsEachTime) {
  const Operand a = RandomOperand(33, 8192, 1), b = RandomOperand(512, 8192, 2);
  Fp8Result first(33, 512, at::kBFloat16), second(33, 512, at::kBFloat16);
  ops::Fp8Gemm(first.rows, a.rows, a.scale, b.rows, b.scale, {}, false);
  for (int i = 0; i < 5; ++i) {
    second.rows.fill_(kNotANumber);
    ops::Fp8Gemm(second.rows, a.rows, a.scale, b.rows, b.scale, {}, false);
    EXPECT_TRUE(SameBits(first.rows, second.rows));
  }
}

TEST_F(Fp8GemmTest, RefusesWhatDoesNotFit) {
  const Operand a = RandomOperand(4, 32, 1), b = RandomOperand(16, 48, 2);
  Fp8Result out(4, 16, at::kBFloat16);
  EXPECT_THROW(ops::Fp8Gemm(out.rows, a.rows, a.scale, b.rows, b.scale, {}, false), c10::Error);
  const Tensor fits = b.rows.narrow(1, 0, 32);
  EXPECT_THROW(ops::Fp8Gemm(out.rows, a.rows, a.scale, fits, a.scale, {}, false), c10::Error);
  EXPECT_THROW(
      ops::Fp8Gemm(out.rows, a.rows, a.scale, fits, b.scale, ToGpu(at::ones({4, 16})), false),
      c10::Error);
}

// An adapted linear layer's forward or input gradient, as nn/projection.cc runs it.
struct AdaptedProduct {
  AdaptedProduct(const RandomNf4& weight, const Tensor& x, const Tensor& beside,
                 const Tensor& row_scale, const Adapters& adapters, bool transposed)
      : x_scale(at::empty({x.size(0)}, x.options().dtype(at::kFloat))) {
    const bool gpu = x.is_cuda();
    const int64_t width = x.size(1), rank = beside.size(1), rows = row_scale.numel();
    const auto float8_rows = [&](int64_t height) {
      const int64_t stride = (width + rank + 63) / 64 * 64;
      return at::zeros({height, stride}, x.options().dtype(at::kByte))
          .view(at::kFloat8_e4m3fn)
          .narrow(1, 0, width + rank);
    };
    wide = float8_rows(x.size(0));
    matrix = float8_rows(rows);
    Tensor own = wide.narrow(1, 0, width), next = wide.narrow(1, width, rank);
    ops::Fp8Quantize(own, x_scale, x);
    ops::Fp8QuantizeWith(next, beside, x_scale);
    own = matrix.narrow(1, 0, width);
    weight.Expand(own, row_scale, /*nested=*/true, transposed);
    ops::Fp8PlaceFactors(matrix, row_scale, gpu ? adapters.gpu_a : adapters.a,
                         gpu ? adapters.gpu_b : adapters.b, adapters.first_row, 0.05, transposed);
    out = at::empty({x.size(0), rows}, x.options());
    ops::Fp8Gemm(out, wide, x_scale, matrix, row_scale, {}, false);
  }
  Tensor x_scale, wide, matrix, out;
};

TEST_F(Fp8GemmTest, AnAdaptedLinearEqualsTheCpusInBothDirections) {
  constexpr int64_t kTokens = 301, kColumns = 512;
  const Adapters adapters(kColumns, {16, 32, 16}, at::kBFloat16, 0);
  const RandomNf4 weight(adapters.rows * kColumns);
  for (const bool transposed : {false, true}) {
    const int64_t width = transposed ? adapters.rows : kColumns;
    const int64_t rows = transposed ? kColumns : adapters.rows;
    const Tensor x = Normal({kTokens, width}, 1).to(at::kBFloat16);
    const Tensor beside = Normal({kTokens, adapters.rank}, 2).to(at::kBFloat16);
    const Tensor row_scale = Uniform({rows}, 3, 5e-4, 2e-3);
    const AdaptedProduct cpu(weight, x, beside, row_scale, adapters, transposed);
    const AdaptedProduct gpu(weight, ToGpu(x), ToGpu(beside), ToGpu(row_scale), adapters,
                             transposed);
    EXPECT_TRUE(SameBits(gpu.x_scale, cpu.x_scale));
    EXPECT_TRUE(SameBits(gpu.wide, cpu.wide));
    EXPECT_TRUE(SameBits(gpu.matrix, cpu.matrix));
    EXPECT_LT(RelativeError(gpu.out, cpu.out), 4e-3) << transposed;
  }
}

}  // namespace
}  // namespace sft::engine
