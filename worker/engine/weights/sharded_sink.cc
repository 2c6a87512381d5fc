#include "worker/engine/weights/sharded_sink.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

ShardedSink::ShardedSink(const ModelLayout& layout, const TrainableStore& store, Communicator& comm,
                         const Options& options)
    : layout_(layout),
      store_(store),
      comm_(comm),
      options_(options),
      whole_(layout.units.size()),
      stale_(layout.units.size(), 0) {
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
  stale_.assign(shard_.size(), 1);
}

std::pair<Tensor, bool> ShardedSink::Place(int unit, int param) {
  const ParamInfo& info = layout_.units[unit].params[param];
  const auto& pieces = store_.flat(unit).pieces();
  Whole& whole = whole_[unit];
  if (!whole.flat.defined()) {
    const bool block = unit > 0 && unit < layout_.head_unit();
    whole.flat = at::empty({store_.flat(unit).size()},
                           shard_[unit].options().dtype(block ? options_.wire : at::kFloat));
    whole.has_value.assign(pieces.size(), 0);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].param != param) continue;
    return {whole.flat.narrow(0, pieces[i].begin, pieces[i].count).view(info.shape),
            std::exchange(whole.has_value[i], 1) != 0};
  }
  throw InternalError(info.name + " has no place in the gradient of its unit");
}

Tensor ShardedSink::Buffer(int unit, int param) {
  if (!Trains(unit, param)) return {};
  const auto [place, has_value] = Place(unit, param);
  return has_value ? place : place.zero_();
}

ProductSum ShardedSink::Product(int unit, int param) {
  if (!Trains(unit, param)) return {};
  const auto [place, has_value] = Place(unit, param);
  return {place, has_value ? 1.0 : 0.0};
}

void ShardedSink::FinishUnit(int unit) {
  if (store_.flat(unit).empty()) return;
  // Where nothing was added on this rank, the others may have something for its shard.
  for (size_t i = 0; i < store_.flat(unit).pieces().size(); ++i) {
    Buffer(unit, store_.flat(unit).pieces()[i].param);
  }
  const Tensor whole = std::exchange(whole_[unit], {}).flat.to(options_.wire);
  Tensor part = at::empty({store_.shard_size(unit)}, whole.options());
  WorkPtr work = comm_.ReduceScatterSumAsync(part, whole, store_.counts(unit));
  Settle();
  pending_ = Pending{unit, part, std::move(work), last_};
}

void ShardedSink::Settle() {
  if (!pending_) return;
  pending_->work->Wait();
  Tensor& shard = shard_[pending_->unit];
  ops::Accumulate(shard, pending_->part, std::exchange(stale_[pending_->unit], 0) != 0);
  if (pending_->last && options_.replicas != nullptr) {
    to_replicas_.push_back(options_.replicas->AllReduceSumAsync(shard));
  }
  pending_.reset();
}

const std::vector<Tensor>& ShardedSink::Reduce() {
  Settle();
  for (WorkPtr& work : to_replicas_) work->Wait();
  to_replicas_.clear();
  for (size_t unit = 0; unit < shard_.size(); ++unit) {
    if (std::exchange(stale_[unit], 0) != 0) shard_[unit].zero_();
  }
  return parts_;
}

int64_t ShardedSink::Bytes() const {
  int64_t bytes = 0;
  for (const Tensor& shard : shard_) bytes += static_cast<int64_t>(shard.nbytes());
  return bytes;
}

}  // namespace sft::engine
