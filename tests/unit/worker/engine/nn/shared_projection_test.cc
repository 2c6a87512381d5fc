#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/nn/map_sink.h"
#include "worker/engine/base/error.h"
#include "worker/engine/nn/projection.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/nn/token_exchange.h"
#include "worker/engine/weights/adapted_source.h"
#include "worker/engine/weights/tensor_cut.h"
#include "worker/engine/weights/weight_source.h"

// Linears whose matrices ranks share, against those of one rank. All values are small integers and
// powers of two, whose sums are exact in any order: the bits have to agree, and a sum that is
// missing or made twice is off by a factor.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kSharedTokens = 24, kRank = 3;
constexpr double kSharedScale = 0.5;

struct Kind {
  const char* name;
  bool cuts_inputs;
  bool train_weights;
  bool room;       // for adapters, beside the weights
  int heads = 12;  // parts at most that the last linear's outputs have

  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

// Two linears of one input, the second made of two; or one. Each has a bias.
ModelLayout WholeLayout(const Kind& kind) {
  struct Linear {
    std::string name;
    int64_t outputs, inputs;
    std::vector<int64_t> joined;
  };
  std::vector<Linear> linears;
  if (kind.cuts_inputs) {
    linears = {{"o", 10, 24, {}}};
  } else {
    linears = {{"a", 12, 8, {}}, {"b", 36, 8, {12, 24}}};
  }
  UnitInfo unit{"unit", {}, {{}}};
  for (size_t i = 0; i < linears.size(); ++i)
    unit.shared_matrices[0].push_back(static_cast<int>(i));
  const auto add = [&](const Linear& linear, const char* what, std::vector<int64_t> shape,
                       ParamRole role, bool trainable) {
    ParamInfo param{"unit." + linear.name + what, std::move(shape), role, trainable};
    if (role != ParamRole::kLoraA) param.joined = linear.joined;
    unit.params.push_back(std::move(param));
  };
  for (const Linear& linear : linears) {
    add(linear, ".weight", {linear.outputs, linear.inputs}, ParamRole::kLinear, kind.train_weights);
  }
  for (const Linear& linear : linears) {
    add(linear, ".bias", {linear.outputs}, ParamRole::kBias, true);
    if (kind.train_weights) continue;
    add(linear, ".lora_A.weight", {kRank, linear.inputs}, ParamRole::kLoraA, true);
    add(linear, ".lora_B.weight", {linear.outputs, kRank}, ParamRole::kLoraB, true);
  }
  return {{unit}};
}

// The same as one of the ranks has it.
ModelLayout OwnLayout(const Kind& kind, const ModelLayout& whole, int ranks, int rank) {
  ModelLayout own = whole;
  for (ParamInfo& param : own.units[0].params) {
    const bool factor = param.role == ParamRole::kLoraA;
    if (kind.cuts_inputs) {
      if (param.role == ParamRole::kLinear || factor) param.shape[1] /= ranks;
    } else if (!factor) {
      const bool last = param.name.starts_with("unit.b");
      param.shape[0] /= last ? std::min(ranks, kind.heads) : ranks;
    }
  }
  return CutOver(whole, own, ranks, rank);
}

Tensor Integers(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(-2, 3, shape, generator, at::TensorOptions(at::kFloat));
}

std::unique_ptr<WeightSource> SharedSource(const ModelLayout& layout, const ModelLayout& whole,
                                           bool room) {
  auto source = std::make_unique<ResidentSource>(layout);
  const UnitInfo& unit = layout.units[0];
  const size_t linears = unit.shared_matrices[0].size();
  if (room) source->AllocateMatrices(unit, 0, at::TensorOptions(at::kFloat));
  int64_t rows = 0, first = 0;
  for (size_t i = 0; i < linears; ++i) rows += unit.params[i].shape[0];
  const Tensor dense = at::empty({rows, unit.params[0].shape[1]});
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const Tensor value = PartOf(unit.params[i], Integers(whole.units[0].params[i].shape, 10 + i));
    const int index = static_cast<int>(i);
    if (i >= linears) {
      source->Set(0, index, value);
      continue;
    }
    if (!room) source->Set(0, index, dense.narrow(0, first, value.size(0)));
    source->Get(0, index).copy_(value);
    first += value.size(0);
  }
  return std::make_unique<AdaptedSource>(layout, std::move(source), kSharedScale);
}

struct SharedProducts {
  Tensor y, dx;
  std::vector<Tensor> gradients;  // by parameter; undefined: not trained
};

Tensor WithRoom(const Tensor& values, int64_t spare) {
  Tensor rows = EmptyRows(values.size(0), values.size(1), spare, values);
  rows.copy_(values);
  return rows;
}

SharedProducts MultiplyShared(const ModelLayout& layout, const ModelLayout& whole, const Kind& kind,
                              const Tensor& x, const Tensor& dy, const Tensor& addend,
                              const TokenExchange* sharers) {
  auto source = SharedSource(layout, whole, kind.room);
  const UnitInfo& unit = layout.units[0];
  AcquiredUnit acquired(*source, layout, 0);
  const Pass pass{.weights = acquired.weights(), .lora = {kSharedScale, 0.0}, .sharers = sharers};
  const Projection projection(unit, 0, 0);
  const Tensor input = WithRoom(x, projection.spare());
  SharedProducts result;
  result.y = at::empty({dy.size(0), projection.outputs()});
  const Tensor xa = projection.Forward(result.y, input, pass, addend);
  MapSink sink(unit);
  UnitGradients gradients(sink, 0);
  result.dx = at::empty_like(x);
  projection.Backward(WithRoom(dy, projection.spare()), input, xa, pass, gradients, &result.dx);
  for (size_t i = 0; i < unit.params.size(); ++i) {
    result.gradients.push_back(sink.Buffer(0, static_cast<int>(i)));
  }
  return result;
}

// The rank's columns of values with a column for each output of the layout's linears.
Tensor OwnOutputs(const ModelLayout& layout, const Tensor& values) {
  std::vector<Tensor> columns;
  int64_t first = 0;
  for (const int index : layout.units[0].shared_matrices[0]) {
    ParamInfo like = layout.units[0].params[static_cast<size_t>(index)];
    const int64_t outputs = like.whole_shape()[0];
    like.shape[1] = like.cut.whole[1] = values.size(0);
    columns.push_back(PartOf(like, values.narrow(1, first, outputs).t().contiguous()).t());
    first += outputs;
  }
  return at::cat(columns, 1);
}

// Of several ranks that have the same outputs the gradient comes from the first.
Tensor OwnGradient(const ModelLayout& layout, const Tensor& dy, int rank) {
  Tensor own = OwnOutputs(layout, dy).clone();
  int64_t first = 0;
  for (const int index : layout.units[0].shared_matrices[0]) {
    const ParamInfo& weight = layout.units[0].params[static_cast<size_t>(index)];
    if (rank % weight.cut.sharers() != 0) own.narrow(1, first, weight.shape[0]).zero_();
    first += weight.shape[0];
  }
  return own;
}

class SharedProjectionTest : public testing::TestWithParam<Kind> {};

TEST_P(SharedProjectionTest, HasTheBitsOfOneRank) {
  const Kind& kind = GetParam();
  const ModelLayout whole = WholeLayout(kind);
  const std::vector<ParamInfo>& params = whole.units[0].params;
  const int64_t inputs = params[0].shape[1];
  int64_t outputs = 0;
  for (const int index : whole.units[0].shared_matrices[0]) {
    outputs += params[static_cast<size_t>(index)].shape[0];
  }
  const Tensor x = Integers({kSharedTokens, inputs}, 1), dy = Integers({kSharedTokens, outputs}, 2);
  const Tensor addend = kind.cuts_inputs ? Integers({kSharedTokens, outputs}, 3) : Tensor();
  const SharedProducts expected = MultiplyShared(whole, whole, kind, x, dy, addend, nullptr);
  for (const int ranks : {2, 3, 4}) {
    if (kind.heads < 12 && ranks % kind.heads != 0) continue;
    RunRanks(ranks, [&](Communicator& comm) {
      const TokenExchange sharers(comm);
      const ModelLayout own = OwnLayout(kind, whole, ranks, comm.rank());
      const auto tokens = [&](const Tensor& all) {
        const int64_t count = kSharedTokens / ranks;
        return all.narrow(0, comm.rank() * count, count).contiguous();
      };
      const auto columns = [&](const Tensor& all) {
        const int64_t count = inputs / ranks;
        return all.narrow(1, comm.rank() * count, count).contiguous();
      };
      const SharedProducts actual =
          kind.cuts_inputs
              ? MultiplyShared(own, whole, kind, columns(x), tokens(dy), tokens(addend), &sharers)
              : MultiplyShared(own, whole, kind, tokens(x), OwnGradient(own, dy, comm.rank()), {},
                               &sharers);
      SCOPED_TRACE(testing::Message() << "rank " << comm.rank() << " of " << ranks);
      EXPECT_TRUE(
          at::equal(actual.y, kind.cuts_inputs ? tokens(expected.y) : OwnOutputs(own, expected.y)));
      EXPECT_TRUE(
          at::equal(actual.dx, kind.cuts_inputs ? columns(expected.dx) : tokens(expected.dx)));
      for (size_t i = 0; i < params.size(); ++i) {
        if (!params[i].trainable) continue;
        const ParamInfo& param = own.units[0].params[i];
        const Tensor gradient = actual.gradients[i];
        const Tensor part = PartOf(param, expected.gradients[i]);
        // Those that are sums over the ranks are parts of it before.
        if (param.cut.sharers() == ranks) {
          EXPECT_FALSE(at::equal(gradient, part)) << param.name;
          comm.AllReduceSum(gradient);
        } else if (param.cut.sharers() > 1) {
          std::vector<int> members;
          for (int member = 0; member < param.cut.sharers(); ++member) {
            members.push_back(param.cut.part * param.cut.sharers() + member);
          }
          MakeSubgroup(comm, members)->AllReduceSum(gradient);
        }
        EXPECT_TRUE(at::equal(gradient, part)) << param.name;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SharedProjectionTest,
                         testing::Values(Kind{"OutputsFull", false, true, true},
                                         Kind{"OutputsAdapters", false, false, true},
                                         Kind{"OutputsAdaptersWithoutRoom", false, false, false},
                                         Kind{"FewHeadsFull", false, true, true, 2},
                                         Kind{"FewHeadsAdapters", false, false, true, 2},
                                         Kind{"InputsFull", true, true, true},
                                         Kind{"InputsAdapters", true, false, true},
                                         Kind{"InputsAdaptersWithoutRoom", true, false, false}),
                         [](const auto& info) { return std::string(info.param.name); });

// A part of a matrix is of no use alone.
TEST(SharedProjectionTest, WithoutTheOtherRanksFails) {
  const Kind kind{"", false, true, true};
  const ModelLayout whole = WholeLayout(kind), own = OwnLayout(kind, whole, 2, 0);
  EXPECT_THROW(
      MultiplyShared(own, whole, kind, Integers({4, 8}, 1), Integers({4, 24}, 2), {}, nullptr),
      InternalError);
}

}  // namespace
}  // namespace sft::engine
