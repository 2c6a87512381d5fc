#include "worker/engine/weights/replicated_sink.h"

#include <ATen/ops/zeros.h>

namespace sft::engine {

ReplicatedSink::ReplicatedSink(const ModelLayout& layout, const TrainableStore& store,
                               int64_t bucket_bytes, Communicator& comm)
    : store_(store),
      comm_(comm),
      scatters_(store.placement() == Placement::kShardedOptimizer),
      bucket_of_(layout.units.size(), -1) {
  int64_t total = 0;
  for (int unit = 0; unit < layout.size(); ++unit) total += store.flat(unit).size();
  flat_ = at::zeros({total}, at::TensorOptions(comm.device()).dtype(at::kFloat));
  std::vector<int64_t> begin(layout.units.size());
  int64_t next = 0;
  bool open = false;
  for (int unit = layout.size() - 1; unit >= 0; --unit) {
    begin[unit] = next;
    if (store.flat(unit).empty()) continue;
    if (!open) buckets_.push_back({next, next, unit, 0, 0});
    next += store.flat(unit).size();
    buckets_.back().end = next;
    buckets_.back().last_unit = unit;
    ++buckets_.back().units;
    bucket_of_[unit] = static_cast<int>(buckets_.size()) - 1;
    open = !scatters_ &&
           (next - buckets_.back().begin) * static_cast<int64_t>(sizeof(float)) < bucket_bytes;
  }
  for (int unit = 0; unit < layout.size(); ++unit) {
    views_.emplace_back(layout.units[unit].params.size());
    for (const FlatLayout::Piece& piece : store.flat(unit).pieces()) {
      views_[unit][piece.param] = flat_.narrow(0, begin[unit] + piece.begin, piece.count)
                                      .view(layout.units[unit].params[piece.param].shape);
    }
  }
  for (const TrainablePart& part : store.parts()) {
    parts_.push_back(flat_.narrow(0, begin[part.unit] + part.begin, part.count));
  }
}

ReplicatedSink::~ReplicatedSink() = default;

void ReplicatedSink::BeginStep() {
  works_.clear();
  stale_ = true;
  for (Bucket& bucket : buckets_) bucket.unfinished = bucket.units;
}

void ReplicatedSink::ZeroAtFirst() {
  if (stale_) flat_.zero_();
  stale_ = false;
}

at::Tensor ReplicatedSink::Buffer(int unit, int param) {
  ZeroAtFirst();
  return views_[unit][param];
}

void ReplicatedSink::FinishUnit(int unit) {
  ZeroAtFirst();
  if (!last_ || bucket_of_[unit] < 0) return;
  --buckets_[bucket_of_[unit]].unfinished;
  SendReady();
}

// In order of the buckets whatever the order of the units: all ranks send the same sequence.
void ReplicatedSink::SendReady() {
  if (comm_.world() == 1) return;
  while (works_.size() < buckets_.size() && buckets_[works_.size()].unfinished == 0) {
    works_.push_back(Send(buckets_[works_.size()]));
  }
}

WorkPtr ReplicatedSink::Send(const Bucket& bucket) {
  const at::Tensor whole = flat_.narrow(0, bucket.begin, bucket.end - bucket.begin);
  if (!scatters_) return comm_.AllReduceSumAsync(whole);
  const int unit = bucket.last_unit;
  return comm_.ReduceScatterSumAsync(
      whole.narrow(0, store_.shard_begin(unit), store_.shard_size(unit)), whole,
      store_.counts(unit));
}

const std::vector<at::Tensor>& ReplicatedSink::Reduce() {
  ZeroAtFirst();
  for (Bucket& bucket : buckets_) bucket.unfinished = 0;
  SendReady();
  for (WorkPtr& work : works_) work->Wait();
  works_.clear();
  return parts_;
}

}  // namespace sft::engine
