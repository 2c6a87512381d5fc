#include "worker/engine/model/block_graphs.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <bit>
#include <cstdio>
#include <utility>

#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

BlockGraphs::BlockGraphs(std::unique_ptr<GraphRecorder> recorder, Work work, const Tensor& hidden,
                         int64_t gradient_spare)
    : recorder_(std::move(recorder)),
      work_(std::move(work)),
      hidden_(hidden),
      gradient_spare_(gradient_spare) {}

BlockGraphs::~BlockGraphs() = default;

bool BlockGraphs::HasRoom() {
  if (recorded_.size() < kMostShapes) return true;
  if (!std::exchange(full_, true)) {
    fmt::print(stderr, "micro-batches of more than {} shapes: further ones are not recorded\n",
               kMostShapes);
  }
  return false;
}

// Rows of a power of two, less than twice those asked for: the buffers that earlier, smaller shapes
// go on with come to as much again at most.
Tensor BlockGraphs::Share(Tensor& buffer, int64_t rows, int64_t spare) const {
  if (!buffer.defined() || buffer.size(0) < rows) {
    const auto enough = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
    buffer = EmptyRows(enough, hidden_.size(1), spare, hidden_);
  }
  return buffer.narrow(0, 0, rows);
}

void BlockGraphs::Allocate(const BatchShape& shape, Walk& walk) {
  const at::TensorOptions options(hidden_.device());
  walk.batch.positions = at::empty({shape.tokens}, options.dtype(at::kLong));
  walk.batch.cu_seqlens = at::empty({shape.documents + 1}, options.dtype(at::kInt));
  walk.x = Share(x_, shape.tokens, 0);
  walk.y = Share(y_, shape.tokens, 0);
  walk.dx = Share(dx_, shape.tokens, gradient_spare_);
}

BlockGraphs::Walk& BlockGraphs::Begin(const DeviceBatch& batch) {
  const BatchShape shape = ShapeOf(batch.lengths);
  const auto found = recorded_.find(shape);
  if (found == recorded_.end()) {
    if (!seen_.contains(shape)) recorder_->MakeRoom();
    Allocate(shape, fresh_.walk);
  }
  current_ = found == recorded_.end() ? &fresh_ : &found->second;
  Walk& walk = current_->walk;
  walk.batch.positions.copy_(batch.positions);
  walk.batch.cu_seqlens.copy_(batch.cu_seqlens);
  walk.batch.lengths = batch.lengths;
  return walk;
}

void BlockGraphs::Forward() {
  if (current_->forward != nullptr) return current_->forward->Replay();
  recorder_->Run([this] { work_.forward(fresh_.walk); });
}

void BlockGraphs::Backward() {
  if (current_->backward != nullptr) return current_->backward->Replay();
  recorder_->Run([this] { work_.backward(fresh_.walk); });
  const BatchShape shape = ShapeOf(fresh_.walk.batch.lengths);
  if (!seen_.insert(shape).second && HasRoom()) Record(shape);
}

void BlockGraphs::Record(const BatchShape& shape) {
  Recorded& recorded = recorded_[shape];
  Walk& walk = recorded.walk;
  walk = fresh_.walk;
  recorder_->MakeRoom();
  // The backward right after the forward, whose tensors it is the last to read: what both leave is
  // memory that any other shape may use.
  recorded.forward = recorder_->Record([this, &walk] { work_.forward(walk); });
  recorded.backward = recorder_->Record([this, &walk] { work_.backward(walk); });
}

}  // namespace sft::engine
