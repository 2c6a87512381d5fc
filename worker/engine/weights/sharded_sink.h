#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {

// ZeRO-2, full_shard and hybrid_shard: each rank accumulates its own shard of a unit's gradient, in
// fp32. A unit's whole gradient exists from its first contribution to FinishUnit, which starts its
// reduce-scatter; that overlaps with the next unit's backward and is added to the shard when that
// one finishes. A block's is made in the type it is sent in: its parameters get one contribution
// each, so that this rounds once, as a conversion would. Embedding and head get several, in fp32.
// Where shards have replicas, their sums over the micro-batches are summed over these once a step,
// beside the backward of the last micro-batch.
class ShardedSink : public GradientSink {
 public:
  struct Options {
    // Type in which the ranks send each other a micro-batch's gradient.
    at::ScalarType wire = at::kFloat;
    Communicator* replicas = nullptr;  // the ranks with the same shard; null: there are none
  };
  // `comm`: the ranks that the store is cut over. Borrows its arguments.
  ShardedSink(const ModelLayout& layout, const TrainableStore& store, Communicator& comm,
              const Options& options);
  ~ShardedSink() override;

  void BeginStep() override;
  void BeginMicroBatch(bool last) override { last_ = last; }
  bool Trains(int unit, int param) const override {
    return layout_.units[unit].params[param].trainable;
  }
  at::Tensor Buffer(int unit, int param) override;
  ProductSum Product(int unit, int param) override;
  void FinishUnit(int unit) override;
  const std::vector<at::Tensor>& Reduce() override;
  bool sharded() const override { return true; }
  int64_t Bytes() const override;
  bool fixed() const override { return false; }

 private:
  // A unit's gradient of the micro-batch under way.
  struct Whole {
    at::Tensor flat;              // undefined: nothing has been added yet
    std::vector<char> has_value;  // by piece of the flat layout
  };
  struct Pending {
    int unit = 0;
    at::Tensor part;
    WorkPtr work;       // keeps what is sent
    bool last = false;  // its micro-batch is the last of the step
  };
  // The place of a parameter's gradient and whether it has a value, which the caller gives it now.
  std::pair<at::Tensor, bool> Place(int unit, int param);
  void Settle();

  const ModelLayout& layout_;
  const TrainableStore& store_;
  Communicator& comm_;
  Options options_;
  std::vector<Whole> whole_;       // by unit
  std::vector<at::Tensor> shard_;  // by unit: the accumulators
  std::vector<char> stale_;        // by unit: the shard is that of the step before
  std::vector<at::Tensor> parts_;
  std::optional<Pending> pending_;
  std::vector<WorkPtr> to_replicas_;  // sums of shards under way
  bool last_ = false;
};

}  // namespace sft::engine
