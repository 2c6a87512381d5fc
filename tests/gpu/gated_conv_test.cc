#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

// What stands around the gated delta rule: the convolution before it and the norm behind it. The
// CPU kernels in fp32 are the reference.

namespace sft::engine {
namespace {

using at::Tensor;

// Rows on the GPU with `gap` columns more, which hold 77: 64 keeps them aligned.
struct GappedRows {
  GappedRows(const Tensor& x, int64_t gap)
      : buffer(ToGpu(at::full({x.size(0), x.size(1) + gap}, 77.0, x.scalar_type()))),
        rows(buffer.narrow(1, 0, x.size(1))) {
    rows.copy_(x);
  }
  bool SpareIsUntouched() const {
    const int64_t width = rows.size(1);
    return buffer.narrow(1, width, buffer.size(1) - width).eq(77.0).all().item<bool>();
  }
  Tensor buffer, rows;
};

// bf16 results are rounded to 4e-3 at most, 1.7e-3 on average.
double RowsTolerance(at::ScalarType type) { return type == at::kFloat ? 3e-6 : 4e-3; }

const std::vector<int64_t> kConvLengths = {1, 3, 63, 0, 64, 65, 200, 2, 4};

Tensor ConvStarts(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts = {0};
  for (const int64_t length : lengths) {
    starts.push_back(starts.back() + static_cast<int32_t>(length));
  }
  return at::tensor(starts, at::kInt);
}

TEST_F(GpuTest, ShortConvForwardAndBackwardEqualTheReference) {
  const Tensor starts = ConvStarts(kConvLengths), gpu_starts = ToGpu(starts);
  const int64_t tokens = starts[-1].item<int64_t>();
  for (const int64_t channels : {1, 7, 8, 24, 1000, 8192}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Tensor x = Normal({tokens, channels}, 1).to(type), dy = Normal(x.sizes(), 2).to(type);
      const Tensor weight = Normal({channels, 4}, 3).to(type);
      const Tensor fp32 = x.to(at::kFloat);
      Tensor expected = at::empty_like(fp32), expected_dx = at::empty_like(fp32);
      const ops::Documents on_cpu{starts, kConvLengths}, on_gpu{gpu_starts, kConvLengths};
      ops::ShortConv(expected, fp32, weight.to(at::kFloat), on_cpu);
      const Tensor expected_dw = ops::ShortConvBackward(expected_dx, dy.to(at::kFloat), fp32,
                                                        weight.to(at::kFloat), on_cpu, true);
      for (const int64_t gap : {64, 3}) {
        const GappedRows source(x, gap), gradient(dy, gap);
        GappedRows out(at::full_like(x, NAN), gap), dx(at::full_like(x, NAN), gap);
        ops::ShortConv(out.rows, source.rows, ToGpu(weight), on_gpu);
        const Tensor dw = ops::ShortConvBackward(dx.rows, gradient.rows, source.rows, ToGpu(weight),
                                                 on_gpu, true);
        EXPECT_LT(RelativeError(out.rows, expected), RowsTolerance(type)) << channels << type;
        EXPECT_LT(RelativeError(dx.rows, expected_dx), RowsTolerance(type)) << channels << type;
        EXPECT_EQ(dw.scalar_type(), at::kFloat);
        EXPECT_LT(RelativeError(dw, expected_dw), 3e-6) << channels << type;
        EXPECT_TRUE(out.SpareIsUntouched() && dx.SpareIsUntouched()) << channels << type;
        // The same bits each time, with a weight that stays in fp32, and without its gradient.
        GappedRows again(at::full_like(x, NAN), gap);
        ops::ShortConv(again.rows, source.rows, ToGpu(weight.to(at::kFloat)), on_gpu);
        EXPECT_TRUE(SameBits(again.rows, out.rows)) << channels << type;
        const Tensor dw_again = ops::ShortConvBackward(again.rows, gradient.rows, source.rows,
                                                       ToGpu(weight), on_gpu, true);
        EXPECT_TRUE(SameBits(again.rows, dx.rows) && SameBits(dw_again, dw)) << channels << type;
        const Tensor none = ops::ShortConvBackward(again.rows, gradient.rows, source.rows,
                                                   ToGpu(weight), on_gpu, false);
        EXPECT_EQ(none.numel(), 0);
        EXPECT_TRUE(SameBits(again.rows, dx.rows)) << channels << type;
      }
    }
  }
}

TEST_F(GpuTest, ShortConvGivesPackedDocumentsTheBitsThatTheyHaveAlone) {
  const Tensor starts = ToGpu(ConvStarts(kConvLengths));
  const int64_t tokens = starts[-1].item<int64_t>();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = ToGpu(Normal({tokens, 40}, 1).to(type)), dy = ToGpu(Normal({tokens, 40}, 2));
    const Tensor weight = ToGpu(Normal({40, 4}, 3).to(type)), d = dy.to(type);
    const ops::Documents documents{starts, kConvLengths};
    Tensor out = at::empty_like(x), dx = at::empty_like(x);
    ops::ShortConv(out, x, weight, documents);
    ops::ShortConvBackward(dx, d, x, weight, documents, false);
    int64_t first = 0;
    for (const int64_t length : kConvLengths) {
      const auto part = [&](const Tensor& rows) { return rows.narrow(0, first, length); };
      const std::vector<int64_t> lengths = {length};
      const Tensor own_starts = ToGpu(ConvStarts(lengths));
      Tensor own = at::empty_like(part(x)), own_dx = at::empty_like(own);
      ops::ShortConv(own, part(x), weight, {own_starts, lengths});
      ops::ShortConvBackward(own_dx, part(d), part(x), weight, {own_starts, lengths}, false);
      EXPECT_TRUE(SameBits(part(out), own) && SameBits(part(dx), own_dx)) << length << type;
      first += length;
    }
  }
}

struct GatedHeads {
  int64_t tokens, heads, size;
};

class GatedNormGpuTest : public GpuTest, public ::testing::WithParamInterface<GatedHeads> {};

TEST_P(GatedNormGpuTest, ForwardAndBackwardEqualTheReference) {
  const auto [tokens, heads, size] = GetParam();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = Normal({tokens, heads * size}, 1, 3.0).to(type);
    const Tensor gate = Normal(x.sizes(), 2, 2.0).to(type), dy = Normal(x.sizes(), 3).to(type);
    const Tensor weight = Normal({size}, 4);
    // The CPU's of the same type, since both round the product with rstd to it.
    Tensor y_ref = at::empty_like(x), dx_ref = at::empty_like(x), dgate_ref = at::empty_like(x);
    const Tensor rstd_ref = ops::GatedRmsNorm(y_ref, x, gate, weight, 1e-6);
    const Tensor dw_ref =
        ops::GatedRmsNormBackward(dx_ref, dgate_ref, dy, x, gate, weight, rstd_ref, true);
    const Tensor w = ToGpu(weight);
    for (const int64_t gap : {64, 3}) {
      const GappedRows source(x, gap), z(gate, gap), gradient(dy, gap);
      GappedRows y(at::full_like(x, NAN), gap), dx(y.rows.cpu(), gap), dgate(y.rows.cpu(), gap);
      const Tensor rstd = ops::GatedRmsNorm(y.rows, source.rows, z.rows, w, 1e-6);
      EXPECT_EQ(rstd.sizes(), rstd_ref.sizes());
      EXPECT_LT(RelativeError(rstd, rstd_ref), 2e-6) << type;
      // Both are rounded, and a last bit of fp32 may change one of bf16.
      EXPECT_LT(RelativeError(y.rows, y_ref), RowsTolerance(type)) << type << " gap " << gap;
      const Tensor dw = ops::GatedRmsNormBackward(dx.rows, dgate.rows, gradient.rows, source.rows,
                                                  z.rows, w, rstd, true);
      EXPECT_LT(RelativeError(dx.rows, dx_ref), RowsTolerance(type)) << type << " gap " << gap;
      EXPECT_LT(RelativeError(dgate.rows, dgate_ref), RowsTolerance(type)) << type;
      // A last bit of rstd moves single roundings to bf16.
      EXPECT_LT(RelativeError(dw, dw_ref), type == at::kFloat ? 1e-5 : 1e-3) << type;
      EXPECT_TRUE(y.SpareIsUntouched() && dx.SpareIsUntouched() && dgate.SpareIsUntouched());
      // In the place of dy, without the weight's gradient, and once more: the same bits.
      GappedRows in_place(dy, gap), dgate_again(x, gap);
      const Tensor none = ops::GatedRmsNormBackward(in_place.rows, dgate_again.rows, in_place.rows,
                                                    source.rows, z.rows, w, rstd, false);
      EXPECT_EQ(none.numel(), 0);
      EXPECT_TRUE(SameBits(in_place.rows, dx.rows) && SameBits(dgate_again.rows, dgate.rows));
      const Tensor again = ops::GatedRmsNormBackward(dx.rows, dgate.rows, gradient.rows,
                                                     source.rows, z.rows, w, rstd, true);
      EXPECT_TRUE(SameBits(again, dw)) << type;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, GatedNormGpuTest,
                         ::testing::Values(GatedHeads{1, 1, 3}, GatedHeads{37, 3, 7},
                                           GatedHeads{37, 3, 16}, GatedHeads{130, 4, 64},
                                           GatedHeads{130, 32, 128}, GatedHeads{50, 3, 256},
                                           GatedHeads{20, 2, 500}, GatedHeads{20, 2, 512}),
                         [](const auto& info) {
                           return std::to_string(info.param.tokens) + "_" +
                                  std::to_string(info.param.heads) + "_" +
                                  std::to_string(info.param.size);
                         });

TEST_F(GpuTest, GatedRmsNormWritesFp8TheWayFp8QuantizeDoes) {
  const Tensor x = ToGpu(Normal({70, 512}, 1).to(at::kBFloat16)), gate = x.flip({0}).contiguous();
  const Tensor weight = ToGpu(Normal({128}, 2));
  Tensor y = at::empty_like(x);
  Tensor values = at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn));
  Tensor scale = at::empty({70}, weight.options());
  Tensor expected = at::empty_like(values), expected_scale = at::empty_like(scale);
  ops::GatedRmsNorm(y, x, gate, weight, 1e-6, {values, scale});
  ops::Fp8Quantize(expected, expected_scale, y);
  EXPECT_TRUE(SameBits(values, expected) && SameBits(scale, expected_scale));
}

TEST_F(GpuTest, GatedRmsNormRefusesHeadsThatDoNotFit) {
  const Tensor x = ToGpu(Normal({4, 1030}, 1)), weight = ToGpu(Normal({515}, 2));
  Tensor y = at::empty_like(x);
  EXPECT_THROW(ops::GatedRmsNorm(y, x, x, weight, 1e-6), c10::Error);
  EXPECT_THROW(ops::GatedRmsNorm(y, x, x, ToGpu(Normal({4}, 2)), 1e-6), c10::Error);
}

}  // namespace
}  // namespace sft::engine
