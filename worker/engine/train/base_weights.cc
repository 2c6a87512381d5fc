#include "worker/engine/train/base_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/weights/frozen_fp8.h"
#include "worker/engine/weights/host_lane.h"
#include "worker/engine/weights/sharded_source.h"
#include "worker/engine/weights/tensor_cut.h"

namespace sft::engine {

namespace {

using at::Tensor;

bool IsFrozenPlain(const ParamInfo& param) {
  return param.held && !param.trainable && !param.quantized;
}
bool IsFrozenRounded(const ParamInfo& param) { return IsFrozenPlain(param) && !param.exact; }

std::unique_ptr<WeightSource> LoadShardedPlain(const ModelLayout& layout, const BaseWeights& base,
                                               at::ScalarType compute, Communicator& comm) {
  auto source = std::make_unique<ShardedSource>(layout, comm);
  for (int unit = 0; unit < layout.size(); ++unit) {
    const UnitInfo& info = layout.units[unit];
    FlatLayout flat(info, IsFrozenRounded);
    if (flat.empty()) continue;
    std::vector<int64_t> counts = PartSizes(flat.size(), comm.world());
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0});
    Tensor shard =
        at::empty({counts[comm.rank()]}, at::TensorOptions(comm.device()).dtype(compute));
    for (const FlatLayout::Piece& piece : flat.Slice(begin, shard.numel())) {
      shard.narrow(0, piece.begin - begin, piece.count)
          .copy_(base.Read(info.params[piece.param], piece.first, piece.count));
    }
    source->Set(unit, std::move(flat), std::move(counts), shard);
  }
  return source;
}

// What is held in fp32, whole on every rank: a few numbers.
std::unique_ptr<WeightSource> LoadExact(const ModelLayout& layout, const BaseWeights& base,
                                        at::Device device) {
  auto source = std::make_unique<ResidentSource>(layout);
  for (int unit = 0; unit < layout.size(); ++unit) {
    const UnitInfo& info = layout.units[unit];
    for (size_t i = 0; i < info.params.size(); ++i) {
      const ParamInfo& param = info.params[i];
      if (!IsFrozenPlain(param) || !param.exact) continue;
      const Tensor value = at::empty(param.shape, at::TensorOptions(device).dtype(at::kFloat));
      base.Copy(param, value);
      source->Set(unit, static_cast<int>(i), value);
    }
  }
  return source;
}

// Pinned memory of the host as a tensor of `device`, which reads it through the bus.
Tensor EmptyOnHost(const std::vector<int64_t>& shape, at::ScalarType type, at::Device device) {
  const Tensor pinned = PinnedBuffer(c10::multiply_integers(shape), type, device);
  return at::for_blob(pinned.mutable_data_ptr(), shape)
      .deleter([pinned](void*) {})
      .options(at::TensorOptions(device).dtype(type))
      .target_device(device)
      .make_tensor();
}

std::unique_ptr<WeightSource> LoadResidentPlain(const ModelLayout& layout, const BaseWeights& base,
                                                const FrozenOptions& choices, at::Device device) {
  auto source = std::make_unique<ResidentSource>(layout);
  const auto options = at::TensorOptions(device).dtype(choices.compute);
  for (int unit = 0; unit < layout.size(); ++unit) {
    const UnitInfo& info = layout.units[unit];
    const bool plain_linears = std::any_of(
        info.shared_matrices.begin(), info.shared_matrices.end(),
        [&](const std::vector<int>& weights) { return IsFrozenPlain(info.params[weights[0]]); });
    if (plain_linears) source->AllocateMatrices(info, unit, options);
    for (size_t i = 0; i < info.params.size(); ++i) {
      const ParamInfo& param = info.params[i];
      const int index = static_cast<int>(i);
      if (!IsFrozenPlain(param)) continue;
      if (!source->Get(unit, index).defined()) {
        const bool on_host = choices.run.embedding_on_host && device.is_cuda() &&
                             param.role == ParamRole::kEmbedding;
        source->Set(
            unit, index,
            on_host ? EmptyOnHost(param.shape, choices.compute, device)
                    : at::empty(param.shape, param.exact ? options.dtype(at::kFloat) : options));
      }
      base.Copy(param, source->Get(unit, index));
      base.Done(param);
    }
    if (choices.fp8 && choices.bits == 0 && layout.is_block(unit)) {
      source->SetFp8(info, unit, MakeFrozenFp8(info, source->Get(unit)));
    }
  }
  return source;
}

// The scales' own scales do not end where a part of a matrix does: parts have the blocks' in fp32.
bool Nests(const FrozenOptions& options, const ModelLayout& layout, const BaseWeights& base) {
  if (layout.tensor_ranks > 1) return false;
  return layout.stored.form == plan::StoredForm::kNf4 ? base.nested() : options.double_quant;
}

// The format of quantised weights: the job's, or that in which the checkpoint holds them.
std::unique_ptr<QuantFormat> FormatOf(const FrozenOptions& options, const ModelLayout& layout,
                                      const BaseWeights& base) {
  switch (options.bits) {
    case 4:
      return MakeNf4Format(Nests(options, layout, base));
    case 8:
      return MakeInt8Format();
    default:
      return MakePlainFormat(options.compute);
  }
}

// What this rank has of a weight that is quantised as a whole, as one rank would have it.
void LoadPart(const ParamInfo& param, int unit, int index, const BaseWeights& base,
              const FrozenOptions& options, QuantizedSource& source) {
  const CutRange whole = WholeRange(param);
  const auto maker = options.bits == 4 ? MakeNf4Format(options.double_quant) : MakeInt8Format();
  QuantizedPart bytes;
  if (options.bits == 4 && base.HoldsNf4(param)) {
    bytes = base.ReadBytes(param, 0, whole.count);
  } else {
    const std::unique_ptr<Communicator> alone = MakeLocalCommunicator(base.device());
    bytes = maker->Quantize(base.ReadWhole(param, 0, whole.count), whole.whole_columns,
                            {&whole.count, 1}, *alone);
  }
  const auto [first, count] = source.RangeOf(unit, index);
  source.LoadBytes(unit, index, maker->Take(bytes, param, first, count));
}

void LoadQuantized(const ParamInfo& param, int unit, int index, const BaseWeights& base,
                   const FrozenOptions& options, at::Device device, QuantizedSource& source) {
  if (param.plain_among_quantized) {
    const Tensor weight = at::empty(param.shape, at::TensorOptions(device).dtype(options.compute));
    base.Copy(param, weight);
    source.LoadPlain(unit, index, weight);
    return;
  }
  if (param.cut.ranks > 1 && options.bits > 0) {
    return LoadPart(param, unit, index, base, options, source);
  }
  const auto [first, count] = source.RangeOf(unit, index);
  if (param.mxfp4 || (options.bits == 4 && base.HoldsNf4(param))) {
    source.LoadBytes(unit, index, base.ReadBytes(param, first, count));
  } else {
    source.Load(unit, index, base.Read(param, first, count));
  }
}

// The quantised weights that the format holds; null if there are none.
std::unique_ptr<WeightSource> LoadInFormat(const ModelLayout& layout, const BaseWeights& base,
                                           const FrozenOptions& options, Communicator& comm,
                                           std::unique_ptr<QuantFormat> format) {
  const QuantFormat& holder = *format;
  const bool any = std::any_of(layout.units.begin(), layout.units.end(), [&](const UnitInfo& unit) {
    return std::any_of(unit.params.begin(), unit.params.end(),
                       [&](const ParamInfo& param) { return holder.Holds(param); });
  });
  if (!any) return nullptr;
  const QuantizedSource::Options quantized{
      .compute = options.fp8 ? at::kFloat8_e4m3fn : options.compute,
      .sharded = options.sharded,
      .run = options.run};
  auto source = std::make_unique<QuantizedSource>(layout, std::move(format), quantized, comm);
  for (int unit = 0; unit < layout.size(); ++unit) {
    for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
      const ParamInfo& param = layout.units[unit].params[i];
      if (!holder.Holds(param)) continue;
      LoadQuantized(param, unit, static_cast<int>(i), base, options, comm.device(), *source);
      base.Done(param);
    }
  }
  return source;
}

}  // namespace

BaseWeights::BaseWeights(const std::filesystem::path& model_dir, const ModelLayout& layout,
                         at::Device device)
    : files_(ModelFiles::Open(model_dir)),
      device_(device),
      reader_(device.is_cpu() ? nullptr : std::make_unique<TensorReader>(device)) {
  for (const std::string& name : files_.Names()) {
    if (const std::string problem = plan::ExpertInFourBits(name); !problem.empty()) {
      throw UserError(model_dir.string() + ": " + problem, "bad_model");
    }
  }
  std::unordered_set<std::string> known;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (!param.of_base()) continue;
      StoredTensor stored;
      if (param.parts.empty()) {
        const std::string name = layout.in_files.InFiles(
            param.name, [&](const std::string& n) { return files_.Contains(n); });
        stored = FindStored(files_, param, name, layout.stored);
        known.insert(name);
      } else {
        stored = FindParts(files_, param, layout.stored);
      }
      if (stored.form == plan::StoredForm::kNf4) nested_ = nested_ && stored.nested_as_held;
      known.insert(stored.beside.begin(), stored.beside.end());
      stored_.emplace(param.name, std::move(stored));
    }
  }
  for (const std::string& name : files_.Names()) {
    if (!known.contains(name) && !layout.in_files.MayBeExtra(name)) {
      throw UserError(model_dir.string() + ": " + plan::UnknownTensor(name), "bad_model",
                      "config.json and weights must be of one model");
    }
  }
  if (layout.tied_head()) CheckTiedHead(layout);
}

void BaseWeights::CheckTiedHead(const ModelLayout& layout) const {
  const std::string head = plan::PrefixedName(layout.prefix(), "lm_head.weight");
  const std::string table = layout.in_files.InFiles(
      layout.units[0].params[0].name, [&](const std::string& n) { return files_.Contains(n); });
  if (!files_.Contains(head)) return;
  bool same = files_.Info(head).shape == files_.Info(table).shape;
  if (same) {
    // Some rows tell: of two tables that were trained apart nearly all differ.
    constexpr int64_t kRows = 64;
    const std::vector<int64_t>& shape = files_.Info(head).shape;
    const int64_t step = std::max<int64_t>(1, shape[0] / kRows);
    for (int64_t row = 0; same && row < shape[0]; row += step) {
      const auto row_of = [&](const std::string& name) {
        return files_.ViewRange(name, row * shape[1], shape[1]).to(at::kFloat);
      };
      same = at::equal(row_of(head), row_of(table));
    }
  }
  if (same) return;
  throw UserError(
      fmt::format("{}: config.json makes the head the embedding (tie_word_embeddings), but the "
                  "weights hold a {} that differs from {}",
                  files_.dir().string(), head, table),
      "bad_model", "write \"tie_word_embeddings\": false into config.json");
}

void BaseWeights::QuantizeAsStored(ModelLayout& layout) const {
  bool any = false;
  for (UnitInfo& unit : layout.units) {
    for (ParamInfo& param : unit.params) param.quantized = false;
    for (const std::vector<int>& weights : unit.shared_matrices) {
      const auto holds_nf4 = [&](int weight) { return HoldsNf4(unit.params[weight]); };
      if (std::none_of(weights.begin(), weights.end(), holds_nf4)) continue;
      any = true;
      for (const int weight : weights) {
        unit.params[weight].quantized = true;
        unit.params[weight].plain_among_quantized = !holds_nf4(weight);
      }
    }
  }
  if (any) return;
  throw UserError(files_.dir().string() +
                      ": quantization_config of config.json says that the weights are stored in 4 "
                      "bits, but none is",
                  "bad_model", "config.json and weights must be of one model");
}

void BaseWeights::KeepMxfp4(ModelLayout& layout) const {
  for (UnitInfo& unit : layout.units) {
    for (ParamInfo& param : unit.params) {
      param.mxfp4 = param.quantized && HoldsMxfp4(param);
    }
  }
}

Tensor BaseWeights::ReadElements(const std::string& name, int64_t first, int64_t count) const {
  return reader_ ? reader_->Read(files_.File(name), name, first, count)
                 : files_.ViewRange(name, first, count);
}

Tensor BaseWeights::ReadWhole(const ParamInfo& param, int64_t first, int64_t count) const {
  const StoredTensor& stored = Stored(param);
  const auto read = std::bind_front(&BaseWeights::ReadElements, this);
  if (!stored.transposed) return ReadStored(stored, first, count, read);
  const Tensor whole = ReadStored(stored, 0, WholeRange(param).count, read);
  return whole.view(stored.shape).t().reshape({-1}).narrow(0, first, count);
}

Tensor BaseWeights::Read(const ParamInfo& param, int64_t first, int64_t count) const {
  return ReadPart(param, first, count,
                  [&](int64_t from, int64_t elements) { return ReadWhole(param, from, elements); });
}

QuantizedPart BaseWeights::ReadBytes(const ParamInfo& param, int64_t first, int64_t count) const {
  if (param.mxfp4) {
    return ReadMxfp4(Stored(param), first, count,
                     std::bind_front(&BaseWeights::ReadElements, this));
  }
  return ReadNf4(Stored(param), first, count, nested_, device_,
                 std::bind_front(&BaseWeights::ReadElements, this));
}

bool BaseWeights::HoldsNf4(const ParamInfo& param) const {
  return Stored(param).form == plan::StoredForm::kNf4;
}

bool BaseWeights::HoldsMxfp4(const ParamInfo& param) const {
  return Stored(param).form == plan::StoredForm::kMxfp4;
}

void BaseWeights::Copy(const ParamInfo& param, const Tensor& to, int64_t part_elements) const {
  const int64_t row = std::max<int64_t>(param.numel() / param.shape.front(), 1);
  const int64_t rows = std::max<int64_t>(part_elements / row, 1);
  for (int64_t first = 0; first < param.shape.front(); first += rows) {
    std::vector<int64_t> shape = param.shape;
    shape.front() = std::min(rows, param.shape.front() - first);
    to.narrow(0, first, shape.front())
        .copy_(Read(param, first * row, shape.front() * row).view(shape));
  }
}

void BaseWeights::Done(const ParamInfo& param) const {
  if (param.parts.empty()) files_.DropPages(Stored(param).name);
  for (const std::string& name : Stored(param).beside) files_.DropPages(name);
}

std::unique_ptr<WeightSource> LoadFrozen(const ModelLayout& layout, const BaseWeights& base,
                                         const FrozenOptions& options, Communicator& comm) {
  auto composed = std::make_unique<ComposedSource>();
  if (options.sharded) {
    composed->Add(LoadShardedPlain(layout, base, options.compute, comm));
    composed->Add(LoadExact(layout, base, comm.device()));
  } else {
    composed->Add(LoadResidentPlain(layout, base, options, comm.device()));
  }
  composed->Add(LoadInFormat(layout, base, options, comm, FormatOf(options, layout, base)));
  composed->Add(LoadInFormat(layout, base, options, comm, MakeMxfp4Format()));
  return composed;
}

}  // namespace sft::engine
