#include "worker/engine/nn/projection.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "tests/unit/worker/engine/nn/map_sink.h"
#include "worker/engine/base/error.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/weights/adapted_source.h"
#include "worker/engine/weights/quantized_source.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kTokens = 7;
constexpr int64_t kInputs = 12;
constexpr double kScale = 0.75;

// Three linear layers of one input; the second has no adapter, all have a bias.
ModelLayout Layout(bool train_weights, bool magnitudes = false) {
  UnitInfo unit{"unit", {}, {{0, 1, 2}}};
  const int64_t outputs[] = {9, 4, 5};
  const char* names[] = {"a", "b", "c"};
  for (int i = 0; i < 3; ++i) {
    unit.params.push_back({std::string("unit.") + names[i] + ".weight",
                           {outputs[i], kInputs},
                           ParamRole::kLinear,
                           train_weights});
  }
  for (int i = 0; i < 3; ++i) {
    unit.params.push_back(
        {std::string("unit.") + names[i] + ".bias", {outputs[i]}, ParamRole::kBias, true});
  }
  if (!train_weights) {
    for (int i : {0, 2}) {
      const int64_t rank = i == 0 ? 3 : 2;
      const std::string module = std::string("unit.") + names[i];
      unit.params.push_back({module + ".lora_A.weight", {rank, kInputs}, ParamRole::kLoraA, true});
      unit.params.push_back(
          {module + ".lora_B.weight", {outputs[i], rank}, ParamRole::kLoraB, true});
    }
  }
  for (int i : {0, 2}) {
    if (!magnitudes) break;
    unit.params.push_back({std::string("unit.") + names[i] + ".lora_magnitude_vector",
                           {outputs[i]},
                           ParamRole::kMagnitude,
                           true});
  }
  return {{unit}};
}

// Random weights, in matrices with room for adapters or dense.
std::unique_ptr<WeightSource> Source(const ModelLayout& layout, bool room) {
  auto source = std::make_unique<ResidentSource>(layout);
  const UnitInfo& unit = layout.units[0];
  if (room) {
    source->AllocateMatrices(unit, 0, at::TensorOptions(at::kFloat));
  } else {
    const Tensor dense = at::empty({18, kInputs});
    source->Set(0, 0, dense.narrow(0, 0, 9));
    source->Set(0, 1, dense.narrow(0, 9, 4));
    source->Set(0, 2, dense.narrow(0, 13, 5));
  }
  for (int i = 0; i < static_cast<int>(unit.params.size()); ++i) {
    const Tensor value = Random(unit.params[i].shape, 10 + i);
    if (i < 3) {
      source->Get(0, i).copy_(value);
    } else {
      source->Set(0, i, value);
    }
  }
  return std::make_unique<AdaptedSource>(layout, std::move(source), kScale);
}

struct Case {
  const char* name;
  bool train_weights;
  bool room;
  double dropout;
  bool dora = false;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class ProjectionTest : public testing::TestWithParam<Case> {};

TEST_P(ProjectionTest, EqualsThePlainFormulaAndItsAutograd) {
  const Case& c = GetParam();
  const ModelLayout layout = Layout(c.train_weights, c.dora);
  const UnitInfo& unit = layout.units[0];
  auto source = Source(layout, c.room);
  AcquiredUnit acquired(*source, layout, 0);
  const DropoutKey key = DropoutKey::Of(1, 2, 3, 4);
  const Pass pass{acquired.weights(), {kScale, c.dropout}, &key};

  // The reference.
  std::vector<Tensor> leaves;
  for (const Tensor& weight : acquired.weights().params) {
    leaves.push_back(weight.clone().set_requires_grad(true));
  }
  const Tensor x_leaf = Random({kTokens, kInputs}, 1).set_requires_grad(true);
  const Tensor addend = Random({kTokens, 18}, 2);
  std::vector<Tensor> outputs;
  for (int i = 0; i < 3; ++i) {
    Tensor y = at::linear(x_leaf, leaves[i], leaves[3 + i]);
    if (!c.train_weights && i != 1) {
      const int a = i == 0 ? 6 : 8;
      Tensor dropped = x_leaf;
      if (c.dropout > 0) {
        dropped = x_leaf * Dropout(at::ones({kTokens, kInputs}), c.dropout, key, 40 + i);
      }
      Tensor change = kScale * at::linear(at::linear(dropped, leaves[a]), leaves[a + 1]);
      if (c.dora) {
        const Tensor& magnitude = leaves[i == 0 ? 10 : 11];
        const Tensor sum = leaves[i] + kScale * at::mm(leaves[a + 1], leaves[a]);
        const Tensor norm = at::linalg_vector_norm(sum, 2, {1}).detach();
        const Tensor of_weight = at::linear(dropped, leaves[i]);
        change = magnitude / norm * (of_weight + change) - of_weight;
      }
      y = y + change;
    }
    outputs.push_back(y);
  }
  const Tensor expected = at::cat(outputs, 1) + addend;
  const Tensor dy_value = Random({kTokens, 18}, 3);
  std::vector<Tensor> inputs = leaves;
  inputs.push_back(x_leaf);
  const auto grads = torch::autograd::grad({expected}, inputs, {dy_value});

  const Projection projection(unit, 0, 40);
  Tensor x = EmptyRows(kTokens, kInputs, projection.spare(), x_leaf.detach());
  x.copy_(x_leaf.detach());
  Tensor y = at::empty({kTokens, projection.outputs()});
  Tensor xa = projection.Forward(y, x, pass, addend);
  EXPECT_LT(RelativeError(y, expected.detach()), 1e-6);

  if (c.dora) {
    // As of rows that were made again for the backward.
    xa = xa.clone();
    SpareColumns(x, projection.spare()).fill_(7);
  }

  MapSink sink(unit);
  UnitGradients gradients(sink, 0);
  Tensor dy = EmptyRows(kTokens, projection.outputs(), projection.spare(), dy_value);
  dy.copy_(dy_value);
  Tensor dx = at::empty({kTokens, kInputs});
  projection.Backward(dy, x, xa, pass, gradients, &dx);
  EXPECT_LT(RelativeError(dx, grads.back()), 1e-6);
  EXPECT_TRUE(at::equal(dy, dy_value));
  for (size_t i = 0; i < unit.params.size(); ++i) {
    if (!unit.params[i].trainable) continue;
    EXPECT_LT(RelativeError(sink.Buffer(0, static_cast<int>(i)), grads[i]), 1e-6)
        << unit.params[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ProjectionTest,
                         testing::Values(Case{"Full", true, true, 0.0},
                                         Case{"Adapters", false, true, 0.0},
                                         Case{"AdaptersWithoutRoom", false, false, 0.0},
                                         Case{"AdaptersWithDropout", false, true, 0.25},
                                         Case{"AdaptersWithDropoutAlone", false, false, 0.25},
                                         Case{"Dora", false, true, 0.0, true},
                                         Case{"DoraWithoutRoom", false, false, 0.0, true},
                                         Case{"DoraWithDropout", false, true, 0.25, true},
                                         Case{"DoraWithDropoutAlone", false, false, 0.25, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// Two adapted linear layers over 4-bit weights.
ModelLayout QuantizedLayout(int64_t rank) {
  UnitInfo unit{"unit", {}, {{0, 1}}};
  unit.params.push_back({"unit.a.weight", {48, 64}, ParamRole::kLinear, false, true});
  unit.params.push_back({"unit.b.weight", {32, 64}, ParamRole::kLinear, false, true});
  for (const char* name : {"a", "b"}) {
    unit.params.push_back(
        {std::string("unit.") + name + ".lora_A.weight", {rank, 64}, ParamRole::kLoraA, true});
  }
  unit.params.push_back({"unit.a.lora_B.weight", {48, rank}, ParamRole::kLoraB, true});
  unit.params.push_back({"unit.b.lora_B.weight", {32, rank}, ParamRole::kLoraB, true});
  return {{unit}};
}

std::unique_ptr<WeightSource> QuantizedWeights(const ModelLayout& layout, at::ScalarType compute,
                                               Communicator& comm) {
  auto quantized = std::make_unique<QuantizedSource>(
      layout, MakeNf4Format(true), QuantizedSource::Options{.compute = compute}, comm);
  auto factors = std::make_unique<ResidentSource>(layout);
  const UnitInfo& unit = layout.units[0];
  for (int i = 0; i < static_cast<int>(unit.params.size()); ++i) {
    const Tensor value = Random(unit.params[i].shape, 20 + i) * 0.1;
    if (i < 2) {
      quantized->Load(0, i, value.view({-1}));
    } else {
      factors->Set(0, i, value);
    }
  }
  auto both = std::make_unique<ComposedSource>();
  both->Add(std::move(quantized));
  both->Add(std::move(factors));
  return std::make_unique<AdaptedSource>(layout, std::move(both), kScale);
}

struct Products {
  Tensor y, dx;
  std::vector<Tensor> gradients;
};

// `made_fp8`: who makes x and dy quantises them.
Products Multiply(const ModelLayout& layout, at::ScalarType compute, double dropout = 0.0,
                  bool made_fp8 = false) {
  const auto comm = MakeLocalCommunicator(at::kCPU);
  auto source = QuantizedWeights(layout, compute, *comm);
  const UnitInfo& unit = layout.units[0];
  const Projection projection(unit, 0, 0);
  const Tensor x_value = Random({kTokens, 64}, 1), dy_value = Random({kTokens, 80}, 2);
  Tensor x = EmptyRows(kTokens, 64, projection.spare(), x_value);
  x.copy_(x_value);
  Tensor dy = EmptyRows(kTokens, 80, projection.spare(), dy_value);
  dy.copy_(dy_value);
  Products result{at::empty({kTokens, 80}), at::empty({kTokens, 64}), {}};
  const DropoutKey key = DropoutKey::Of(1, 2, 3, 4);
  const auto quantise = [made_fp8](Activation x) {
    if (!made_fp8) return Activation(x.rows);
    ops::Fp8Quantize(x.fp8.values, x.fp8.scale, x.rows);
    return x;
  };
  Tensor xa;
  {
    AcquiredUnit acquired(*source, layout, 0, WeightUse::kForward);
    const Pass pass{acquired.weights(), {kScale, dropout}, &key};
    xa = projection.Forward(result.y, quantise(projection.AsInput(x, pass)), pass);
  }
  AcquiredUnit acquired(*source, layout, 0, WeightUse::kBackward);
  MapSink sink(unit);
  UnitGradients gradients(sink, 0);
  const Pass pass{acquired.weights(), {kScale, dropout}, &key};
  projection.Backward(quantise(projection.AsGradient(dy, pass)), x, xa, pass, gradients,
                      &result.dx);
  for (int i = 2; i < 6; ++i) result.gradients.push_back(sink.Buffer(0, i));
  return result;
}

// A value has 3 bits after its first: products of a hundred of them are off by a few percent, and
// adapters that join them as those that do not.
TEST(Fp8ProjectionTest, IsNearThePlainProductsAndKeepsTheAdaptersGradients) {
  for (const int64_t rank : {16, 8}) {
    const ModelLayout layout = QuantizedLayout(rank);
    const Products plain = Multiply(layout, at::kFloat), fp8 = Multiply(layout, at::kFloat8_e4m3fn);
    for (const auto& [actual, expected] :
         {std::pair(fp8.y, plain.y), std::pair(fp8.dx, plain.dx)}) {
      EXPECT_LT(RelativeError(actual, expected), 0.05) << rank;
      EXPECT_GT(RelativeError(actual, expected), 1e-3) << rank;
    }
    for (size_t i = 0; i < plain.gradients.size(); ++i) {
      EXPECT_LT(RelativeError(fp8.gradients[i], plain.gradients[i]), 1e-6) << rank << " " << i;
    }
  }
}

TEST(Fp8ProjectionTest, RowsThatTheirMakerQuantisedGiveTheSameBits) {
  for (const int64_t rank : {16, 8}) {
    for (const double dropout : {0.0, 0.25}) {
      const ModelLayout layout = QuantizedLayout(rank);
      const Products own = Multiply(layout, at::kFloat8_e4m3fn, dropout);
      const Products made = Multiply(layout, at::kFloat8_e4m3fn, dropout, /*made_fp8=*/true);
      EXPECT_TRUE(at::equal(made.y, own.y)) << rank << " " << dropout;
      EXPECT_TRUE(at::equal(made.dx, own.dx)) << rank << " " << dropout;
      for (size_t i = 0; i < own.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(made.gradients[i], own.gradients[i])) << rank << " " << i;
      }
    }
  }
}

TEST(Fp8ProjectionTest, NothingIsMadeInFp8ForPlainProducts) {
  const ModelLayout layout = Layout(/*train_weights=*/false);
  auto source = Source(layout, /*room=*/true);
  const AcquiredUnit acquired(*source, layout, 0);
  const Pass pass{acquired.weights(), {kScale, 0.0}, nullptr};
  const Projection projection(layout.units[0], 0, 0);
  const Tensor rows = Random({kTokens, kInputs}, 1);
  EXPECT_FALSE(projection.AsInput(rows, pass).fp8.values.defined());
  EXPECT_FALSE(projection.AsGradient(rows, pass).fp8.values.defined());
}

// One linear with a bias, and an adapter where the rank is not 0.
ModelLayout LinearLayout(int64_t rank, bool trains_bias) {
  UnitInfo unit{"unit", {}, {{0}}};
  unit.params.push_back({"unit.a.weight", {9, kInputs}, ParamRole::kLinear, rank == 0});
  unit.params.push_back({"unit.a.bias", {9}, ParamRole::kBias, trains_bias});
  if (rank > 0) {
    unit.params.push_back({"unit.a.lora_A.weight", {rank, kInputs}, ParamRole::kLoraA, true});
    unit.params.push_back({"unit.a.lora_B.weight", {9, rank}, ParamRole::kLoraB, true});
  }
  return {{unit}};
}

TEST(LinearProjectionTest, TheProductAddsItsBiasAndItsGradientComesWithDyOrIsSummed) {
  for (const int64_t rank : {0, 2}) {
    for (const bool room : {true, false}) {
      const ModelLayout layout = LinearLayout(rank, /*trains_bias=*/true);
      auto resident = std::make_unique<ResidentSource>(layout);
      if (room) resident->AllocateMatrices(layout.units[0], 0, at::TensorOptions(at::kFloat));
      for (int i = 0; i < static_cast<int>(layout.units[0].params.size()); ++i) {
        const Tensor value = Random(layout.units[0].params[i].shape, 10 + i);
        if (i == 0 && room) {
          resident->Get(0, 0).copy_(value);
        } else {
          resident->Set(0, i, value);
        }
      }
      AdaptedSource source(layout, std::move(resident), kScale);
      const AcquiredUnit acquired(source, layout, 0);
      const UnitWeights& weights = acquired.weights();
      const Pass pass{weights, {kScale, 0.0}, nullptr};
      const Projection projection(layout.units[0], 0, 0);
      const Tensor x = EmptyRows(kTokens, kInputs, rank, Random({1}, 0));
      x.copy_(Random({kTokens, kInputs}, 1));
      const Tensor addend = Random({kTokens, 9}, 2), dy = projection.EmptyGradientRows(x);
      dy.copy_(Random({kTokens, 9}, 3));
      Tensor expected = at::linear(x, weights[0], weights[1]);
      if (rank > 0) {
        expected.add_(at::linear(at::linear(x, weights[2]), weights[3]), kScale);
      }
      Tensor y = at::empty({kTokens, 9});
      projection.Forward(y, x, pass);
      EXPECT_LT(RelativeError(y, expected), 1e-6) << rank << " " << room;
      const Tensor xa = projection.Forward(y, x, pass, addend);
      EXPECT_LT(RelativeError(y, expected + addend), 1e-6) << rank << " " << room;
      MapSink sink(layout.units[0]);
      UnitGradients gradients(sink, 0);
      projection.Backward(dy, x, xa, pass, gradients, nullptr);
      const Tensor bias = sink.Buffer(0, 1);
      EXPECT_LT(RelativeError(bias, dy.sum(0)), 1e-6);
      Activation with_sums = projection.AsGradient(dy, pass);
      with_sums.sums.fill_(5);
      bias.zero_();
      projection.Backward(with_sums, x, xa, pass, gradients, nullptr);
      EXPECT_TRUE(at::equal(bias, at::full({9}, 5.0)));
    }
  }
}

// How much of `expected` there is in `change`: 1 where all of it arrived.
double ShareOf(const Tensor& change, const Tensor& expected) {
  const Tensor d = change.to(at::kDouble), e = expected.to(at::kDouble);
  return ((d * e).sum() / (e * e).sum()).item<double>();
}

// A step of AdamW moves a factor by 1e-4, and what that does to an output is less than half of the
// distance of bf16 numbers of its size.
TEST(LinearProjectionTest, WhatASmallAdapterDoesIsNotLostInTheRoundingOfBf16) {
  constexpr int64_t kSize = 256, kRank = 8, kRows = 64;
  constexpr double kSmall = 1e-4;
  UnitInfo unit{"unit", {}, {{0}}};
  unit.params.push_back({"unit.a.weight", {kSize, kSize}, ParamRole::kLinear});
  unit.params.push_back({"unit.a.lora_A.weight", {kRank, kSize}, ParamRole::kLoraA, true});
  unit.params.push_back({"unit.a.lora_B.weight", {kSize, kRank}, ParamRole::kLoraB, true});
  const ModelLayout layout{{unit}};
  const auto bf16 = [](const Tensor& value) { return value.to(at::kBFloat16); };
  const Tensor a = bf16(Random({kRank, kSize}, 2) / 16);
  const Tensor weight = bf16(Random({kSize, kSize}, 1) / 16),
               x_value = bf16(Random({kRows, kSize}, 4));
  const Tensor dy_value = bf16(Random({kRows, kSize}, 5)), addend = bf16(Random({kRows, kSize}, 6));
  for (const bool room : {true, false}) {
    std::vector<Tensor> y, sum, dx;
    for (const double size : {0.0, kSmall}) {
      auto resident = std::make_unique<ResidentSource>(layout);
      if (room) resident->AllocateMatrices(unit, 0, weight.options());
      if (room) {
        resident->Get(0, 0).copy_(weight);
      } else {
        resident->Set(0, 0, weight);
      }
      resident->Set(0, 1, a);
      resident->Set(0, 2, bf16(Random({kSize, kRank}, 3).sign() * size));
      AdaptedSource source(layout, std::move(resident), kScale);
      const AcquiredUnit acquired(source, layout, 0);
      const Pass pass{acquired.weights(), {kScale, 0.0}, nullptr};
      const Projection projection(unit, 0, 0);
      const Tensor x = EmptyRows(kRows, kSize, kRank, x_value).copy_(x_value);
      y.push_back(at::empty({kRows, kSize}, weight.options()));
      sum.push_back(at::empty({kRows, kSize}, weight.options()));
      dx.push_back(at::empty({kRows, kSize}, weight.options()));
      projection.Forward(sum.back(), x, pass, addend);
      const Tensor xa = projection.Forward(y.back(), x, pass);
      MapSink sink(unit);
      UnitGradients gradients(sink, 0);
      const Tensor dy = projection.EmptyGradientRows(x).copy_(dy_value);
      projection.Backward(dy, x, xa, pass, gradients, &dx.back());
    }
    const Tensor b = Random({kSize, kRank}, 3).sign() * kSmall;
    const Tensor change = kScale * at::mm(b, a.to(at::kFloat));  // of the weight
    const Tensor of_y = at::linear(x_value.to(at::kFloat), change);
    EXPECT_NEAR(ShareOf(y[1] - y[0], of_y), 1.0, 0.2) << room;
    EXPECT_NEAR(ShareOf(sum[1] - sum[0], of_y), 1.0, 0.3) << room;
    EXPECT_NEAR(ShareOf(dx[1] - dx[0], at::mm(dy_value.to(at::kFloat), change)), 1.0, 0.2) << room;
  }
}

TEST(LinearProjectionTest, SumsAreMadeOnlyForTheTrainedBiasOfOneLinear) {
  const Tensor like = at::zeros({kTokens, 9});
  EXPECT_TRUE(Projection(LinearLayout(0, true).units[0], 0, 0).EmptySums(like).defined());
  EXPECT_FALSE(Projection(LinearLayout(2, false).units[0], 0, 0).EmptySums(like).defined());
  EXPECT_FALSE(Projection(Layout(true).units[0], 0, 0).EmptySums(like).defined());
}

TEST(RowsTest, AnActivationWithoutRoomIsRefused) {
  const Tensor like = at::zeros({1});
  EXPECT_EQ(Widened(EmptyRows(3, 60, 4, like), 4).sizes(), at::IntArrayRef({3, 64}));
  EXPECT_EQ(EmptyRows(3, 60, 5, like).stride(0), 128);
  EXPECT_THROW(Widened(EmptyRows(3, 60, 0, like), 4), InternalError);
}

}  // namespace
}  // namespace sft::engine
