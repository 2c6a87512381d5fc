#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {

// ZeRO-2 and full_shard: each rank accumulates its own shard of a unit's gradient. A unit's whole
// gradient exists from its first Buffer to FinishUnit, which starts its reduce-scatter; that
// overlaps with the next unit's backward and is added to the shard when that one finishes.
class ShardedSink : public GradientSink {
 public:
  // Borrows its arguments.
  ShardedSink(const ModelLayout& layout, const TrainableStore& store, Communicator& comm);
  ~ShardedSink() override;

  void BeginStep() override;
  void BeginMicroBatch(bool) override {}
  at::Tensor Buffer(int unit, int param) override;
  void FinishUnit(int unit) override;
  const std::vector<at::Tensor>& Reduce() override;
  bool sharded() const override { return true; }
  int64_t Bytes() const override;

 private:
  struct Pending {
    int unit = 0;
    at::Tensor whole;
    at::Tensor part;
    WorkPtr work;
  };
  void Settle();

  const ModelLayout& layout_;
  const TrainableStore& store_;
  Communicator& comm_;
  std::vector<at::Tensor> whole_;  // by unit; undefined unless in use
  std::vector<at::Tensor> shard_;  // by unit: the accumulators
  std::vector<at::Tensor> parts_;
  std::optional<Pending> pending_;
};

}  // namespace sft::engine
