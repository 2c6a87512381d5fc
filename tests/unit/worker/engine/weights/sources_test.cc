#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/base/error.h"
#include "worker/engine/kernels/int8_format.h"
#include "worker/engine/weights/quantized_source.h"
#include "worker/engine/weights/sharded_source.h"
#include "worker/engine/weights/slot_pool.h"

namespace sft::engine {
namespace {

using at::Tensor;

// Three units: one of 3 elements (fewer than ranks), one that is cut within parameters, one larger.
ModelLayout Layout(bool quantized) {
  ModelLayout layout;
  layout.units.push_back({"small", {{"s.weight", {3}}}});
  layout.units.push_back({"middle", {{"m.weight", {5, 7}}, {"m.bias", {11}}}});
  layout.units.push_back({"large", {{"l.weight", {130, 300}}, {"k.weight", {64, 64}}}});
  for (UnitInfo& unit : layout.units) {
    for (ParamInfo& param : unit.params) param.quantized = quantized;
  }
  return layout;
}

Tensor Values(const ModelLayout& layout, int unit, int param) {
  return at::randn(layout.units[unit].params[param].shape,
                   at::detail::createCPUGenerator(100 * unit + param + 1), at::kFloat);
}

void ExpectUnits(int world, bool on_host) {
  const ModelLayout layout = Layout(false);
  RunRanks(world, [&](Communicator& comm) {
    ShardedSource source(layout, comm);
    for (int unit = 0; unit < layout.size(); ++unit) {
      const FlatLayout flat(layout.units[unit], [](const ParamInfo&) { return true; });
      std::vector<int64_t> counts = PartSizes(flat.size(), comm.world());
      const int64_t begin =
          std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0});
      Tensor shard = at::empty({counts[comm.rank()]}, at::kFloat);
      for (const auto& piece : flat.Slice(begin, shard.numel())) {
        shard.narrow(0, piece.begin - begin, piece.count)
            .copy_(
                Values(layout, unit, piece.param).view({-1}).narrow(0, piece.first, piece.count));
      }
      source.Set(unit, flat, counts, shard, on_host);
    }
    for (int unit : {0, 1, 2, 1, 0}) {
      AcquiredUnit acquired(source, layout, unit);
      source.Prefetch((unit + 1) % layout.size(), WeightUse::kBoth);
      for (size_t i = 0; i < acquired.weights().params.size(); ++i) {
        EXPECT_TRUE(
            at::equal(acquired.weights().params[i], Values(layout, unit, static_cast<int>(i))));
      }
    }
    source.Invalidate();
  });
}

TEST(ShardedSourceTest, GathersUnitsWhoseShardsAreUnevenOrEmpty) {
  ExpectUnits(5, /*on_host=*/false);
}

TEST(ShardedSourceTest, CopiesShardsOfTheHostFirst) {
  for (const int world : {1, 2, 5}) ExpectUnits(world, /*on_host=*/true);
}

void LoadAll(QuantizedSource& source, const ModelLayout& layout) {
  for (int unit = 0; unit < layout.size(); ++unit) {
    for (int i = 0; i < static_cast<int>(layout.units[unit].params.size()); ++i) {
      const auto [first, count] = source.RangeOf(unit, i);
      source.Load(unit, i, Values(layout, unit, i).view({-1}).narrow(0, first, count));
    }
  }
}

// Units, by default three, of two quantised weights that share a matrix, adapted with ranks 3
// and 2.
ModelLayout AdaptedLayout(const std::string& names = "abc") {
  ModelLayout layout;
  for (const char name : names) {
    const std::string prefix(1, name);
    UnitInfo unit{prefix, {}, {{0, 1}}};
    unit.params.push_back({prefix + ".p.weight", {40, 70}, ParamRole::kLinear, false, true});
    unit.params.push_back({prefix + ".q.weight", {24, 70}, ParamRole::kLinear, false, true});
    unit.params.push_back({prefix + ".p.lora_A.weight", {3, 70}, ParamRole::kLoraA, true});
    unit.params.push_back({prefix + ".q.lora_A.weight", {2, 70}, ParamRole::kLoraA, true});
    unit.params.push_back({prefix + ".p.lora_B.weight", {40, 3}, ParamRole::kLoraB, true});
    unit.params.push_back({prefix + ".q.lora_B.weight", {24, 2}, ParamRole::kLoraB, true});
    layout.units.push_back(std::move(unit));
  }
  return layout;
}

void LoadQuantized(QuantizedSource& source, const ModelLayout& layout) {
  for (int unit = 0; unit < layout.size(); ++unit) {
    for (int i : {0, 1}) {
      const auto [first, count] = source.RangeOf(unit, i);
      source.Load(unit, i, Values(layout, unit, i).view({-1}).narrow(0, first, count));
    }
  }
}

enum class Format { kNf4, kNf4DoubleQuant, kInt8, kPlain };

class QuantizedSourceTest : public testing::TestWithParam<Format> {
 protected:
  static std::unique_ptr<QuantFormat> MakeFormat() {
    if (GetParam() == Format::kInt8) return MakeInt8Format();
    if (GetParam() == Format::kPlain) return MakePlainFormat(at::kFloat);
    return MakeNf4Format(GetParam() == Format::kNf4DoubleQuant);
  }
};

TEST_P(QuantizedSourceTest, ShardsOfRawBytesGiveTheBitsOfTheWholeBase) {
  const ModelLayout layout = Layout(true);
  const auto local = MakeLocalCommunicator(at::kCPU);
  QuantizedSource whole(layout, MakeFormat(), {.compute = at::kBFloat16}, *local);
  LoadAll(whole, layout);
  std::vector<std::vector<Tensor>> expected;
  for (int unit = 0; unit < layout.size(); ++unit) {
    AcquiredUnit acquired(whole, layout, unit);
    expected.emplace_back();
    for (const Tensor& weight : acquired.weights().params)
      expected.back().push_back(weight.clone());
  }
  // Unit "large" has 4 cut units of NF4: with 3 ranks uneven, with 6 some ranks hold nothing. Its
  // 169 of INT8 are cut within rows; of the units before it some ranks hold nothing.
  const auto expect_the_same = [&](int world, bool on_host) {
    RunRanks(world, [&](Communicator& comm) {
      QuantizedSource source(
          layout, MakeFormat(),
          {.compute = at::kBFloat16, .sharded = true, .run = {.blocks_on_host = on_host}}, comm);
      LoadAll(source, layout);
      for (int unit : {0, 1, 2, 1}) {
        AcquiredUnit acquired(source, layout, unit);
        for (size_t i = 0; i < acquired.weights().params.size(); ++i) {
          EXPECT_TRUE(at::equal(acquired.weights().params[i], expected[unit][i]))
              << "world " << world << " unit " << unit << " parameter " << i;
        }
      }
      EXPECT_TRUE(!on_host || source.ResidentBytes() < whole.ResidentBytes());
    });
  };
  for (int world : {2, 3, 6}) expect_the_same(world, /*on_host=*/false);
  for (int world : {1, 3}) expect_the_same(world, /*on_host=*/true);
}

TEST_P(QuantizedSourceTest, KeptBlocksHaveTheSameBitsAndAreWrittenOnce) {
  const ModelLayout layout = AdaptedLayout("abcd");
  const auto local = MakeLocalCommunicator(at::kCPU);
  QuantizedSource fresh(layout, MakeFormat(), {}, *local);
  QuantizedSource kept(layout, MakeFormat(), {.run = {.kept = 2}}, *local);
  LoadQuantized(fresh, layout);
  LoadQuantized(kept, layout);
  for (int round : {0, 1}) {
    for (int unit : {0, 1, 2}) {
      AcquiredUnit expected(fresh, layout, unit);
      AcquiredUnit actual(kept, layout, unit);
      for (int i : {0, 1}) {
        EXPECT_TRUE(at::equal(actual.weights()[i], expected.weights()[i])) << unit;
      }
      // Units 1 and 2, the blocks, are kept; unit 0 goes through a slot, which keeps it while there
      // is room.
      EXPECT_EQ(actual.weights().rewritten != 0, round == 0) << unit;
    }
  }
}

// One block after another forwards, then backwards, as a decoder walks; what each acquisition found
// written anew. All weights are those of `plain`.
std::vector<bool> Walk(QuantizedSource& source, QuantizedSource& plain, const ModelLayout& layout) {
  std::vector<bool> rewritten;
  const auto visit = [&](int unit, WeightUse use) {
    AcquiredUnit acquired(source, layout, unit, use);
    rewritten.push_back(acquired.weights().rewritten != 0);
    AcquiredUnit expected(plain, layout, unit);
    for (int i : {0, 1}) {
      EXPECT_TRUE(at::equal(acquired.weights()[i], expected.weights()[i])) << unit << " " << i;
    }
  };
  for (int unit = 0; unit < layout.size(); ++unit) visit(unit, WeightUse::kForward);
  for (int unit = layout.size() - 1; unit >= 0; --unit) visit(unit, WeightUse::kBackward);
  return rewritten;
}

TEST_P(QuantizedSourceTest, BlocksCarryTheirWeightsFromABackwardToTheNextForward) {
  const ModelLayout layout = AdaptedLayout("abcdefgh");
  const auto local = MakeLocalCommunicator(at::kCPU);
  QuantizedSource source(layout, MakeFormat(), {.run = {.kept = 1, .carried = 2}}, *local);
  QuantizedSource plain(layout, MakeFormat(), {}, *local);
  LoadQuantized(source, layout);
  LoadQuantized(plain, layout);
  // The one slot that this walk needs holds unit 7, the head, at the turn and unit 0 at the end. Of
  // the blocks, units 1 to 6, the last keeps its own weights; the first two carry theirs, and are
  // not written again in the forward.
  const std::vector<bool> backward = {false, false, true, true, true, true, true, true};
  std::vector<bool> first(8, true), later = {false, false, false, true, true, true, false, true};
  first.insert(first.end(), backward.begin(), backward.end());
  later.insert(later.end(), backward.begin(), backward.end());
  EXPECT_EQ(Walk(source, plain, layout), first);
  EXPECT_EQ(Walk(source, plain, layout), later);
  {
    // Acquired three times at once: the last release ends what was carried.
    const AcquiredUnit outer(source, layout, 1, WeightUse::kForward);
    EXPECT_EQ(AcquiredUnit(source, layout, 1, WeightUse::kForward).weights().rewritten, 0);
    EXPECT_EQ(AcquiredUnit(source, layout, 1, WeightUse::kForward).weights().rewritten, 0);
  }
  // A forward alone, as of an evaluation, ends it.
  AcquiredUnit(source, layout, 2, WeightUse::kForward);
  for (int unit : {1, 2}) {
    EXPECT_NE(AcquiredUnit(source, layout, unit, WeightUse::kForward).weights().rewritten, 0);
  }
}

TEST_P(QuantizedSourceTest, WeightsThatShareAMatrixStandInIt) {
  const ModelLayout layout = AdaptedLayout();
  const auto local = MakeLocalCommunicator(at::kCPU);
  QuantizedSource source(layout, MakeFormat(), {}, *local);
  LoadQuantized(source, layout);
  AcquiredUnit acquired(source, layout, 1);
  const UnitWeights& weights = acquired.weights();
  ASSERT_EQ(weights.matrices.size(), 1U);
  const Tensor& matrix = weights.matrices[0];
  EXPECT_EQ(matrix.sizes(), at::IntArrayRef({40 + 24 + 5, 70 + 5}));
  EXPECT_EQ(matrix.stride(0), 128);
  EXPECT_TRUE(at::equal(matrix.narrow(0, 0, 40).narrow(1, 0, 70), weights[0]));
  EXPECT_TRUE(at::equal(matrix.narrow(0, 40, 24).narrow(1, 0, 70), weights[1]));
}

// Weights that a checkpoint has in 4 bits come as bytes; one that it left plain stands among them.
ModelLayout WithPlainMember() {
  ModelLayout layout = AdaptedLayout("abc");
  for (UnitInfo& unit : layout.units) unit.params[1].plain_among_quantized = true;
  return layout;
}

void LoadBytesAndPlain(QuantizedSource& source, const ModelLayout& layout, Communicator& comm) {
  const auto format = MakeNf4Format(true);
  for (int unit = 0; unit < layout.size(); ++unit) {
    const std::vector<int64_t> counts = {40 * 70};
    const auto local = MakeLocalCommunicator(at::kCPU);
    const QuantizedPart whole =
        format->Quantize(Values(layout, unit, 0).view({-1}), 70, counts, *local);
    const auto [first, count] = source.RangeOf(unit, 0);
    source.LoadBytes(unit, 0, count > 0 ? whole : QuantizedPart{{}, whole.constants, {}});
    EXPECT_EQ(source.RangeOf(unit, 1).count, 0);
    source.LoadPlain(unit, 1, Values(layout, unit, 1));
  }
  EXPECT_GE(source.ResidentBytes(), 3 * (24 * 70 * 4)) << comm.rank();
}

TEST(StoredWeightsTest, APlainWeightStandsAmongQuantisedOnes) {
  const ModelLayout layout = WithPlainMember();
  const auto local = MakeLocalCommunicator(at::kCPU);
  const ModelLayout all = AdaptedLayout("abc");
  QuantizedSource quantised(all, MakeNf4Format(true), {}, *local);
  LoadQuantized(quantised, all);
  RunRanks(2, [&](Communicator& comm) {
    for (const bool sharded : {false, true}) {
      QuantizedSource source(layout, MakeNf4Format(true), {.sharded = sharded}, comm);
      LoadBytesAndPlain(source, layout, comm);
      for (int unit : {0, 1, 2, 1}) {
        const AcquiredUnit acquired(source, layout, unit);
        EXPECT_TRUE(at::equal(acquired.weights()[1], Values(layout, unit, 1)));
        EXPECT_EQ(acquired.weights().matrices.size(), 1U);
      }
    }
  });
  QuantizedSource source(layout, MakeNf4Format(true), {}, *local);
  LoadBytesAndPlain(source, layout, *local);
  const AcquiredUnit actual(source, layout, 1), expected(quantised, layout, 1);
  EXPECT_TRUE(at::equal(actual.weights()[0], expected.weights()[0]));
}

TEST(StoredWeightsTest, APlainWeightIsPartOfAnFp8Matrix) {
  const ModelLayout layout = WithPlainMember();
  const auto local = MakeLocalCommunicator(at::kCPU);
  QuantizedSource source(layout, MakeNf4Format(true), {.compute = at::kFloat8_e4m3fn}, *local);
  LoadBytesAndPlain(source, layout, *local);
  const AcquiredUnit acquired(source, layout, 1);
  const Fp8Matrix& matrix = acquired.weights().fp8[0];
  const Tensor plain = Values(layout, 1, 1);
  const Tensor forward = matrix.forward.narrow(0, 40, 24).narrow(1, 0, 70).to(at::kFloat) *
                         matrix.forward_scale.narrow(0, 40, 24).unsqueeze(1);
  const Tensor backward =
      matrix.backward.narrow(1, 40, 24).to(at::kFloat) * matrix.backward_scale.unsqueeze(1);
  // Three bits of mantissa, and what is small beside the largest of a row.
  for (const Tensor& error : {forward - plain, backward - plain.t()}) {
    EXPECT_LT(error.norm().item<float>(), 0.04f * plain.norm().item<float>());
  }
}

TEST(JoinMatricesTest, RefusesWeightsThatLieApart) {
  const ModelLayout layout = AdaptedLayout();
  UnitWeights weights(layout.units[0]);
  weights[0] = at::zeros({40, 70});
  weights[1] = at::zeros({24, 70});
  EXPECT_THROW(JoinMatrices(layout.units[0], weights), InternalError);
}

std::string NameOf(Format format) {
  if (format == Format::kInt8) return "Int8";
  return format == Format::kNf4 ? "Nf4" : "Nf4DoubleQuant";
}

void PrintTo(Format format, std::ostream* out) { *out << NameOf(format); }

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedSourceTest,
                         testing::Values(Format::kNf4, Format::kNf4DoubleQuant, Format::kInt8),
                         [](const auto& info) { return NameOf(info.param); });

TEST(QuantFormatTest, BytesCountWholeCutUnits) {
  // 16,384 elements: 8,192 bytes of codes, 256 of absmax codes, one nested absmax.
  EXPECT_EQ(MakeNf4Format(true)->Bytes(16385), 2 * (8192 + 256 + 4));
  EXPECT_EQ(MakeNf4Format(false)->Bytes(16384), 8192 + 1024);
  EXPECT_EQ(MakeInt8Format()->Bytes(257), 2 * 256);
}

TEST(QuantFormatTest, Int8HasTheScaleOfEachWholeRowOnEveryRank) {
  const int64_t columns = 100;
  const Tensor weight = at::randn({70, columns}, at::detail::createCPUGenerator(5), at::kFloat);
  const auto format = MakeInt8Format();
  const std::vector<int64_t> counts = {0, 5120, 256, 0, 1624};
  RunRanks(5, [&](Communicator& comm) {
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0});
    const QuantizedPart part = format->Quantize(
        weight.view({-1}).narrow(0, first, counts[comm.rank()]), columns, counts, comm);
    EXPECT_TRUE(at::equal(part.constants, weight.abs().amax({1}) * kInt8Step));
    EXPECT_EQ(part.planes[0].numel(), format->CutUnits(counts[comm.rank()]) * 256);
  });
}

TEST(QuantFormatTest, Int8IsWithinHalfAStepOfEveryRowsScale) {
  const int64_t rows = 50, columns = 300;
  const Tensor spread = at::linspace(-12, 3, rows, at::kFloat).exp().unsqueeze(1);
  const Tensor weight =
      at::randn({rows, columns}, at::detail::createCPUGenerator(6), at::kFloat) * spread;
  const auto local = MakeLocalCommunicator(at::kCPU);
  const auto format = MakeInt8Format();
  const std::vector<int64_t> counts = {rows * columns};
  const QuantizedPart part = format->Quantize(weight.view({-1}), columns, counts, *local);
  Tensor out = at::empty({rows, columns}, at::kFloat);
  format->Dequantize(out, part.planes, part.constants);
  // One half, and what rounding 127 / absmax and the products adds.
  const Tensor steps = (out - weight).abs() / part.constants.unsqueeze(1);
  EXPECT_LE(steps.max().item<float>(), 0.5f + 5e-5f);
}

TEST(SlotPoolTest, KeepsReleasedContentUntilTheSlotIsNeeded) {
  SlotPool pool;
  const auto options = at::TensorOptions(at::kFloat);
  pool.Pin(pool.Take(1, 8, options));
  pool.Unpin(1);
  EXPECT_NE(pool.Find(1), nullptr);
  pool.Pin(pool.Take(2, 8, options));
  pool.Pin(pool.Take(3, 8, options));
  pool.Pin(pool.Take(4, 8, options));
  EXPECT_EQ(pool.Find(1), nullptr);
  EXPECT_THROW(pool.Take(5, 8, options), InternalError);
  EXPECT_THROW(pool.Unpin(1), InternalError);
}

// As a Gemma 4 E model's units are walked: its blocks have four sizes, its embedding is larger than
// several blocks, and the head reads it again.
TEST(SlotPoolTest, BlocksOfDifferentSizesLeaveTheEmbeddingWhereItIs) {
  SlotPool pool;
  const auto options = at::TensorOptions(at::kFloat);
  const auto walk = [&](int unit, int64_t elements) {
    if (pool.Find(unit) == nullptr) pool.Take(unit, elements, options);
    SlotPool::Slot& slot = *pool.Find(unit);
    EXPECT_GE(slot.buffer.numel(), elements);
    pool.Pin(slot);
    pool.Unpin(unit);
  };
  walk(0, 1000);
  const int64_t sizes[] = {40, 60, 45, 70, 65};
  for (int block = 0; block < 5; ++block) walk(block + 1, sizes[block]);
  EXPECT_NE(pool.Find(0), nullptr);
  EXPECT_LE(pool.Bytes(), 4 * (1000 + 70 + 70));
  for (int block = 0; block < 5; ++block) walk(block + 1, sizes[block]);
  EXPECT_NE(pool.Find(0), nullptr);
}

// An embedding of one and a half blocks and an untied head of its size.
TEST(SlotPoolTest, BlocksStayOutOfAnEmbeddingThatTheyWouldFit) {
  SlotPool pool;
  const auto options = at::TensorOptions(at::kFloat);
  for (int unit = 0; unit < 6; ++unit) {
    const int64_t elements = unit == 0 || unit == 5 ? 150 : 100;
    pool.Pin(pool.Take(unit, elements, options));
    if (unit > 0) pool.Unpin(unit - 1);
  }
  EXPECT_EQ(pool.Bytes(), 4 * (150 + 100 + 100));
}

}  // namespace
}  // namespace sft::engine
