#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/int8_format.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

struct Shape {
  int64_t rows, columns;

  std::string Name() const { return std::to_string(rows) + "x" + std::to_string(columns); }
  friend void PrintTo(const Shape& s, std::ostream* out) { *out << s.Name(); }
};

class Int8GpuTest : public GpuTest, public ::testing::WithParamInterface<Shape> {};

// Rows of very different sizes, with the cases that go wrong: zeros, subnormals, exact halves.
at::Tensor Weights(const Shape& shape, at::ScalarType type) {
  const auto seed = static_cast<uint64_t>(7 + shape.rows * shape.columns);
  at::Tensor w = Normal({shape.rows, shape.columns}, seed, 0.02);
  w.mul_(at::linspace(-20, 3, shape.rows, at::kFloat).exp().unsqueeze(1));
  if (shape.rows > 3) {
    w[0].zero_();
    w[1].fill_(1e-39);
    w[2].copy_(at::arange(shape.columns, at::kFloat).remainder(254).sub(127.0));
    w[2][0] = 254.0;  // 127 / 254: the codes of odd values are halves
  }
  return w.to(type);
}

at::Tensor LargestOf(const at::Tensor& weight) { return weight.to(at::kFloat).abs().amax({1}); }

TEST_P(Int8GpuTest, QuantisesToTheBitsOfTheCpuKernel) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const at::Tensor w = Weights(GetParam(), type), absmax = LargestOf(w);
    EXPECT_TRUE(SameBits(ops::Int8Quantize(ToGpu(w), ToGpu(absmax)), ops::Int8Quantize(w, absmax)))
        << type;
  }
}

TEST_P(Int8GpuTest, DequantisesToTheBitsOfTheCpuKernelWhereverRowsStart) {
  const auto [rows, columns] = GetParam();
  const at::Tensor w = Weights(GetParam(), at::kBFloat16), absmax = LargestOf(w);
  const at::Tensor codes = ops::Int8Quantize(w, absmax), scale = absmax * kInt8Step;
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    for (const int64_t gap : {0, 3, 64}) {
      for (const int64_t before : {0, 1, 64}) {
        at::Tensor expected = at::full({rows, before + columns + gap}, 77.0, type);
        at::Tensor actual = ToGpu(expected);
        at::Tensor out = expected.narrow(1, before, columns);
        ops::Int8Dequantize(out, codes, scale);
        out = actual.narrow(1, before, columns);
        ops::Int8Dequantize(out, ToGpu(codes), ToGpu(scale));
        EXPECT_TRUE(SameBits(actual, expected)) << type << " gap " << gap << " before " << before;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Int8GpuTest,
                         ::testing::Values(Shape{1, 1}, Shape{1, 100003}, Shape{500, 3},
                                           Shape{33, 1001}, Shape{300, 8}, Shape{300, 64},
                                           Shape{70, 4096}, Shape{1024, 4096}, Shape{3, 12288}),
                         [](const auto& info) { return info.param.Name(); });

TEST_F(GpuTest, Int8ReadsCodesAndWeightsThatAreNotAligned) {
  const at::Tensor w = Weights({64, 128}, at::kBFloat16), absmax = LargestOf(w);
  const at::Tensor codes = ops::Int8Quantize(w, absmax);
  const auto shifted = [](const at::Tensor& x) {
    const at::Tensor room = ToGpu(at::zeros({x.numel() + 1}, x.scalar_type()));
    const at::Tensor view = room.narrow(0, 1, x.numel()).view(x.sizes());
    view.copy_(x);
    return view;
  };
  EXPECT_TRUE(SameBits(ops::Int8Quantize(shifted(w), ToGpu(absmax)), codes));
  at::Tensor expected = at::empty({64, 128}, at::kBFloat16), actual = ToGpu(expected);
  ops::Int8Dequantize(expected, codes, absmax);
  ops::Int8Dequantize(actual, shifted(codes), ToGpu(absmax));
  EXPECT_TRUE(SameBits(actual, expected));
}

}  // namespace
}  // namespace sft::engine
