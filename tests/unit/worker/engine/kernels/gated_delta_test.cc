#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <vector>

#include "tests/unit/worker/engine/kernels/delta_reference.h"
#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

const std::vector<int64_t> kRagged = {1, 3, 63, 64, 65, 130, 2, 200};
const std::vector<int64_t> kFewDocuments = {3, 130};

struct Sizes {
  int64_t key_heads = 2, value_heads = 6, key = 16, value = 24;
};

// What GatedDelta reads, and the gradient of what it writes.
struct DeltaData {
  Tensor q, k, v, g, beta, dout;
  std::vector<int64_t> lengths;

  std::vector<Tensor> inputs() const { return {q, k, v, g, beta}; }
  // The same values, activations as `type`.
  DeltaData As(at::ScalarType type) const {
    return {q.to(type), k.to(type), v.to(type), g, beta, dout.to(type), lengths};
  }
  // Document `i` alone.
  DeltaData Document(size_t i) const {
    int64_t first = 0;
    for (size_t before = 0; before < i; ++before) first += lengths[before];
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, lengths[i]).contiguous(); };
    return {part(q), part(k), part(v), part(g), part(beta), part(dout), {lengths[i]}};
  }
};

DeltaData RandomDelta(const std::vector<int64_t>& lengths, const Sizes& sizes = {}) {
  int64_t tokens = 0;
  for (int64_t length : lengths) tokens += length;
  return {Random({tokens, sizes.key_heads, sizes.key}, 1),
          Random({tokens, sizes.key_heads, sizes.key}, 2),
          Random({tokens, sizes.value_heads, sizes.value}, 3),
          -0.2 * at::softplus(Random({tokens, sizes.value_heads}, 4)),
          at::sigmoid(Random({tokens, sizes.value_heads}, 5)),
          Random({tokens, sizes.value_heads, sizes.value}, 6),
          lengths};
}

struct DeltaResults {
  Tensor out, dq, dk, dv, dg, dbeta;

  std::vector<Tensor> all() const { return {out, dq, dk, dv, dg, dbeta}; }
};
const char* const kDeltaResults[] = {"out", "dq", "dk", "dv", "dg", "dbeta"};

Tensor DeltaOutput(const DeltaData& data) {
  const Tensor starts = DocumentStarts(data.lengths);
  Tensor out = at::empty_like(data.v);
  ops::GatedDelta(out, data.q, data.k, data.v, data.g, data.beta, {starts, data.lengths});
  return out;
}

DeltaResults RunDelta(const DeltaData& data) {
  const Tensor starts = DocumentStarts(data.lengths);
  const ops::Documents documents{starts, data.lengths};
  DeltaResults r{DeltaOutput(data),      at::empty_like(data.q), at::empty_like(data.k),
                 at::empty_like(data.v), at::empty_like(data.g), at::empty_like(data.beta)};
  ops::GatedDeltaBackward(r.dq, r.dk, r.dv, r.dg, r.dbeta, data.dout, data.q, data.k, data.v,
                          data.g, data.beta, documents);
  return r;
}

DeltaResults ExpectedDelta(const DeltaData& data) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : data.inputs()) {
    leaves.push_back(input.to(at::kDouble).set_requires_grad(true));
  }
  const Tensor out =
      PlainGatedDelta(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], data.lengths);
  const auto d = torch::autograd::grad({out}, leaves, {data.dout.to(at::kDouble)});
  return {out.detach(), d[0], d[1], d[2], d[3], d[4]};
}

void ExpectNear(const DeltaResults& actual, const DeltaResults& expected, double tolerance) {
  for (size_t i = 0; i < actual.all().size(); ++i) {
    EXPECT_LT(RelativeError(actual.all()[i], expected.all()[i]), tolerance) << kDeltaResults[i];
  }
}

// The first products of a process may be off (attention_test.cc).
class GatedDeltaTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::bmm(Random({4, 64, 64}, 1), Random({4, 64, 64}, 2)); }
};

// Ten times what fp32 was off by: sums of a hundred terms, each rounded to 6e-8.
constexpr double kTolerance = 3e-6;

TEST_F(GatedDeltaTest, EqualsTheRuleTokenByTokenForDocumentsOfAllLengths) {
  const DeltaData data = RandomDelta(kRagged);
  ExpectNear(RunDelta(data), ExpectedDelta(data), kTolerance);
}

TEST_F(GatedDeltaTest, EqualsTheRuleWithHeadsOfRealSize) {
  const DeltaData data = RandomDelta({70}, {1, 1, 128, 128});
  ExpectNear(RunDelta(data), ExpectedDelta(data), kTolerance);
}

TEST_F(GatedDeltaTest, EqualsTheRuleWhereEachKeyHeadHasOneValueHead) {
  const DeltaData data = RandomDelta({100}, {3, 3, 8, 4});
  ExpectNear(RunDelta(data), ExpectedDelta(data), kTolerance);
}

TEST_F(GatedDeltaTest, StaysExactWhereTheStateIsKeptOrForgotten) {
  const Tensor g = RandomDelta(kFewDocuments).g;
  // At the last, single tokens forget all and the others next to nothing: differences of sums that
  // are large themselves.
  for (const Tensor& decay :
       {g * 1e-6, g * 100 - 15, at::where(Random(g.sizes(), 9) > 1.5, g * 1e4, g * 1e-3)}) {
    DeltaData data = RandomDelta(kFewDocuments);
    data.g = decay;
    ExpectNear(RunDelta(data), ExpectedDelta(data), kTolerance);
  }
}

TEST_F(GatedDeltaTest, StaysExactWhereBetaIsNearItsEnds) {
  for (const double shift : {-12.0, 12.0}) {
    DeltaData data = RandomDelta(kFewDocuments);
    data.beta = at::sigmoid(Random(data.beta.sizes(), 5) + shift);
    ExpectNear(RunDelta(data), ExpectedDelta(data), kTolerance);
  }
}

// The system of a chunk is at its worst then: all below its diagonal is near 1, or of any sign.
TEST_F(GatedDeltaTest, StaysExactWhereKeysRepeatAndNothingIsForgotten) {
  for (const bool signs : {false, true}) {
    DeltaData data = RandomDelta(kFewDocuments);
    const Tensor key = Random({1, data.k.size(1), data.k.size(2)}, 7);
    data.k = key + 1e-3 * data.k;
    if (signs) data.k.mul_(at::sign(Random({data.k.size(0), 1, 1}, 8)));
    data.beta = at::sigmoid(Random(data.beta.sizes(), 5) + 12.0);
    data.g = data.g * 1e-6;
    DeltaResults actual = RunDelta(data), expected = ExpectedDelta(data);
    // What would decay is overwritten by the next token, so the terms of dg, as large as those of
    // dk, nearly cancel.
    const double error = (actual.dg - expected.dg).norm().item<double>();
    EXPECT_LT(error, 2 * kTolerance * expected.dk.norm().item<double>());
    actual.dg = expected.dg;
    ExpectNear(actual, expected, 2 * kTolerance);
  }
}

TEST_F(GatedDeltaTest, GradientsAreTheDifferencesOfItsOwnOutputs) {
  DeltaData data = RandomDelta({5}, {1, 2, 3, 2});
  const DeltaResults results = RunDelta(data);
  const auto loss = [&] {
    return (DeltaOutput(data).to(at::kDouble) * data.dout).sum().item<double>();
  };
  // Of central differences: 4e-6 times a third derivative from the step, 3e-5 from rounding.
  constexpr double kStep = 5e-3;
  for (size_t i = 0; i < data.inputs().size(); ++i) {
    const Tensor values = data.inputs()[i].view({-1}), gradient = results.all()[i + 1].view({-1});
    for (int64_t at = 0; at < values.numel(); ++at) {
      const Tensor value = values[at];
      const double before = value.item<double>();
      value.fill_(before + kStep);
      const double above = loss();
      value.fill_(before - kStep);
      const double below = loss();
      value.fill_(before);
      EXPECT_NEAR(gradient[at].item<double>(), (above - below) / (2 * kStep), 5e-4)
          << kDeltaResults[i + 1] << " " << at;
    }
  }
}

TEST_F(GatedDeltaTest, PackedDocumentsHaveTheBitsThatTheyHaveAlone) {
  for (const Sizes& sizes : {Sizes{}, Sizes{1, 1, 32, 32}}) {
    const DeltaData data = RandomDelta(kRagged, sizes);
    const DeltaResults packed = RunDelta(data);
    int64_t first = 0;
    for (size_t i = 0; i < data.lengths.size(); ++i) {
      const DeltaResults alone = RunDelta(data.Document(i));
      for (size_t result = 0; result < alone.all().size(); ++result) {
        EXPECT_TRUE(
            at::equal(packed.all()[result].narrow(0, first, data.lengths[i]), alone.all()[result]))
            << kDeltaResults[result] << " of " << data.lengths[i] << " tokens";
      }
      first += data.lengths[i];
    }
  }
}

TEST_F(GatedDeltaTest, GivesTheSameBitsEachTimeAndOnOneThread) {
  for (const Sizes& sizes : {Sizes{}, Sizes{1, 1, 128, 128}}) {
    const DeltaData data = RandomDelta({200}, sizes);
    const DeltaResults once = RunDelta(data), again = RunDelta(data);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const DeltaResults on_one = RunDelta(data);
    at::set_num_threads(threads);
    for (size_t i = 0; i < once.all().size(); ++i) {
      EXPECT_TRUE(at::equal(once.all()[i], again.all()[i])) << kDeltaResults[i];
      EXPECT_TRUE(at::equal(once.all()[i], on_one.all()[i])) << kDeltaResults[i];
    }
  }
}

TEST_F(GatedDeltaTest, Bf16IsFp32OfTheSameValuesRoundedAtTheEnd) {
  const DeltaData data = RandomDelta(kRagged).As(at::kBFloat16);
  const DeltaResults rounded = RunDelta(data), exact = RunDelta(data.As(at::kFloat));
  for (size_t i = 0; i < exact.all().size(); ++i) {
    const Tensor result = rounded.all()[i];
    EXPECT_EQ(result.scalar_type(), i < 4 ? at::kBFloat16 : at::kFloat);
    EXPECT_TRUE(at::equal(result, exact.all()[i].to(result.scalar_type()))) << kDeltaResults[i];
  }
}

TEST_F(GatedDeltaTest, ReadsAndWritesHeadsInWiderRows) {
  const DeltaData data = RandomDelta({5, 70});
  const DeltaResults expected = RunDelta(data);
  const int64_t tokens = data.q.size(0), keys = data.q.size(1) * data.q.size(2);
  const int64_t values = data.v.size(1) * data.v.size(2), width = 2 * keys + values;
  // Heads side by side with a few columns more, as a projection has them.
  const auto heads = [&](const Tensor& rows, int64_t first, const Tensor& like) {
    const int64_t columns = like.size(1) * like.size(2);
    return rows.narrow(1, first, columns).unflatten(1, {like.size(1), like.size(2)});
  };
  const Tensor rows = at::full({tokens, width + 3}, 7.0), drows = at::full_like(rows, 7.0);
  const Tensor out_rows = at::full({tokens, values + 3}, 7.0);
  const Tensor q = heads(rows, 0, data.q), k = heads(rows, keys, data.k);
  const Tensor v = heads(rows, 2 * keys, data.v);
  q.copy_(data.q), k.copy_(data.k), v.copy_(data.v);
  Tensor out = heads(out_rows, 0, data.v), dq = heads(drows, 0, data.q);
  Tensor dk = heads(drows, keys, data.k), dv = heads(drows, 2 * keys, data.v);
  Tensor dg = at::empty_like(data.g), dbeta = at::empty_like(data.beta);
  const Tensor starts = DocumentStarts(data.lengths);
  const ops::Documents documents{starts, data.lengths};
  ops::GatedDelta(out, q, k, v, data.g, data.beta, documents);
  ops::GatedDeltaBackward(dq, dk, dv, dg, dbeta, data.dout, q, k, v, data.g, data.beta, documents);
  const DeltaResults actual{out, dq, dk, dv, dg, dbeta};
  for (size_t i = 0; i < actual.all().size(); ++i) {
    EXPECT_TRUE(at::equal(actual.all()[i], expected.all()[i])) << kDeltaResults[i];
  }
  for (const Tensor& spare : {drows.narrow(1, width, 3), out_rows.narrow(1, values, 3)}) {
    EXPECT_TRUE(spare.eq(7.0).all().item<bool>());
  }
}

TEST_F(GatedDeltaTest, ArgumentsThatDoNotFitAreRefused) {
  const auto refused = [](const char* what, const auto& change) {
    DeltaData data = RandomDelta({4});
    change(data);
    try {
      RunDelta(data);
      ADD_FAILURE() << what << " was taken";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refused("GatedDelta: documents of 5 tokens for 4", [](DeltaData& d) { d.lengths = {5}; });
  refused("GatedDelta: beta", [](DeltaData& d) { d.beta = d.beta.to(at::kBFloat16); });
  refused("GatedDelta: g", [](DeltaData& d) { d.g = d.g.narrow(1, 0, 3); });
  refused("GatedDelta: k", [](DeltaData& d) { d.k = d.k.narrow(2, 0, 8).contiguous(); });
  refused("2 heads of queries, 2 of keys, 5 of values",
          [](DeltaData& d) { d.v = d.v.narrow(1, 0, 5).contiguous(); });
  refused("must be fp32 or bf16, not Half", [](DeltaData& d) { d = d.As(at::kHalf); });
}

}  // namespace
}  // namespace sft::engine
