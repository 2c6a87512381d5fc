#include "worker/engine/weights/sharded_sink.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace sft::engine {

using at::Tensor;

ShardedSink::ShardedSink(const ModelLayout& layout, const TrainableStore& store, Communicator& comm,
                         const Options& options)
    : layout_(layout), store_(store), comm_(comm), options_(options), whole_(layout.units.size()) {
  for (int unit = 0; unit < layout.size(); ++unit) {
    shard_.push_back(
        at::zeros({store.shard_size(unit)}, at::TensorOptions(comm.device()).dtype(at::kFloat)));
  }
  for (const TrainablePart& part : store.parts()) {
    parts_.push_back(
        shard_[part.unit].narrow(0, part.begin - store.shard_begin(part.unit), part.count));
  }
}

ShardedSink::~ShardedSink() = default;

void ShardedSink::BeginStep() {
  Settle();
  to_replicas_.clear();
  stale_ = true;
}

void ShardedSink::ZeroAtFirst() {
  if (!stale_) return;
  for (Tensor& shard : shard_) shard.zero_();
  stale_ = false;
}

Tensor ShardedSink::Buffer(int unit, int param) {
  const ParamInfo& info = layout_.units[unit].params[param];
  if (!info.trainable) return {};
  ZeroAtFirst();
  if (!whole_[unit].defined()) {
    whole_[unit] = at::zeros({store_.flat(unit).size()}, shard_[unit].options());
  }
  for (const FlatLayout::Piece& piece : store_.flat(unit).pieces()) {
    if (piece.param == param) {
      return whole_[unit].narrow(0, piece.begin, piece.count).view(info.shape);
    }
  }
  return {};
}

void ShardedSink::FinishUnit(int unit) {
  if (store_.flat(unit).empty()) return;
  ZeroAtFirst();
  if (!whole_[unit].defined()) {
    // Nothing was added on this rank, but the others may have something for its shard.
    whole_[unit] = at::zeros({store_.flat(unit).size()}, shard_[unit].options());
  }
  const Tensor whole = std::exchange(whole_[unit], Tensor()).to(options_.wire);
  Tensor part = at::empty({store_.shard_size(unit)}, whole.options());
  WorkPtr work = comm_.ReduceScatterSumAsync(part, whole, store_.counts(unit));
  Settle();
  pending_ = Pending{unit, part, std::move(work), last_};
}

void ShardedSink::Settle() {
  if (!pending_) return;
  pending_->work->Wait();
  Tensor& shard = shard_[pending_->unit];
  shard.add_(pending_->part);
  if (pending_->last && options_.replicas != nullptr) {
    to_replicas_.push_back(options_.replicas->AllReduceSumAsync(shard));
  }
  pending_.reset();
}

const std::vector<Tensor>& ShardedSink::Reduce() {
  ZeroAtFirst();
  Settle();
  for (WorkPtr& work : to_replicas_) work->Wait();
  to_replicas_.clear();
  return parts_;
}

int64_t ShardedSink::Bytes() const {
  int64_t bytes = 0;
  for (const Tensor& shard : shard_) bytes += static_cast<int64_t>(shard.nbytes());
  return bytes;
}

}  // namespace sft::engine
