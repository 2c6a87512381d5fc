#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {

// ZeRO-2, full_shard and hybrid_shard: each rank accumulates its own shard of a unit's gradient, in
// fp32. A unit's whole gradient exists from its first Buffer to FinishUnit, which starts its
// reduce-scatter; that overlaps with the next unit's backward and is added to the shard when that
// one finishes. Where shards have replicas, their sums over the micro-batches are summed over these
// once a step, beside the backward of the last micro-batch.
class ShardedSink : public GradientSink {
 public:
  struct Options {
    // What the ranks send each other; of a micro-batch's gradient, which is fp32 where it is made.
    at::ScalarType wire = at::kFloat;
    Communicator* replicas = nullptr;  // the ranks with the same shard; null: there are none
  };
  // `comm`: the ranks that the store is cut over. Borrows its arguments.
  ShardedSink(const ModelLayout& layout, const TrainableStore& store, Communicator& comm,
              const Options& options);
  ~ShardedSink() override;

  void BeginStep() override;
  void BeginMicroBatch(bool last) override { last_ = last; }
  at::Tensor Buffer(int unit, int param) override;
  void FinishUnit(int unit) override;
  const std::vector<at::Tensor>& Reduce() override;
  bool sharded() const override { return true; }
  int64_t Bytes() const override;

 private:
  struct Pending {
    int unit = 0;
    at::Tensor part;
    WorkPtr work;       // keeps what is sent
    bool last = false;  // its micro-batch is the last of the step
  };
  void ZeroAtFirst();
  void Settle();

  const ModelLayout& layout_;
  const TrainableStore& store_;
  Communicator& comm_;
  Options options_;
  std::vector<at::Tensor> whole_;  // by unit; undefined unless in use
  std::vector<at::Tensor> shard_;  // by unit: the accumulators
  std::vector<at::Tensor> parts_;
  std::optional<Pending> pending_;
  std::vector<WorkPtr> to_replicas_;  // sums of shards under way
  bool last_ = false;
  bool stale_ = false;  // the shards are those of the step before
};

}  // namespace sft::engine
