#include "worker/engine/weights/host_optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/engine/base/error.h"

// The device is the CPU: copies are done at once, everything else is as with a GPU.

namespace sft::engine {
namespace {

using at::Tensor;
using spec::Optimizer;

constexpr int64_t kPiece = 16384;
constexpr int kSteps = 3;

// Three units; the second has a parameter of several pieces, one that shares its last transfer, and
// one that is not decayed.
ModelLayout FourUnits() {
  ModelLayout layout;
  layout.units.push_back({"a", {{"a.weight", {300}, ParamRole::kEmbedding, true}}});
  layout.units.push_back({"b",
                          {{"b.weight", {200, 201}, ParamRole::kLinear, true},
                           {"b.frozen", {6}},
                           {"b.norm", {77}, ParamRole::kNorm, true}}});
  layout.units.push_back({"c", {{"c.frozen", {9}}}});
  layout.units.push_back({"d", {{"d.weight", {5000}, ParamRole::kLinear, true}}});
  return layout;
}

Tensor Wave(int64_t count, double phase) {
  return at::arange(count, at::kDouble).mul(0.7390851).add(phase).sin().to(at::kFloat);
}

AdamWOptions Options(Optimizer kind) { return {.kind = kind, .weight_decay = 0.1, .seed = 7}; }

struct Kinds {
  const char* name;
  Optimizer kind;
  at::ScalarType master;
  at::ScalarType compute;

  friend void PrintTo(const Kinds& k, std::ostream* out) { *out << k.name; }
};

// A store, its gradients of each step as a sink gives them, and how its parts are updated.
class Rank {
 public:
  explicit Rank(const Kinds& kinds, bool on_host)
      : store(layout, kinds.compute, kinds.master, Placement::kReplicated, *comm,
              {.masters = on_host}) {
    store.Load([&](int unit, int param, int64_t first, int64_t count) {
      return Wave(first + count, unit + 0.3 * param).narrow(0, first, count);
    });
    for (const TrainablePart& part : store.parts()) {
      const ParamInfo& info = layout.units[part.unit].params[part.param];
      infos.push_back(
          {info.name, 10 * part.unit + part.param, {.decays = info.role != ParamRole::kNorm}});
    }
  }

  // By part; those of a unit lie end to end.
  std::vector<Tensor> Gradients(int step, at::ScalarType rounded_to = at::kFloat) const {
    std::vector<Tensor> gradients;
    for (int unit = 0; unit < layout.size(); ++unit) {
      const Tensor flat =
          Wave(store.flat(unit).size(), 0.1 * unit + step).to(rounded_to).to(at::kFloat);
      for (const FlatLayout::Piece& piece : store.flat(unit).pieces()) {
        gradients.push_back(flat.narrow(0, piece.begin, piece.count));
      }
    }
    return gradients;
  }

  // What the model computes with, and the masters.
  std::vector<Tensor> Weights() const {
    std::vector<Tensor> weights;
    for (const TrainablePart& part : store.parts()) {
      weights.push_back(part.master.clone());
      weights.push_back((part.copy.defined() ? part.copy : part.master).clone());
    }
    return weights;
  }

  const ModelLayout layout = FourUnits();
  const std::unique_ptr<Communicator> comm = MakeLocalCommunicator(at::kCPU);
  TrainableStore store;
  std::vector<HostOptimizer::PartInfo> infos;
};

std::vector<Tensor> TrainPlain(const Kinds& kinds, at::ScalarType rounded_to = at::kFloat) {
  Rank rank(kinds, /*on_host=*/false);
  for (const bool decays : {false, true}) {
    std::vector<OptimizerParam> params;
    std::vector<size_t> places;
    for (size_t i = 0; i < rank.infos.size(); ++i) {
      const HostOptimizer::PartInfo& info = rank.infos[i];
      const TrainablePart& part = rank.store.parts()[i];
      if (info.rule.decays != decays) continue;
      params.push_back({info.name, part.master, part.copy, info.id, part.first});
      places.push_back(i);
    }
    AdamWOptions options = Options(kinds.kind);
    if (!decays) options.weight_decay = 0;
    AdamW adamw(std::move(params), options);
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<Tensor> all = rank.Gradients(step, rounded_to);
      std::vector<Tensor> own;
      for (const size_t place : places) own.push_back(all[place]);
      adamw.Step(own, 1e-2, 0.5);
    }
  }
  return rank.Weights();
}

std::vector<Tensor> TrainOnHost(const Kinds& kinds, at::ScalarType wire = at::kFloat) {
  Rank rank(kinds, /*on_host=*/true);
  HostOptimizer optimizer(rank.store, rank.infos, at::kCPU, {Options(kinds.kind), wire, kPiece});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.Begin(rank.Gradients(step), 1e-2, 0.5);
    // The first units are asked for, the others finished by the next step.
    if (step == 1) optimizer.Update(1);
  }
  optimizer.Finish();
  return rank.Weights();
}

void ExpectSameBits(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

class HostOptimizerTest : public testing::TestWithParam<Kinds> {};

TEST_P(HostOptimizerTest, GivesTheBitsOfTheSameOptimizerInOnePiece) {
  ExpectSameBits(TrainOnHost(GetParam()), TrainPlain(GetParam()));
}

TEST_P(HostOptimizerTest, RoundsGradientsOnceWhereTheyAreSentInBf16) {
  ExpectSameBits(TrainOnHost(GetParam(), at::kBFloat16), TrainPlain(GetParam(), at::kBFloat16));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, HostOptimizerTest,
    testing::Values(Kinds{"Fp32", Optimizer::kAdamW, at::kFloat, at::kFloat},
                    Kinds{"Fp32OverBf16", Optimizer::kAdamW, at::kFloat, at::kBFloat16},
                    Kinds{"Bf16States", Optimizer::kAdamWBf16, at::kFloat, at::kBFloat16},
                    Kinds{"Codes", Optimizer::kAdamW8bit, at::kFloat, at::kBFloat16},
                    Kinds{"Bf16Masters", Optimizer::kAdamWBf16, at::kBFloat16, at::kBFloat16},
                    Kinds{"Bf16MastersOverFp32", Optimizer::kAdamW, at::kBFloat16, at::kFloat}),
    [](const auto& info) { return std::string(info.param.name); });

constexpr Kinds kPlain = {"", Optimizer::kAdamW, at::kFloat, at::kBFloat16};

TEST(HostOptimizerOrderTest, AUnitIsUpdatedWhenItIsAskedForAndOnce) {
  Rank rank(kPlain, /*on_host=*/true);
  HostOptimizer optimizer(rank.store, rank.infos, at::kCPU,
                          {Options(Optimizer::kAdamW), at::kFloat, kPiece});
  EXPECT_FALSE(optimizer.pending());
  const std::vector<Tensor> before = rank.Weights();
  optimizer.Begin(rank.Gradients(0), 1e-2, 1.0);
  ExpectSameBits(rank.Weights(), before);
  optimizer.Update(0);
  std::vector<Tensor> first = rank.Weights();
  EXPECT_FALSE(at::equal(first[0], before[0]));
  EXPECT_TRUE(at::equal(first[2], before[2]));
  EXPECT_TRUE(optimizer.pending());
  optimizer.Update(2);
  EXPECT_TRUE(at::equal(rank.Weights()[0], first[0]));
  EXPECT_FALSE(at::equal(rank.Weights()[3], before[3]));
  EXPECT_TRUE(optimizer.pending());
  optimizer.Update(3);
  EXPECT_FALSE(optimizer.pending());
  const std::vector<Tensor> last = rank.Weights();
  optimizer.Finish();
  ExpectSameBits(rank.Weights(), last);
}

TEST(HostOptimizerOrderTest, RefusesGradientsOfAUnitThatLieApart) {
  Rank rank(kPlain, /*on_host=*/true);
  HostOptimizer optimizer(rank.store, rank.infos, at::kCPU,
                          {Options(Optimizer::kAdamW), at::kFloat, kPiece});
  std::vector<Tensor> gradients = rank.Gradients(0);
  gradients[2] = gradients[2].clone();
  EXPECT_THROW(optimizer.Begin(gradients, 1e-2, 1.0), InternalError);
}

TEST(HostOptimizerOrderTest, RefusesMastersThatServeAsTheWeights) {
  Rank rank({"", Optimizer::kAdamW, at::kFloat, at::kFloat}, /*on_host=*/false);
  EXPECT_THROW(HostOptimizer(rank.store, rank.infos, at::kCPU, {}), InternalError);
}

TEST(HostOptimizerOrderTest, SaysWhatItHoldsInHostMemory) {
  Rank rank(kPlain, /*on_host=*/true);
  const HostOptimizer optimizer(rank.store, rank.infos, at::kCPU,
                                {Options(Optimizer::kAdamW), at::kBFloat16, kPiece});
  EXPECT_EQ(optimizer.StateBytes(), 8 * (300 + 40200 + 77 + 5000));
  // Transfers of 300, 13568, 13568, 13064 + 77 and 5000 elements pass through four slots.
  EXPECT_EQ(optimizer.BufferBytes(), 4 * 13568 * (2 + 2));
}

}  // namespace
}  // namespace sft::engine
