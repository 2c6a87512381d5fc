#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {

// DDP and ZeRO-1: one fp32 buffer with all gradients, summed over the ranks once a step in buckets.
// The buffer holds units in the order in which the backward finishes them, so that in the last
// micro-batch a bucket is sent while the blocks before it are still being differentiated. DDP sums
// a bucket on every rank; ZeRO-1, whose optimizer is sharded, sums each unit's shards where they
// lie in it, one unit a bucket: half of the bytes.
class ReplicatedSink : public GradientSink {
 public:
  // `bucket_bytes`: a bucket is closed by the unit that fills it; of DDP alone. Borrows its
  // arguments.
  ReplicatedSink(const ModelLayout& layout, const TrainableStore& store, int64_t bucket_bytes,
                 Communicator& comm);
  ~ReplicatedSink() override;

  void BeginStep() override;
  void BeginMicroBatch(bool last) override { last_ = last; }
  bool Trains(int unit, int param) const override { return views_[unit][param].defined(); }
  at::Tensor Buffer(int unit, int param) override;
  void FinishUnit(int unit) override;
  const std::vector<at::Tensor>& Reduce() override;
  bool sharded() const override { return scatters_; }
  int64_t Bytes() const override { return static_cast<int64_t>(flat_.nbytes()); }
  bool fixed() const override { return true; }

  int buckets() const { return static_cast<int>(buckets_.size()); }

 private:
  struct Bucket {
    int64_t begin = 0;
    int64_t end = 0;
    int last_unit = 0;   // the one that closed it
    int units = 0;       // trained units in it
    int unfinished = 0;  // of the last micro-batch
  };
  void ZeroAtFirst();
  void SendReady();
  WorkPtr Send(const Bucket& bucket);

  const TrainableStore& store_;
  Communicator& comm_;
  bool scatters_;
  at::Tensor flat_;
  std::vector<std::vector<at::Tensor>> views_;  // by unit and parameter
  std::vector<at::Tensor> parts_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;  // by unit; -1: nothing trained
  std::vector<WorkPtr> works_;  // of the buckets sent in this step, from the first
  bool last_ = false;
  bool stale_ = false;  // the gradients are those of the step before
};

}  // namespace sft::engine
