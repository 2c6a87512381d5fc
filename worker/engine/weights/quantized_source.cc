#include "worker/engine/weights/quantized_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;

QuantizedSource::QuantizedSource(const ModelLayout& layout, std::unique_ptr<QuantFormat> format,
                                 at::ScalarType compute, bool sharded, int kept, Communicator& comm)
    : layout_(layout),
      format_(std::move(format)),
      compute_(compute),
      sharded_(sharded && comm.world() > 1),
      comm_(comm),
      side_(comm.device()) {
  for (const UnitInfo& info : layout.units) units_.push_back(MakeUnit(info));
  for (auto unit = units_.rbegin(); unit != units_.rend() && kept > 0; ++unit) {
    if (unit->cut_units.empty()) continue;
    unit->kept = at::empty({unit->elements}, at::TensorOptions(comm.device()).dtype(compute));
    --kept;
  }
}

QuantizedSource::Unit QuantizedSource::MakeUnit(const UnitInfo& info) const {
  Unit unit;
  UnitInfo in_cut_units = info;
  std::vector<Place> places(info.params.size(), {-1, 0});
  for (int i = 0; i < static_cast<int>(info.shared_matrices.size()); ++i) {
    const MatrixInfo matrix = info.Matrix(i);
    for (const MatrixInfo::Member& member : matrix.members) {
      places[member.weight] = {unit.elements + member.first_row * matrix.stride(), matrix.stride()};
    }
    if (info.params[matrix.members[0].weight].quantized) unit.elements += matrix.numel();
  }
  for (size_t i = 0; i < info.params.size(); ++i) {
    const ParamInfo& param = info.params[i];
    if (param.quantized && places[i].begin < 0) {
      places[i] = {unit.elements, param.shape.back()};
      unit.elements += param.numel();
    }
    in_cut_units.params[i].shape = {format_->CutUnits(param.numel())};
  }
  unit.cut_units = FlatLayout(in_cut_units, [](const ParamInfo& p) { return p.quantized; });
  for (const FlatLayout::Piece& piece : unit.cut_units.pieces()) {
    unit.places.push_back(places[piece.param]);
  }
  const int64_t total = unit.cut_units.size();
  unit.counts = sharded_ ? PartSizes(total, comm_.world()) : std::vector<int64_t>{total};
  const int64_t own = unit.counts[sharded_ ? comm_.rank() : 0];
  for (const PlaneSpec& plane : format_->planes()) {
    unit.planes.push_back(
        at::zeros({own * plane.per_cut_unit}, at::TensorOptions(comm_.device()).dtype(plane.type)));
  }
  unit.constants.resize(unit.cut_units.pieces().size());
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

void QuantizedSource::Load(int unit, int param, const Tensor& part) {
  Unit& u = units_[unit];
  const auto& pieces = u.cut_units.pieces();
  const auto piece = std::find_if(pieces.begin(), pieces.end(),
                                  [param](const FlatLayout::Piece& p) { return p.param == param; });
  if (piece == pieces.end())
    throw InternalError("a weight that is not quantised was loaded as one");
  const int64_t numel = layout_.units[unit].params[param].numel();
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
  QuantizedPart quantized = format_->Quantize(part, elements, comm_);
  const std::vector<PlaneSpec> specs = format_->planes();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (quantized.planes[i].numel() == 0) continue;
    u.planes[i]
        .narrow(0, own_begin * specs[i].per_cut_unit, quantized.planes[i].numel())
        .copy_(quantized.planes[i]);
  }
  u.constants[piece - pieces.begin()] = quantized.constants;
}

void QuantizedSource::StartGather(Unit& u) {
  const std::vector<PlaneSpec> specs = format_->planes();
  for (size_t i = 0; i < specs.size(); ++i) {
    std::vector<int64_t> counts = u.counts;
    for (int64_t& count : counts) count *= specs[i].per_cut_unit;
    u.gathered.push_back(
        at::empty({u.cut_units.size() * specs[i].per_cut_unit}, u.planes[i].options()));
    u.gathers.push_back(comm_.AllGatherAsync(u.gathered[i], u.planes[i], std::move(counts)));
  }
}

// Raw bytes of all ranks are gathered beside the computation; whole bytes are de-quantised beside
// it.
void QuantizedSource::Prefetch(int unit) {
  Unit& u = units_[unit];
  if (u.cut_units.empty() || slots_.Find(unit) != nullptr || !u.gathers.empty()) return;
  if (u.filled) return;
  if (sharded_) {
    StartGather(u);
    return;
  }
  if (!side_.available() || u.kept.defined()) return;
  SlotPool::Slot& slot =
      slots_.Take(unit, u.elements, at::TensorOptions(comm_.device()).dtype(compute_));
  slots_.Pin(slot);                      // until Acquire
  const SideStream::Scope scope(side_);  // after all that the slot's last unit was used for
  Dequantize(unit, u.planes, slot.buffer);
  u.rewritten = true;
  u.prefetched = true;
}

void QuantizedSource::Fill(int unit, Tensor& buffer) {
  Unit& u = units_[unit];
  if (sharded_ && u.gathers.empty()) StartGather(u);
  for (WorkPtr& gather : u.gathers) gather->Wait();
  Dequantize(unit, sharded_ ? u.gathered : u.planes, buffer);
  u.gathers.clear();
  u.gathered.clear();
  u.rewritten = true;
}

void QuantizedSource::Acquire(int unit, UnitWeights& weights) {
  Unit& u = units_[unit];
  if (u.cut_units.empty()) return;
  Tensor buffer = u.kept;
  if (buffer.defined()) {
    if (!u.filled) Fill(unit, buffer);
    u.filled = true;
  } else if (u.prefetched) {
    side_.Join();
    u.prefetched = false;
    buffer = slots_.Find(unit)->buffer;
  } else {
    SlotPool::Slot* slot = slots_.Find(unit);
    if (slot == nullptr) {
      slot = &slots_.Take(unit, u.elements, at::TensorOptions(comm_.device()).dtype(compute_));
      Fill(unit, slot->buffer);
    }
    slots_.Pin(*slot);
    buffer = slot->buffer;
  }
  for (size_t i = 0; i < u.cut_units.pieces().size(); ++i) {
    weights[u.cut_units.pieces()[i].param] = View(unit, static_cast<int>(i), buffer);
  }
  weights.rewritten = u.rewritten;
  u.rewritten = false;
}

Tensor QuantizedSource::View(int unit, int piece, const Tensor& buffer) const {
  const Unit& u = units_[unit];
  const Place& place = u.places[piece];
  const std::vector<int64_t>& shape =
      layout_.units[unit].params[u.cut_units.pieces()[piece].param].shape;
  if (shape.size() == 1) return buffer.narrow(0, place.begin, shape[0]);
  return buffer.as_strided(shape, {place.stride, 1}, place.begin);
}

void QuantizedSource::Dequantize(int unit, std::span<const Tensor> planes,
                                 const Tensor& buffer) const {
  const Unit& u = units_[unit];
  const std::vector<PlaneSpec> specs = format_->planes();
  for (size_t i = 0; i < u.cut_units.pieces().size(); ++i) {
    const FlatLayout::Piece& piece = u.cut_units.pieces()[i];
    std::vector<Tensor> own;
    for (size_t p = 0; p < specs.size(); ++p) {
      own.push_back(planes[p].narrow(0, piece.begin * specs[p].per_cut_unit,
                                     piece.count * specs[p].per_cut_unit));
    }
    format_->Dequantize(View(unit, static_cast<int>(i), buffer), own, u.constants[i]);
  }
}

void QuantizedSource::Release(int unit) {
  const Unit& u = units_[unit];
  if (!u.cut_units.empty() && !u.kept.defined()) slots_.Unpin(unit);
}

int64_t QuantizedSource::ResidentBytes() const {
  int64_t bytes = slots_.Bytes();
  for (const Unit& unit : units_) {
    for (const Tensor& plane : unit.planes) bytes += static_cast<int64_t>(plane.nbytes());
    if (unit.kept.defined()) bytes += static_cast<int64_t>(unit.kept.nbytes());
  }
  return bytes;
}

}  // namespace sft::engine
