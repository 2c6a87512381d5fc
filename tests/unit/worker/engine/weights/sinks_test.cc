#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/dist/mesh.h"
#include "worker/engine/weights/replicated_sink.h"
#include "worker/engine/weights/sharded_sink.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {
namespace {

using at::Tensor;

ModelLayout ThreeUnits() {
  ModelLayout layout;
  layout.units.push_back({"a", {{"a.weight", {2}, ParamRole::kLinear, true}}});
  layout.units.push_back({"b",
                          {{"b.weight", {4, 5}, ParamRole::kLinear, true},
                           {"b.frozen", {6}},
                           {"b.bias", {3}, ParamRole::kBias, true}}});
  layout.units.push_back({"c", {{"c.frozen", {9}}}});
  return layout;
}

// Rank r adds (r + 1) * 10^micro to every element of every trained parameter.
void Accumulate(GradientSink& sink, const ModelLayout& layout, int rank) {
  sink.BeginStep();
  for (int micro = 0; micro < 2; ++micro) {
    sink.BeginMicroBatch(micro == 1);
    for (int unit = layout.size() - 1; unit >= 0; --unit) {
      for (int i = 0; i < static_cast<int>(layout.units[unit].params.size()); ++i) {
        Tensor buffer = sink.Buffer(unit, i);
        ASSERT_EQ(buffer.defined(), layout.units[unit].params[i].trainable);
        if (buffer.defined()) buffer.add_((rank + 1) * (micro == 0 ? 1 : 10));
      }
      if (layout.units[unit].trainable()) sink.FinishUnit(unit);
    }
  }
}

void ExpectOwnParts(const std::vector<Tensor>& parts, const TrainableStore& store, double sum) {
  ASSERT_EQ(parts.size(), store.parts().size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].numel(), store.parts()[i].count);
    EXPECT_TRUE(at::all(parts[i] == sum).item<bool>());
  }
}

TEST(ReplicatedSinkTest, SumsMicroBatchesAndRanksInBuckets) {
  const ModelLayout layout = ThreeUnits();
  RunRanks(3, [&](Communicator& comm) {
    TrainableStore store(layout, at::kFloat, at::kFloat, Placement::kReplicated, comm);
    ReplicatedSink one(layout, store, 1 << 20, comm);
    EXPECT_EQ(one.buckets(), 1);
    ReplicatedSink many(layout, store, 1, comm);
    EXPECT_EQ(many.buckets(), 2);
    for (GradientSink* sink :
         {static_cast<GradientSink*>(&one), static_cast<GradientSink*>(&many)}) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        Accumulate(*sink, layout, comm.rank());
        const auto& parts = sink->Reduce();
        ASSERT_EQ(parts.size(), 3u);
        for (const Tensor& part : parts) EXPECT_TRUE(at::all(part == 66).item<bool>());
      }
    }
  });
}

TEST(ReplicatedSinkTest, SumsTheShardsOfAShardedOptimizerOnceAStep) {
  const ModelLayout layout = ThreeUnits();
  RunRanks(4, [&](Communicator& comm) {
    TrainableStore store(layout, at::kFloat, at::kFloat, Placement::kShardedOptimizer, comm);
    ReplicatedSink sink(layout, store, 1 << 20, comm);
    EXPECT_EQ(sink.buckets(), 2);
    EXPECT_TRUE(sink.sharded());
    EXPECT_EQ(sink.Bytes(), 25 * 4);
    for (int repeat = 0; repeat < 2; ++repeat) {
      Accumulate(sink, layout, comm.rank());
      ExpectOwnParts(sink.Reduce(), store, 110);
    }
  });
}

TEST(ShardedSinkTest, EachRankGetsTheSumOfItsShardAndSomeGetNone) {
  const ModelLayout layout = ThreeUnits();
  for (Placement placement : {Placement::kShardedOptimizer, Placement::kFullShard}) {
    RunRanks(4, [&](Communicator& comm) {
      TrainableStore store(layout, at::kFloat, at::kFloat, placement, comm);
      ShardedSink sink(layout, store, comm, {});
      Accumulate(sink, layout, comm.rank());
      const auto& parts = sink.Reduce();
      ExpectOwnParts(parts, store, 110);
      int64_t elements = 0;
      for (const Tensor& part : parts) elements += part.numel();
      EXPECT_EQ(store.shard_size(0), comm.rank() < 2 ? 1 : 0);
      EXPECT_EQ(AllReduceSumDouble(comm, static_cast<double>(elements)), 25.0);
    });
  }
}

TEST(ShardedSinkTest, SumsOverTheReplicasOfAShardOnceAStep) {
  const ModelLayout layout = ThreeUnits();
  RunRanks(4, [&](Communicator& comm) {
    const Mesh mesh(comm, {.replicate = 2, .shard = 2});
    TrainableStore store(layout, at::kFloat, at::kFloat, Placement::kFullShard,
                         mesh.Group(Axis::kShard));
    ShardedSink sink(layout, store, mesh.Group(Axis::kShard),
                     {.replicas = &mesh.Group(Axis::kReplicate)});
    EXPECT_EQ(store.shard_size(0), 1);
    for (int repeat = 0; repeat < 2; ++repeat) {
      Accumulate(sink, layout, comm.rank());
      ExpectOwnParts(sink.Reduce(), store, 110);
    }
  });
}

// A gradient that bf16 cannot hold is rounded for the way, and added up in fp32.
TEST(ShardedSinkTest, SendsInTheWireTypeAndAccumulatesInFp32) {
  const ModelLayout layout = ThreeUnits();
  const auto comm = MakeLocalCommunicator(at::kCPU);
  TrainableStore store(layout, at::kBFloat16, at::kFloat, Placement::kFullShard, *comm);
  ShardedSink sink(layout, store, *comm, {.wire = at::kBFloat16});
  sink.BeginStep();
  for (const double gradient : {256.0, 1.0, 1.0 + 1.0 / 1024}) {
    sink.BeginMicroBatch(false);
    sink.Buffer(0, 0).add_(gradient);
    sink.FinishUnit(0);
  }
  const Tensor sum = sink.Reduce()[0];
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::all(sum == 258.0).item<bool>());
}

// Two ranks with 2 and 1.0009765625, which bf16 rounds to 1.
TEST(ShardedSinkTest, ABlocksProductOverwritesWhatIsThereInTheWireType) {
  const ModelLayout layout = ThreeUnits();
  RunRanks(2, [&](Communicator& comm) {
    TrainableStore store(layout, at::kBFloat16, at::kFloat, Placement::kFullShard, comm);
    ShardedSink sink(layout, store, comm, {.wire = at::kBFloat16});
    for (int step = 0; step < 2; ++step) {
      sink.BeginStep();
      for (const double gradient : {2.0, 1.0 + 1.0 / 1024}) {
        sink.BeginMicroBatch(false);
        ProductSum product = sink.Product(1, 0);
        EXPECT_EQ(product.beta, 0.0);
        EXPECT_EQ(product.sum.scalar_type(), at::kBFloat16);
        EXPECT_EQ(product.sum.sizes(), at::IntArrayRef({4, 5}));
        product.sum.fill_(gradient);
        EXPECT_FALSE(sink.Product(1, 1).sum.defined()) << "frozen";
        // The bias gets something on one rank alone.
        if (comm.rank() == 0) sink.Buffer(1, 2).add_(3.0);
        sink.FinishUnit(1);
        sink.FinishUnit(0);
      }
      const std::vector<Tensor>& parts = sink.Reduce();
      for (size_t i = 0; i < parts.size(); ++i) {
        const TrainablePart& part = store.parts()[i];
        const double expected = part.unit == 0 ? 0.0 : 6.0;
        EXPECT_TRUE(at::all(parts[i] == expected).item<bool>()) << part.unit << " " << part.param;
      }
    }
  });
}

TEST(ReplicatedSinkTest, AProductIsAddedToTheSumsOfTheStep) {
  const ModelLayout layout = ThreeUnits();
  const auto comm = MakeLocalCommunicator(at::kCPU);
  TrainableStore store(layout, at::kFloat, at::kFloat, Placement::kReplicated, *comm);
  ReplicatedSink sink(layout, store, 1 << 20, *comm);
  sink.BeginStep();
  const ProductSum product = sink.Product(1, 0);
  EXPECT_EQ(product.beta, 1.0);
  EXPECT_TRUE(at::all(product.sum == 0).item<bool>());
  EXPECT_TRUE(sink.Trains(1, 2));
  EXPECT_FALSE(sink.Trains(1, 1));
}

TEST(TrainableStoreTest, GathersAndUpdatesEveryPlacementAlike) {
  const ModelLayout layout = ThreeUnits();
  for (at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (Placement placement :
         {Placement::kReplicated, Placement::kShardedOptimizer, Placement::kFullShard}) {
      RunRanks(3, [&](Communicator& comm) {
        TrainableStore store(layout, compute, at::kFloat, placement, comm);
        store.Load([&](int unit, int param, int64_t first, int64_t count) {
          return at::arange(first, first + count, at::kFloat).add_(100 * unit + 10 * param);
        });
        const auto source = store.MakeSource();
        for (TrainablePart part : store.parts()) {
          part.master.add_(1);
          if (part.copy.defined()) part.copy.copy_(part.master);
        }
        store.AfterUpdate();
        source->Invalidate();
        AcquiredUnit acquired(*source, layout, 1);
        const Tensor expected = at::arange(20, at::kFloat).add_(101).view({4, 5});
        EXPECT_TRUE(at::equal(acquired.weights()[0], expected.to(compute)));
        EXPECT_FALSE(acquired.weights()[1].defined());
        EXPECT_TRUE(at::equal(store.Gather(1, 0), expected));
      });
    }
  }
}

}  // namespace
}  // namespace sft::engine
