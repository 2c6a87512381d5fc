// Products on the GPU against fp64 on the CPU.
#include <ATen/ATen.h>

#include <tuple>

#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

class GemmTest : public GpuTest {};

// A matrix whose rows are `spare` columns apart from dense, on the GPU.
Tensor Rows(int64_t rows, int64_t columns, int64_t spare, at::ScalarType type, int seed) {
  return ToGpu(Normal({rows, columns + spare}, seed).to(type)).narrow(1, 0, columns);
}

// Rounding of the result to bf16, and of sums of fp32 in another order.
double Tolerance(at::ScalarType type) { return type == at::kFloat ? 1e-5 : 4e-3; }

TEST_F(GemmTest, EqualsTheProductForEveryOrientationAndType) {
  for (const auto& [m, k, n] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {64, 96, 128}, {1, 16, 8}, {257, 72, 40}, {48, 4096, 512}, {33, 7, 5}}) {
    for (const bool flip_a : {false, true}) {
      for (const bool flip_b : {false, true}) {
        for (const auto& [in, out] :
             {std::pair(at::kBFloat16, at::kBFloat16), std::pair(at::kBFloat16, at::kFloat),
              std::pair(at::kFloat, at::kFloat)}) {
          const Tensor a = flip_a ? Rows(k, m, 16, in, 1).t() : Rows(m, k, 16, in, 1);
          const Tensor b = flip_b ? Rows(n, k, 8, in, 2).t() : Rows(k, n, 8, in, 2);
          Tensor c = Rows(m, n, 24, out, 3);
          const Tensor before = c.clone();
          const Tensor spare = c.as_strided({m, 24}, {c.stride(0), 1}, n).clone();
          const Tensor product = at::mm(a.cpu().to(at::kDouble), b.cpu().to(at::kDouble));
          ops::Gemm(c, a, b, 0.5, 1.0);
          EXPECT_LT(RelativeError(c, 0.5 * product + before.cpu().to(at::kDouble)), Tolerance(out))
              << m << "x" << k << "x" << n << " " << flip_a << flip_b << " " << in << " " << out;
          EXPECT_TRUE(SameBits(c.as_strided({m, 24}, {c.stride(0), 1}, n), spare));
          c.fill_(std::numeric_limits<double>::quiet_NaN());
          ops::Gemm(c, a, b, 1.0, 0.0);
          EXPECT_LT(RelativeError(c, product), Tolerance(out));
          const Tensor addend = Rows(m, n, 0, out, 4);
          ops::GemmAdd(c, a, b, addend, Tensor());
          const Tensor sum = product + addend.cpu().to(at::kDouble);
          EXPECT_LT(RelativeError(c, sum), Tolerance(out));
          const Tensor bias = ToGpu(Normal({n}, 5, 3.0).to(out));
          const Tensor wide = bias.cpu().to(at::kDouble);
          ops::GemmAdd(c, a, b, addend, bias);
          EXPECT_LT(RelativeError(c, sum + wide), Tolerance(out)) << m << "x" << k << "x" << n;
          c.fill_(std::numeric_limits<double>::quiet_NaN());
          ops::GemmAdd(c, a, b, Tensor(), bias);
          EXPECT_LT(RelativeError(c, product + wide), Tolerance(out)) << m << "x" << k << "x" << n;
          EXPECT_TRUE(SameBits(c.as_strided({m, 24}, {c.stride(0), 1}, n), spare));
        }
      }
    }
  }
}

TEST_F(GemmTest, GivesTheSameBitsEachTime) {
  const Tensor a = Rows(16, 8192, 0, at::kBFloat16, 1), b = Rows(8192, 512, 0, at::kBFloat16, 2);
  Tensor first = ToGpu(at::zeros({16, 512})), second = first.clone();
  ops::Gemm(first, a, b, 1.0, 1.0);
  for (int i = 0; i < 5; ++i) {
    second.zero_();
    ops::Gemm(second, a, b, 1.0, 1.0);
    EXPECT_TRUE(SameBits(first, second));
  }
}

// The linears of GPT-2 medium, for one row, ragged numbers of rows and round ones; the last bias
// starts on no boundary that cuBLAS likes.
TEST_F(GemmTest, ABiasOfTheProductIsRoundedOnceAndRepeats) {
  struct Linear {
    int64_t inputs, outputs, first;
  };
  for (const int64_t rows : {1, 7, 129, 512}) {
    for (const auto& [inputs, outputs, first] :
         {Linear{1024, 3072, 0}, Linear{1024, 1024, 0}, Linear{1024, 4096, 0},
          Linear{4096, 1024, 0}, Linear{72, 1001, 0}, Linear{1024, 1024, 1}}) {
      for (const bool adds : {false, true}) {
        const Tensor x = Rows(rows, inputs, 64, at::kBFloat16, 1);
        const Tensor w = Rows(outputs, inputs, 0, at::kBFloat16, 2);
        const Tensor bias =
            ToGpu(Normal({first + outputs}, 3, 20.0).to(at::kBFloat16)).narrow(0, first, outputs);
        const Tensor addend = adds ? Rows(rows, outputs, 8, at::kBFloat16, 4) : Tensor();
        Tensor exact = at::mm(x.cpu().to(at::kDouble), w.cpu().to(at::kDouble).t());
        if (adds) exact.add_(addend.cpu().to(at::kDouble));
        exact.add_(bias.cpu().to(at::kDouble));
        Tensor y = Rows(rows, outputs, 0, at::kBFloat16, 5), again = y.clone(), apart = y.clone();
        ops::GemmAdd(y, x, w.t(), addend, bias);
        ops::GemmAdd(again, x, w.t(), addend, bias);
        EXPECT_TRUE(SameBits(y, again)) << rows << " " << inputs << " " << outputs;
        if (adds) {
          ops::GemmAdd(apart, x, w.t(), addend, Tensor());
        } else {
          ops::Gemm(apart, x, w.t(), 1.0, 0.0);
        }
        ops::AddBias(apart, bias);
        // A bias added in a pass of its own is rounded after the product was.
        EXPECT_LT(RelativeError(y, exact), first == 0 ? 2e-3 : 3e-3)
            << rows << " " << inputs << " " << outputs;
        EXPECT_LE(RelativeError(y, exact), RelativeError(apart, exact) * 1.001)
            << rows << " " << inputs << " " << outputs << " adds " << adds;
      }
    }
  }
}

TEST_F(GemmTest, EmptySumsAndResults) {
  Tensor c = ToGpu(at::ones({3, 4}));
  ops::Gemm(c, ToGpu(at::ones({3, 0})), ToGpu(at::ones({0, 4})), 1.0, 1.0);
  EXPECT_TRUE(SameBits(c, ToGpu(at::ones({3, 4}))));
  Tensor none = ToGpu(at::ones({0, 4}));
  ops::Gemm(none, ToGpu(at::ones({0, 5})), ToGpu(at::ones({5, 4})), 1.0, 0.0);
  EXPECT_THROW(ops::Gemm(c, ToGpu(at::ones({3, 2})), ToGpu(at::ones({3, 4})), 1.0, 0.0),
               c10::Error);
}

}  // namespace
}  // namespace sft::engine
