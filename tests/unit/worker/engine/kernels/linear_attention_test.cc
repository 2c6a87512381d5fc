// What stands around the gated delta rule: the convolution before it and the norm behind it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/kernels/delta_reference.h"
#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

const std::vector<int64_t> kDocuments = {1, 3, 2, 63, 5, 64, 65};
constexpr int64_t kDocumentTokens = 203;
constexpr int64_t kChannels = 150;  // more than two tasks' columns, and no multiple of them

// A copy of x as rows of a wider buffer whose other columns are 7.
struct WideRows {
  explicit WideRows(const Tensor& x)
      : buffer(at::full({x.size(0), x.size(1) + 5}, 7.0, x.options())),
        rows(buffer.narrow(1, 0, x.size(1))) {
    rows.copy_(x);
  }
  bool SpareIsUntouched() const {
    return buffer.narrow(1, rows.size(1), 5).eq(7.0).all().item<bool>();
  }
  Tensor buffer, rows;
};

struct ConvResults {
  Tensor out, dx, dweight;
};

ConvResults Convolve(const Tensor& x, const Tensor& weight, const Tensor& dy,
                     const std::vector<int64_t>& lengths) {
  const Tensor starts = DocumentStarts(lengths);
  const ops::Documents documents{starts, lengths};
  ConvResults r{at::empty_like(x), at::empty_like(x), {}};
  ops::ShortConv(r.out, x, weight, documents);
  r.dweight = ops::ShortConvBackward(r.dx, dy, x, weight, documents, /*need_weight_grad=*/true);
  return r;
}

TEST(ShortConvTest, EqualsTheFormulaAndItsAutograd) {
  const Tensor x = Random({kDocumentTokens, kChannels}, 1), weight = Random({kChannels, 4}, 2);
  const Tensor dy = Random(x.sizes(), 3);
  const Tensor x64 = x.to(at::kDouble).set_requires_grad(true);
  const Tensor weight64 = weight.to(at::kDouble).set_requires_grad(true);
  const Tensor expected = PlainShortConv(x64, weight64, kDocuments);
  const auto grads = torch::autograd::grad({expected}, {x64, weight64}, {dy.to(at::kDouble)});
  const ConvResults actual = Convolve(x, weight, dy, kDocuments);
  // A few products in fp32; the weight's gradient is a sum over all tokens.
  EXPECT_LT(RelativeError(actual.out, expected.detach()), 3e-7);
  EXPECT_LT(RelativeError(actual.dx, grads[0]), 3e-7);
  EXPECT_LT(RelativeError(actual.dweight, grads[1]), 1e-6);
}

TEST(ShortConvTest, GradientsAreTheDifferencesOfItsOwnOutputs) {
  const std::vector<int64_t> lengths = {2, 5};
  const Tensor x = Random({7, 3}, 1), weight = Random({3, 4}, 2), dy = Random({7, 3}, 3);
  const ConvResults results = Convolve(x, weight, dy, lengths);
  const auto loss = [&] {
    return (Convolve(x, weight, dy, lengths).out.to(at::kDouble) * dy).sum().item<double>();
  };
  constexpr double kStep = 5e-3;
  for (const auto& [values, gradient] :
       {std::pair(x.view({-1}), results.dx.view({-1})),
        std::pair(weight.view({-1}), results.dweight.view({-1}))}) {
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double before = values[i].item<double>();
      values[i].fill_(before + kStep);
      const double above = loss();
      values[i].fill_(before - kStep);
      const double below = loss();
      values[i].fill_(before);
      EXPECT_NEAR(gradient[i].item<double>(), (above - below) / (2 * kStep), 5e-4) << i;
    }
  }
}

TEST(ShortConvTest, PackedDocumentsHaveTheBitsThatTheyHaveAlone) {
  const Tensor x = Random({kDocumentTokens, kChannels}, 1), weight = Random({kChannels, 4}, 2);
  const Tensor dy = Random(x.sizes(), 3);
  const ConvResults packed = Convolve(x, weight, dy, kDocuments);
  Tensor dweight = at::zeros_like(packed.dweight);
  int64_t first = 0;
  for (int64_t length : kDocuments) {
    const auto part = [&](const Tensor& rows) { return rows.narrow(0, first, length); };
    const ConvResults alone = Convolve(part(x), weight, part(dy), {length});
    EXPECT_TRUE(at::equal(part(packed.out), alone.out)) << length;
    EXPECT_TRUE(at::equal(part(packed.dx), alone.dx)) << length;
    dweight.add_(alone.dweight);
    first += length;
  }
  EXPECT_LT(RelativeError(packed.dweight, dweight), 1e-6);
}

TEST(ShortConvTest, Bf16IsFp32OfTheSameValuesRoundedAtTheEnd) {
  const Tensor x = Random({kDocumentTokens, kChannels}, 1).to(at::kBFloat16);
  const Tensor weight = Random({kChannels, 4}, 2).to(at::kBFloat16);
  const Tensor dy = Random(x.sizes(), 3).to(at::kBFloat16);
  const auto floats = [](const Tensor& t) { return t.to(at::kFloat); };
  const ConvResults rounded = Convolve(x, weight, dy, kDocuments);
  const ConvResults exact = Convolve(floats(x), floats(weight), floats(dy), kDocuments);
  EXPECT_TRUE(at::equal(rounded.out, exact.out.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(rounded.dx, exact.dx.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(rounded.dweight, exact.dweight));
  // A weight that stays in fp32.
  EXPECT_TRUE(at::equal(Convolve(x, floats(weight), dy, kDocuments).out, rounded.out));
}

TEST(ShortConvTest, ReadsAndWritesWiderRows) {
  const Tensor weight = Random({kChannels, 4}, 2), dy = Random({70, kChannels}, 3);
  const WideRows x(Random({70, kChannels}, 1)), wide_dy(dy);
  const std::vector<int64_t> lengths = {6, 64};
  const ConvResults dense = Convolve(x.rows.contiguous(), weight, dy, lengths);
  WideRows out(dy), dx(dy);
  const Tensor starts = DocumentStarts(lengths);
  const ops::Documents documents{starts, lengths};
  ops::ShortConv(out.rows, x.rows, weight, documents);
  const Tensor none = ops::ShortConvBackward(dx.rows, wide_dy.rows, x.rows, weight, documents,
                                             /*need_weight_grad=*/false);
  EXPECT_EQ(none.numel(), 0);
  EXPECT_TRUE(at::equal(out.rows, dense.out) && at::equal(dx.rows, dense.dx));
  EXPECT_TRUE(out.SpareIsUntouched() && dx.SpareIsUntouched());
}

TEST(ShortConvTest, ArgumentsThatDoNotFitAreRefused) {
  const Tensor x = Random({4, 6}, 1), weight = Random({6, 4}, 2);
  EXPECT_THROW(Convolve(x, weight, x, {5}), c10::Error);
  EXPECT_THROW(Convolve(x, weight.narrow(1, 0, 3).contiguous(), x, {4}), c10::Error);
  EXPECT_THROW(Convolve(x, weight.to(at::kBFloat16), x, {4}), c10::Error);
  EXPECT_THROW(Convolve(x.to(at::kDouble), weight, x, {4}), c10::Error);
}

struct GatedNormResults {
  Tensor y, dx, dgate, dweight;
};

GatedNormResults GatedNorm(const Tensor& x, const Tensor& gate, const Tensor& weight,
                           const Tensor& dy) {
  GatedNormResults r{at::empty_like(x), at::empty_like(x), at::empty_like(x), {}};
  const Tensor rstd = ops::GatedRmsNorm(r.y, x, gate, weight, 1e-5);
  r.dweight = ops::GatedRmsNormBackward(r.dx, r.dgate, dy, x, gate, weight, rstd,
                                        /*need_weight_grad=*/true);
  return r;
}

TEST(GatedRmsNormTest, EqualsTheFormulaAndItsAutograd) {
  for (const int64_t size : {7, 16, 128}) {
    const Tensor x = Random({37, 3 * size}, 1), gate = Random(x.sizes(), 2);
    const Tensor weight = Random({size}, 3), dy = Random(x.sizes(), 4);
    std::vector<Tensor> leaves;
    for (const Tensor& input : {x, gate, weight}) {
      leaves.push_back(input.to(at::kDouble).set_requires_grad(true));
    }
    const Tensor expected = PlainGatedNorm(leaves[0], leaves[1], leaves[2], 1e-5);
    const auto grads = torch::autograd::grad({expected}, leaves, {dy.to(at::kDouble)});
    const GatedNormResults actual = GatedNorm(x, gate, weight, dy);
    EXPECT_LT(RelativeError(actual.y, expected.detach()), 5e-7) << size;
    EXPECT_LT(RelativeError(actual.dx, grads[0]), 1e-6) << size;
    EXPECT_LT(RelativeError(actual.dgate, grads[1]), 5e-7) << size;
    EXPECT_LT(RelativeError(actual.dweight, grads[2]), 1e-6) << size;
  }
}

TEST(GatedRmsNormTest, RoundsInTheOrderOfTransformersForBf16) {
  const Tensor x = Random({40, 64}, 1).to(at::kBFloat16), gate = Random({40, 64}, 2).to(x.dtype());
  const Tensor weight = Random({32}, 3), dy = Random({40, 64}, 4).to(x.dtype());
  const Tensor heads = x.to(at::kFloat).view({40, 2, 32});
  const Tensor normed = (heads * (heads.square().mean({-1}, true) + 1e-5).rsqrt()).to(x.dtype());
  const Tensor z = gate.to(at::kFloat);
  const Tensor expected =
      ((weight * normed.to(at::kFloat)).view({40, 64}) * at::silu(z)).to(at::kBFloat16);
  const GatedNormResults actual = GatedNorm(x, gate, weight, dy);
  // A last bit of fp32 seldom changes one of bf16.
  EXPECT_LT((actual.y != expected).sum().item<int64_t>(), 2560 / 100);
  EXPECT_LT(RelativeError(actual.y, expected), 1e-3);
  const auto floats = [](const Tensor& t) { return t.to(at::kFloat); };
  const GatedNormResults exact = GatedNorm(floats(x), floats(gate), weight, floats(dy));
  EXPECT_LT(RelativeError(actual.dx, exact.dx), 3e-3);
  EXPECT_LT(RelativeError(actual.dgate, exact.dgate), 3e-3);
  EXPECT_LT(RelativeError(actual.dweight, exact.dweight), 3e-3);
}

TEST(GatedRmsNormTest, ReadsAndWritesWiderRowsAndTheGradientInItsPlace) {
  const Tensor x = Random({21, 48}, 1), gate = Random({21, 48}, 2), weight = Random({16}, 3);
  const Tensor dy = Random({21, 48}, 4);
  const GatedNormResults dense = GatedNorm(x, gate, weight, dy);
  WideRows y(x), dx(dy), dgate(x);
  const Tensor rstd =
      ops::GatedRmsNorm(y.rows, WideRows(x).rows, WideRows(gate).rows, weight, 1e-5);
  EXPECT_EQ(rstd.sizes(), at::IntArrayRef({21, 3}));
  const Tensor none = ops::GatedRmsNormBackward(dx.rows, dgate.rows, dx.rows, WideRows(x).rows,
                                                WideRows(gate).rows, weight, rstd,
                                                /*need_weight_grad=*/false);
  EXPECT_EQ(none.numel(), 0);
  EXPECT_TRUE(at::equal(y.rows, dense.y) && at::equal(dx.rows, dense.dx));
  EXPECT_TRUE(at::equal(dgate.rows, dense.dgate));
  EXPECT_TRUE(y.SpareIsUntouched() && dx.SpareIsUntouched() && dgate.SpareIsUntouched());
}

TEST(GatedRmsNormTest, ArgumentsThatDoNotFitAreRefused) {
  const Tensor x = Random({4, 6}, 1);
  EXPECT_THROW(GatedNorm(x, x, Random({4}, 2), x), c10::Error);
  EXPECT_THROW(GatedNorm(x, x.narrow(1, 0, 3), Random({3}, 2), x), c10::Error);
  EXPECT_THROW(GatedNorm(x, x, Random({3}, 2).to(at::kBFloat16), x), c10::Error);
}

}  // namespace
}  // namespace sft::engine
