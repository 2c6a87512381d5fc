#include "worker/engine/weights/quantized_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/weights/host_lane.h"

namespace sft::engine {

using at::Tensor;

QuantizedSource::QuantizedSource(const ModelLayout& layout, std::unique_ptr<QuantFormat> format,
                                 const Options& options, Communicator& comm)
    : layout_(layout),
      format_(std::move(format)),
      sharded_(options.sharded && comm.world() > 1),
      on_host_(options.run.blocks_on_host),
      prefetch_(options.run.prefetch),
      comm_(comm),
      side_(comm.device()) {
  for (const UnitInfo& info : layout.units) {
    units_.push_back(MakeUnit(info));
    if (units_.back().cut_units.empty()) continue;
    units_.back().expansion = options.compute == at::kFloat8_e4m3fn
                                  ? MakeFp8Expansion(info, *format_)
                                  : MakePlainExpansion(info, *format_, options.compute);
    slot_bytes_ = std::max(slot_bytes_, units_.back().expansion->bytes());
  }
  ChooseOwners(options.run);
}

void QuantizedSource::ChooseOwners(const plan::ExecutionPlan& run) {
  for (int unit = 0; unit < layout_.size(); ++unit) {
    Unit& u = units_[unit];
    if (!layout_.is_block(unit) || u.cut_units.empty()) continue;
    const plan::WeightCopy copy = run.BlockOf(unit - 1, layout_.blocks()).copy;
    if (copy == plan::WeightCopy::kKept) u.own = NewBuffer(u);
    u.carries = copy == plan::WeightCopy::kCarried && u.expansion->serves_both();
  }
}

Tensor QuantizedSource::NewBuffer(const Unit& unit) const {
  return at::empty({unit.expansion->bytes()}, at::TensorOptions(comm_.device()).dtype(at::kByte));
}

QuantizedSource::Unit QuantizedSource::MakeUnit(const UnitInfo& info) const {
  Unit unit;
  UnitInfo in_cut_units = info;
  for (ParamInfo& param : in_cut_units.params) {
    param.shape = {param.plain_among_quantized ? 0 : format_->CutUnits(param.numel())};
  }
  unit.cut_units =
      FlatLayout(in_cut_units, [this](const ParamInfo& p) { return format_->Holds(p); });
  const int64_t total = unit.cut_units.size();
  unit.counts = sharded_ ? PartSizes(total, comm_.world()) : std::vector<int64_t>{total};
  const int64_t own = unit.counts[sharded_ ? comm_.rank() : 0];
  for (const PlaneSpec& plane : format_->planes()) {
    const int64_t size = own * plane.per_cut_unit;
    unit.planes.push_back(ZeroBuffer(size, plane.type, comm_.device(), on_host_));
  }
  unit.constants.resize(unit.cut_units.pieces().size());
  unit.plain.resize(unit.cut_units.pieces().size());
  return unit;
}

QuantizedSource::~QuantizedSource() = default;

int64_t QuantizedSource::FirstCutUnit(const Unit& unit) const {
  const int rank = sharded_ ? comm_.rank() : 0;
  return std::accumulate(unit.counts.begin(), unit.counts.begin() + rank, int64_t{0});
}

QuantizedSource::Range QuantizedSource::RangeOf(int unit, int param) const {
  const Unit& u = units_[unit];
  const int64_t own = u.counts[sharded_ ? comm_.rank() : 0];
  for (const FlatLayout::Piece& piece : u.cut_units.Slice(FirstCutUnit(u), own)) {
    if (piece.param != param) continue;
    const int64_t first = piece.first * format_->cut_unit();
    const int64_t numel = layout_.units[unit].params[param].numel();
    return {first, std::min(piece.count * format_->cut_unit(), numel - first)};
  }
  return {};
}

size_t QuantizedSource::PieceOf(const Unit& unit, int param) {
  const auto& pieces = unit.cut_units.pieces();
  const auto piece = std::find_if(pieces.begin(), pieces.end(),
                                  [param](const FlatLayout::Piece& p) { return p.param == param; });
  if (piece == pieces.end())
    throw InternalError("a weight that is not quantised was loaded as one");
  return static_cast<size_t>(piece - pieces.begin());
}

void QuantizedSource::LoadPlain(int unit, int param, Tensor weight) {
  Unit& u = units_[unit];
  u.plain[PieceOf(u, param)] = std::move(weight);
}

void QuantizedSource::LoadBytes(int unit, int param, const QuantizedPart& bytes) {
  Unit& u = units_[unit];
  const size_t place = PieceOf(u, param);
  u.constants[place] = bytes.constants;
  if (bytes.planes.empty() || bytes.planes[0].numel() == 0) return;  // other ranks hold it
  const int64_t first = FirstCutUnit(u);
  const int64_t begin = std::max(first, u.cut_units.pieces()[place].begin) - first;
  const std::vector<PlaneSpec> specs = format_->planes();
  for (size_t i = 0; i < specs.size(); ++i) {
    u.planes[i]
        .narrow(0, begin * specs[i].per_cut_unit, bytes.planes[i].numel())
        .copy_(bytes.planes[i]);
  }
}

void QuantizedSource::Load(int unit, int param, const Tensor& part) {
  Unit& u = units_[unit];
  const size_t place = PieceOf(u, param);
  const FlatLayout::Piece* const piece = &u.cut_units.pieces()[place];
  const ParamInfo& info = layout_.units[unit].params[param];
  const int64_t numel = info.numel();
  std::vector<int64_t> elements;  // of this parameter, by rank
  int64_t own_begin = 0;          // of this rank's planes
  int64_t begin = 0;
  for (size_t rank = 0; rank < u.counts.size(); ++rank) {
    const int64_t end = begin + u.counts[rank];
    const int64_t first = std::max(begin, piece->begin);
    const int64_t last = std::min(end, piece->begin + piece->count);
    int64_t count = 0;
    if (first < last) {
      const int64_t unit_size = format_->cut_unit();
      count =
          std::min((last - piece->begin) * unit_size, numel) - (first - piece->begin) * unit_size;
    }
    elements.push_back(count);
    if (!sharded_ || static_cast<int>(rank) == comm_.rank()) own_begin = first - begin;
    begin = end;
  }
  QuantizedPart quantized = format_->Quantize(part, info.shape.back(), elements, comm_);
  const std::vector<PlaneSpec> specs = format_->planes();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (quantized.planes[i].numel() == 0) continue;
    u.planes[i]
        .narrow(0, own_begin * specs[i].per_cut_unit, quantized.planes[i].numel())
        .copy_(quantized.planes[i]);
  }
  u.constants[place] = quantized.constants;
}

void QuantizedSource::StartFetch(Unit& u) {
  const std::vector<PlaneSpec> specs = format_->planes();
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto options = at::TensorOptions(comm_.device()).dtype(specs[i].type);
    const int64_t whole = u.cut_units.size() * specs[i].per_cut_unit;
    u.staged.push_back(on_host_ ? at::empty(u.planes[i].sizes(), options) : u.planes[i]);
    u.fetched.push_back(sharded_ ? at::empty({whole}, options) : u.staged[i]);
  }
  std::optional<SideStream::Scope> scope;  // the memory is the computation's, and follows it
  if (on_host_) scope.emplace(side_);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (on_host_) u.staged[i].copy_(u.planes[i], /*non_blocking=*/true);
    if (!sharded_) continue;
    std::vector<int64_t> counts = u.counts;
    for (int64_t& count : counts) count *= specs[i].per_cut_unit;
    u.gathers.push_back(comm_.AllGatherAsync(u.fetched[i], u.staged[i], std::move(counts)));
  }
}

// Raw bytes come from the host and from the other ranks beside the computation, and where the
// device has streams are de-quantised beside it too.
void QuantizedSource::Prefetch(int unit, WeightUse use) {
  Unit& u = units_[unit];
  if (u.cut_units.empty() || u.prefetched || !u.fetched.empty()) return;
  const bool holds = u.own.defined() || slots_.Find(unit) != nullptr;
  if (holds && (static_cast<int>(use) & ~u.filled) == 0) return;
  if (fetches()) StartFetch(u);
  const bool kept = u.own.defined() && !u.carries;
  if (!prefetch_ || !side_.available() || kept) return;
  const Tensor buffer = Hold(unit, use);  // until Acquire takes it over
  u.prefetched = true;
  const SideStream::Scope scope(side_);  // after all that the buffer's memory was last used for
  Fill(u, use, buffer);
}

Tensor QuantizedSource::Hold(int unit, WeightUse use) {
  Unit& u = units_[unit];
  if (u.own.defined()) return u.own;
  SlotPool::Slot* slot = slots_.Find(unit);
  if (slot == nullptr) {
    u.filled = 0;
    if (u.carries && Includes(use, WeightUse::kBackward)) {
      // Above all that the next forward takes first.
      u.own = ops::EmptyAtTheEnd(at::empty({0}, at::TensorOptions(comm_.device())),
                                 u.expansion->bytes());
      return u.own;
    }
    slot = &slots_.Take(unit, slot_bytes_, at::TensorOptions(comm_.device()).dtype(at::kByte));
  }
  slots_.Pin(*slot);
  return slot->buffer.narrow(0, 0, u.expansion->bytes());
}

void QuantizedSource::Fill(Unit& u, WeightUse use, const Tensor& buffer) {
  const int missing = static_cast<int>(use) & ~u.filled;
  if (missing == 0) return;
  if (fetches() && u.fetched.empty()) StartFetch(u);
  if (on_host_) side_.Join();  // copied there
  for (WorkPtr& gather : u.gathers) gather->Wait();
  const auto filled =
      static_cast<int>(u.expansion->Fill(buffer, static_cast<WeightUse>(missing),
                                         [this, &u](int param) { return BytesOf(u, param); }));
  u.gathers.clear();
  u.filled |= filled;
  u.rewritten |= filled;
}

void QuantizedSource::Acquire(int unit, UnitWeights& weights) {
  Unit& u = units_[unit];
  if (u.cut_units.empty()) return;
  Tensor buffer;
  if (u.prefetched) {
    side_.Join();
    u.prefetched = false;
    buffer = u.own.defined() ? u.own : slots_.Find(unit)->buffer;
  } else {
    buffer = Hold(unit, weights.use);
  }
  ++u.acquired;
  u.ends_carrying = u.carries && u.own.defined() && !Includes(weights.use, WeightUse::kBackward);
  Fill(u, weights.use, buffer);
  u.fetched.clear();  // now that the computation follows what read them
  u.staged.clear();
  u.expansion->Give(buffer, weights);
  weights.rewritten |= std::exchange(u.rewritten, 0);
}

QuantizedPart QuantizedSource::BytesOf(const Unit& u, int param) const {
  const std::vector<PlaneSpec> specs = format_->planes();
  const size_t place = PieceOf(u, param);
  const FlatLayout::Piece& piece = u.cut_units.pieces()[place];
  QuantizedPart part;
  part.plain = u.plain[place];
  for (size_t i = 0; i < specs.size(); ++i) {
    part.planes.push_back((fetches() ? u.fetched : u.planes)[i].narrow(
        0, piece.begin * specs[i].per_cut_unit, piece.count * specs[i].per_cut_unit));
  }
  part.constants = u.constants[place];
  return part;
}

void QuantizedSource::Release(int unit) {
  Unit& u = units_[unit];
  if (u.cut_units.empty()) return;
  --u.acquired;
  if (!u.own.defined()) {
    slots_.Unpin(unit);
  } else if (u.acquired == 0 && u.ends_carrying) {
    u.own = Tensor();
    u.filled = 0;
  }
}

bool QuantizedSource::fixed() const {
  return std::all_of(units_.begin(), units_.end(), [](const Unit& unit) {
    return unit.cut_units.empty() || (unit.own.defined() && !unit.carries);
  });
}

int64_t QuantizedSource::ResidentBytes() const {
  int64_t bytes = slots_.Bytes();
  for (const Unit& unit : units_) {
    if (!on_host_) {
      for (const Tensor& plane : unit.planes) bytes += static_cast<int64_t>(plane.nbytes());
    }
    for (const Tensor& constants : unit.constants) {
      if (constants.defined()) bytes += static_cast<int64_t>(constants.nbytes());
    }
    for (const Tensor& plain : unit.plain) {
      if (plain.defined()) bytes += static_cast<int64_t>(plain.nbytes());
    }
    if (unit.own.defined() && !unit.carries) bytes += static_cast<int64_t>(unit.own.nbytes());
  }
  return bytes;
}

}  // namespace sft::engine
