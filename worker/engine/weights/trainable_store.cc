#include "worker/engine/weights/trainable_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/huge_pages.h"
#include "worker/engine/weights/host_lane.h"
#include "worker/engine/weights/sharded_source.h"

namespace sft::engine {

using at::Tensor;

TrainableStore::TrainableStore(const ModelLayout& layout, at::ScalarType compute,
                               at::ScalarType master, Placement placement, Communicator& comm,
                               OnHost on_host)
    : layout_(layout),
      placement_(placement),
      comm_(comm),
      on_host_(on_host),
      separate_(compute != master || on_host.masters) {
  if (on_host.blocks && (!on_host.masters || placement == Placement::kShardedOptimizer)) {
    throw InternalError("weights in host memory without their masters, or gathered there");
  }
  for (int unit = 0; unit < layout.size(); ++unit) {
    units_.push_back(MakeUnit(unit, compute, master));
    AddParts(unit);
  }
}

TrainableStore::Unit TrainableStore::MakeUnit(int index, at::ScalarType compute,
                                              at::ScalarType master) const {
  Unit unit;
  unit.on_host = on_host_.blocks && layout_.is_block(index);
  unit.flat =
      FlatLayout(layout_.units[index], [](const ParamInfo& p) { return p.trainable && p.held; });
  const int64_t total = unit.flat.size();
  if (placement_ == Placement::kReplicated) {
    unit.counts = {total};
    unit.size = total;
  } else {
    unit.counts = PartSizes(total, comm_.world());
    unit.size = unit.counts[comm_.rank()];
    unit.begin =
        std::accumulate(unit.counts.begin(), unit.counts.begin() + comm_.rank(), int64_t{0});
  }
  const at::TensorOptions options(comm_.device());
  const bool holds_shard = placement_ == Placement::kFullShard;
  const int64_t held = holds_shard ? unit.size : total;
  unit.compute = ZeroBuffer(held, compute, comm_.device(), unit.on_host);
  if (!separate_) {
    unit.master = unit.compute.narrow(0, holds_shard ? 0 : unit.begin, unit.size);
    return unit;
  }
  unit.master =
      at::empty({unit.size}, on_host_.masters ? at::TensorOptions(master) : options.dtype(master));
  AdviseHugePages(unit.master);
  unit.master.zero_();
  return unit;
}

void TrainableStore::AddParts(int index) {
  const Unit& unit = units_[index];
  const int64_t compute_begin = placement_ == Placement::kFullShard ? unit.begin : 0;
  for (const FlatLayout::Piece& piece : unit.flat.Slice(unit.begin, unit.size)) {
    TrainablePart part{index, piece.param, piece.first, piece.count, piece.begin, {}, {}};
    part.master = unit.master.narrow(0, piece.begin - unit.begin, piece.count);
    if (separate_) {
      part.copy = unit.compute.narrow(0, piece.begin - compute_begin, piece.count);
    }
    parts_.push_back(std::move(part));
  }
}

std::vector<FlatLayout::Piece> TrainableStore::HeldPieces(const Unit& unit) const {
  const bool holds_shard = placement_ == Placement::kFullShard;
  return unit.flat.Slice(holds_shard ? unit.begin : 0, holds_shard ? unit.size : unit.flat.size());
}

void TrainableStore::Fill(Unit& unit, const FlatLayout::Piece& piece, const Tensor& values) {
  const int64_t begin = placement_ == Placement::kFullShard ? unit.begin : 0;
  unit.compute.narrow(0, piece.begin - begin, piece.count).copy_(values);
  if (!separate_) return;
  // The part of the piece that this rank's optimizer has.
  const int64_t first = std::max(piece.begin, unit.begin);
  const int64_t last = std::min(piece.begin + piece.count, unit.begin + unit.size);
  if (first >= last) return;
  unit.master.narrow(0, first - unit.begin, last - first)
      .copy_(values.narrow(0, first - piece.begin, last - first));
}

void TrainableStore::Load(const Reader& read) {
  for (size_t index = 0; index < units_.size(); ++index) {
    for (const FlatLayout::Piece& piece : HeldPieces(units_[index])) {
      const Tensor values =
          read(static_cast<int>(index), piece.param, piece.first, piece.count).view({-1});
      Fill(units_[index], piece, values);
    }
  }
}

void TrainableStore::Set(int unit, int param, const Tensor& whole) {
  for (const FlatLayout::Piece& piece : HeldPieces(units_[unit])) {
    if (piece.param != param) continue;
    Fill(units_[unit], piece, whole.reshape({-1}).narrow(0, piece.first, piece.count));
  }
}

std::unique_ptr<WeightSource> TrainableStore::MakeSource() const {
  if (placement_ == Placement::kFullShard) {
    return MakeShardedSource([](const Unit&) { return true; });
  }
  auto source = std::make_unique<ResidentSource>(layout_);
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].on_host) continue;
    for (const FlatLayout::Piece& piece : units_[i].flat.pieces()) {
      source->Set(static_cast<int>(i), piece.param,
                  units_[i]
                      .compute.narrow(0, piece.begin, piece.count)
                      .view(layout_.units[i].params[piece.param].shape));
    }
  }
  if (!on_host_.blocks) return source;
  auto composed = std::make_unique<ComposedSource>();
  composed->Add(std::move(source));
  composed->Add(MakeShardedSource([](const Unit& unit) { return unit.on_host; }));
  return composed;
}

std::unique_ptr<WeightSource> TrainableStore::MakeShardedSource(
    bool (*gives)(const Unit& unit)) const {
  auto source = std::make_unique<ShardedSource>(layout_, comm_);
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    if (unit.flat.empty() || !gives(unit)) continue;
    source->Set(static_cast<int>(i), unit.flat, unit.counts, unit.compute, unit.on_host);
  }
  return source;
}

void TrainableStore::AfterUpdate() {
  if (placement_ != Placement::kShardedOptimizer || comm_.world() == 1) return;
  std::vector<WorkPtr> gathers;
  for (Unit& unit : units_) {
    if (unit.flat.empty()) continue;
    gathers.push_back(comm_.AllGatherAsync(
        unit.compute, unit.compute.narrow(0, unit.begin, unit.size), unit.counts));
  }
  for (WorkPtr& gather : gathers) gather->Wait();
}

Tensor TrainableStore::Gather(int index, int param) const {
  const Unit& unit = units_[index];
  const std::vector<int64_t>& shape = layout_.units[index].params[param].shape;
  for (const FlatLayout::Piece& piece : unit.flat.pieces()) {
    if (piece.param != param) continue;
    if (placement_ == Placement::kReplicated) {
      return unit.master.narrow(0, piece.begin, piece.count).view(shape);
    }
    // This parameter's elements of each rank.
    std::vector<int64_t> counts;
    Tensor own;
    int64_t begin = 0;
    for (int rank = 0; rank < comm_.world(); ++rank) {
      const int64_t first = std::max(begin, piece.begin);
      const int64_t last = std::min(begin + unit.counts[rank], piece.begin + piece.count);
      counts.push_back(std::max<int64_t>(0, last - first));
      if (rank == comm_.rank()) {
        own = unit.master.narrow(0, counts.back() > 0 ? first - begin : 0, counts.back())
                  .to(comm_.device());
      }
      begin += unit.counts[rank];
    }
    Tensor whole = at::empty({piece.count}, own.options());
    comm_.AllGather(whole, own, std::move(counts));
    return whole.view(shape);
  }
  return {};
}

int64_t TrainableStore::Bytes() const {
  int64_t bytes = 0;
  for (const Unit& unit : units_) {
    if (!unit.on_host) bytes += static_cast<int64_t>(unit.compute.nbytes());
    if (separate_ && !on_host_.masters) {
      bytes += static_cast<int64_t>(unit.master.nbytes());
    }
  }
  return bytes;
}

}  // namespace sft::engine
