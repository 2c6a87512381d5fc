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
          ops::GemmAdd(c, a, b, addend);
          EXPECT_LT(RelativeError(c, product + addend.cpu().to(at::kDouble)), Tolerance(out));
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
