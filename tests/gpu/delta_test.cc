#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

// The gated delta rule. The CPU kernel in fp32 is the reference; tests/unit holds that against
// autograd of the rule token by token. bf16 is compared with the fp32 result of the same (bf16)
// inputs.

namespace sft::engine {
namespace {

using at::Tensor;

const std::vector<int64_t> kRuleLengths = {1, 3, 63, 64, 65, 200, 2, 700};
const std::vector<int64_t> kFewRuleLengths = {70, 130};

struct RuleHeads {
  int64_t keys, values, size;
};
std::ostream& operator<<(std::ostream& out, const RuleHeads& heads) {
  return out << heads.keys << " and " << heads.values << " heads of " << heads.size;
}

// What GatedDelta reads, and the gradient of what it writes.
struct RuleData {
  Tensor q, k, v, g, beta, dout;
  std::vector<int64_t> lengths;

  RuleData As(at::ScalarType type) const {
    return {q.to(type), k.to(type), v.to(type), g, beta, dout.to(type), lengths};
  }
  RuleData OnGpu() const {
    return {ToGpu(q), ToGpu(k), ToGpu(v), ToGpu(g), ToGpu(beta), ToGpu(dout), lengths};
  }
  // The documents from `document` on, `count` of them, alone.
  RuleData Part(size_t document, size_t count) const {
    int64_t first = 0, tokens = 0;
    for (size_t i = 0; i < document; ++i) first += lengths[i];
    for (size_t i = document; i < document + count; ++i) tokens += lengths[i];
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, tokens).contiguous(); };
    return {part(q),
            part(k),
            part(v),
            part(g),
            part(beta),
            part(dout),
            {lengths.begin() + document, lengths.begin() + document + count}};
  }
};

struct RuleResults {
  Tensor out, dq, dk, dv, dg, dbeta;
  std::vector<Tensor> all() const { return {out, dq, dk, dv, dg, dbeta}; }
};
const char* const kRuleNames[] = {"out", "dq", "dk", "dv", "dg", "dbeta"};
constexpr size_t kOfDecay = 4;

RuleData MakeRuleData(const std::vector<int64_t>& lengths, const RuleHeads& heads) {
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  return {Normal({tokens, heads.keys, heads.size}, 1),
          Normal({tokens, heads.keys, heads.size}, 2),
          Normal({tokens, heads.values, heads.size}, 3),
          -0.2 * at::softplus(Normal({tokens, heads.values}, 4)),
          at::sigmoid(Normal({tokens, heads.values}, 5)),
          Normal({tokens, heads.values, heads.size}, 6),
          lengths};
}

Tensor RuleStarts(const RuleData& data) {
  std::vector<int32_t> starts = {0};
  for (const int64_t length : data.lengths) {
    starts.push_back(starts.back() + static_cast<int32_t>(length));
  }
  return at::tensor(starts, at::kInt).to(data.q.device());
}

// Writes into `r`, whose tensors may lie in wider rows.
void RunRule(const RuleData& data, RuleResults& r) {
  const Tensor starts = RuleStarts(data);
  const ops::Documents documents{starts, data.lengths};
  ops::GatedDelta(r.out, data.q, data.k, data.v, data.g, data.beta, documents);
  ops::GatedDeltaBackward(r.dq, r.dk, r.dv, r.dg, r.dbeta, data.dout, data.q, data.k, data.v,
                          data.g, data.beta, documents);
}
// What is not written stays NaN.
RuleResults RunRule(const RuleData& data) {
  const auto nan = [](const Tensor& like) { return at::full_like(like, NAN); };
  RuleResults r{nan(data.v), nan(data.q), nan(data.k), nan(data.v), nan(data.g), nan(data.beta)};
  RunRule(data, r);
  return r;
}

// fp32: sums of up to some hundred terms in another order, each rounded to 6e-8; ten times what
// was measured. bf16: operands of products, and results, are rounded to 4e-3, several one behind
// the other; twice what was measured. dg is a difference of sums, and may lose a digit more.
double ToleranceOf(at::ScalarType type, size_t result) {
  if (type == at::kFloat) return 1e-5;
  return result == kOfDecay ? 3e-2 : 1e-2;
}

void ExpectRule(const RuleData& values, at::ScalarType type, const std::string& what) {
  const RuleData data = values.As(type);
  const RuleResults actual = RunRule(data.OnGpu()), expected = RunRule(data.As(at::kFloat));
  for (size_t i = 0; i < expected.all().size(); ++i) {
    EXPECT_LT(RelativeError(actual.all()[i], expected.all()[i]), ToleranceOf(type, i))
        << kRuleNames[i] << ", " << what << ", " << type;
  }
}

void ExpectSameRule(const RuleResults& actual, const RuleResults& expected,
                    const std::string& what) {
  for (size_t i = 0; i < expected.all().size(); ++i) {
    EXPECT_TRUE(SameBits(actual.all()[i], expected.all()[i])) << kRuleNames[i] << ", " << what;
  }
}

class DeltaRuleGpuTest : public GpuTest, public ::testing::WithParamInterface<RuleHeads> {};

TEST_P(DeltaRuleGpuTest, EqualsTheCpuForDocumentsOfAllLengths) {
  const RuleData data = MakeRuleData(kRuleLengths, GetParam());
  for (const auto type : {at::kFloat, at::kBFloat16}) ExpectRule(data, type, "ragged");
}

TEST_P(DeltaRuleGpuTest, EqualsTheCpuWhereAllOrNothingIsForgotten) {
  RuleData data = MakeRuleData(kFewRuleLengths, GetParam());
  const Tensor g = data.g, chosen = Normal(g.sizes(), 9) > 1.5;
  const std::pair<const char*, Tensor> decays[] = {
      {"g -20", at::full_like(g, -20.0)},
      {"g 0", at::zeros_like(g)},
      {"g of both", at::where(chosen, g * 100, g * 1e-3)}};
  for (const auto& [what, decay] : decays) {
    data.g = decay;
    for (const auto type : {at::kFloat, at::kBFloat16}) ExpectRule(data, type, what);
  }
}

TEST_P(DeltaRuleGpuTest, EqualsTheCpuWhereBetaIsNearOne) {
  RuleData data = MakeRuleData(kFewRuleLengths, GetParam());
  data.beta = at::sigmoid(Normal(data.beta.sizes(), 5) + 12.0);
  for (const auto type : {at::kFloat, at::kBFloat16}) ExpectRule(data, type, "beta 1");
}

TEST_P(DeltaRuleGpuTest, PackedDocumentsHaveTheBitsThatTheyHaveAlone) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const RuleData data = MakeRuleData(kRuleLengths, GetParam()).As(type).OnGpu();
    const RuleResults packed = RunRule(data);
    int64_t first = 0;
    for (size_t i = 0; i < data.lengths.size(); ++i) {
      const RuleResults alone = RunRule(data.Part(i, 1));
      for (size_t result = 0; result < alone.all().size(); ++result) {
        EXPECT_TRUE(
            SameBits(packed.all()[result].narrow(0, first, data.lengths[i]), alone.all()[result]))
            << kRuleNames[result] << " of " << data.lengths[i] << " tokens, " << type;
      }
      first += data.lengths[i];
    }
  }
}

TEST_P(DeltaRuleGpuTest, GivesTheSameBitsEachTime) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const RuleData data = MakeRuleData(kRuleLengths, GetParam()).As(type).OnGpu();
    const RuleResults once = RunRule(data);
    for (int i = 0; i < 3; ++i) ExpectSameRule(RunRule(data), once, "again");
  }
}

// Heads side by side with `gap` columns more, as a projection has them.
struct WideHeads {
  WideHeads(const std::vector<Tensor>& parts, int64_t gap) {
    int64_t width = gap;
    for (const Tensor& part : parts) width += part.size(1) * part.size(2);
    buffer = at::full({parts[0].size(0), width}, 77.0, parts[0].options());
    int64_t first = 0;
    for (const Tensor& part : parts) {
      const int64_t columns = part.size(1) * part.size(2);
      heads.push_back(buffer.narrow(1, first, columns).unflatten(1, {part.size(1), part.size(2)}));
      heads.back().copy_(part);
      first += columns;
    }
    spare = buffer.narrow(1, first, gap);
  }
  Tensor buffer, spare;
  std::vector<Tensor> heads;
};

TEST_P(DeltaRuleGpuTest, ReadsAndWritesHeadsInWiderRows) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const RuleData dense = MakeRuleData({5, 70, 64}, GetParam()).As(type).OnGpu();
    const RuleResults expected = RunRule(dense);
    // 3: not aligned, which takes other kernels where there are tensor cores.
    for (const int64_t gap : {64, 3}) {
      const WideHeads in({dense.q, dense.k, dense.v}, gap), of_out({dense.dout}, gap);
      RuleData data = dense;
      data.q = in.heads[0], data.k = in.heads[1], data.v = in.heads[2], data.dout = of_out.heads[0];
      const WideHeads out({dense.v}, gap), d({dense.q, dense.k, dense.v}, gap);
      const Tensor dg = at::full_like(dense.g, NAN), dbeta = at::full_like(dense.g, NAN);
      RuleResults actual{out.heads[0], d.heads[0], d.heads[1], d.heads[2], dg, dbeta};
      RunRule(data, actual);
      if (gap == 64) ExpectSameRule(actual, expected, "wide");
      for (size_t i = 0; i < expected.all().size(); ++i) {
        EXPECT_LT(RelativeError(actual.all()[i], expected.all()[i]), ToleranceOf(type, i))
            << kRuleNames[i] << " " << type << " gap " << gap;
      }
      for (const WideHeads* written : {&out, &d}) {
        EXPECT_TRUE(written->spare.eq(77.0).all().item<bool>()) << type << " gap " << gap;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, DeltaRuleGpuTest,
                         ::testing::Values(RuleHeads{1, 2, 8}, RuleHeads{2, 2, 64},
                                           RuleHeads{1, 4, 64}, RuleHeads{2, 4, 128},
                                           RuleHeads{1, 4, 128}),
                         [](const auto& info) {
                           const RuleHeads& heads = info.param;
                           return std::to_string(heads.keys) + "_" + std::to_string(heads.values) +
                                  "_" + std::to_string(heads.size);
                         });

TEST_F(GpuTest, DeltaRuleEqualsTheCpuForKeysAndValuesOfOtherSizes) {
  for (const auto& [key, value] : {std::pair<int64_t, int64_t>{16, 24}, {3, 5}, {128, 64}}) {
    RuleData data = MakeRuleData(kFewRuleLengths, {2, 4, key});
    data.v = Normal({data.q.size(0), 4, value}, 3), data.dout = Normal(data.v.sizes(), 6);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      ExpectRule(data, type, std::to_string(key) + " and " + std::to_string(value));
    }
  }
}

// The system of a chunk is at its worst then: all below its diagonal is near 1.
TEST_F(GpuTest, DeltaRuleStaysExactInFp32WhereKeysRepeatAndNothingIsForgotten) {
  for (const int64_t size : {8, 128}) {
    RuleData data = MakeRuleData(kFewRuleLengths, {1, 2, size});
    data.k = Normal({1, 1, size}, 7) + 1e-3 * data.k;
    data.beta = at::sigmoid(Normal(data.beta.sizes(), 5) + 12.0);
    data.g = data.g * 1e-6;
    const RuleResults actual = RunRule(data.OnGpu()), expected = RunRule(data);
    for (size_t i = 0; i < expected.all().size(); ++i) {
      if (i == kOfDecay) continue;
      EXPECT_LT(RelativeError(actual.all()[i], expected.all()[i]), 1e-5) << kRuleNames[i];
    }
    // What would decay is overwritten by the next token, so the terms of dg, as large as those of
    // dk, nearly cancel.
    EXPECT_LT((actual.dg.cpu() - expected.dg).norm().item<double>(),
              1e-5 * expected.dk.norm().item<double>());
  }
}

// More tokens than the workspace has room for at a time: with 64 value heads about 10,000 backwards
// and 28,000 forwards. Documents that go over such a border have the bits that they have alone,
// where there is none.
TEST_F(GpuTest, DeltaRuleDoesNotDependOnPiecesOfItsWorkspace) {
  const std::vector<int64_t> lengths = {300, 8000, 100, 9000, 6001, 9000};
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  const auto random = [&](int64_t heads) {
    return at::randn({tokens, heads, 128}, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  };
  const auto gates = [&] {
    return at::randn({tokens, 64}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  };
  const Tensor g = -0.2 * at::softplus(gates()), beta = at::sigmoid(gates());
  const RuleData data{random(16), random(16), random(64), g, beta, random(64), lengths};
  const RuleResults packed = RunRule(data);
  int64_t first = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const RuleResults alone = RunRule(data.Part(i, 1));
    for (size_t result = 0; result < alone.all().size(); ++result) {
      EXPECT_TRUE(at::equal(packed.all()[result].narrow(0, first, lengths[i]), alone.all()[result]))
          << kRuleNames[result] << " of " << lengths[i] << " tokens";
    }
    first += lengths[i];
  }
}

TEST_F(GpuTest, DeltaRuleTakesNoTokensAndEmptyDocuments) {
  RunRule(MakeRuleData({0}, {1, 2, 64}).As(at::kBFloat16).OnGpu());
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    RuleData data = MakeRuleData({70, 3}, {1, 2, 64}).As(type).OnGpu();
    const RuleResults expected = RunRule(data);
    data.lengths = {0, 70, 0, 0, 3, 0};
    ExpectSameRule(RunRule(data), expected, "empty documents");
  }
}

TEST_F(GpuTest, DeltaRuleRefusesArgumentsThatDoNotFit) {
  const RuleData data = MakeRuleData({4}, {1, 2, 64}).OnGpu();
  RuleData other = data;
  other.lengths = {5};
  EXPECT_THROW(RunRule(other), c10::Error);
  other = data, other.g = data.g.cpu();
  EXPECT_THROW(RunRule(other), c10::Error);
  EXPECT_THROW(RunRule(MakeRuleData({4}, {1, 1, 257}).OnGpu()), c10::Error);
}

}  // namespace
}  // namespace sft::engine
