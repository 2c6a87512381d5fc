#include "worker/engine/generate/paged_decoder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/max.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

namespace {

// The tokens above which documents turn at other frequencies; 0: there are none.
int64_t LongFrom(const ModelConfig& config) {
  for (const RopeOptions& rope : config.ropes) {
    if (rope.type == RopeType::kLongRope) return rope.original_max_positions;
  }
  return 0;
}

// Columns of what Pack makes: token, position, slot, request and position as a place (two), whether
// it is of a long document, whether adapters act on it, and of pieces the first row, the rows and
// the state (ops::Pieces).
constexpr int64_t kPlaces = 3, kIsLong = 5, kAdapted = 6, kPieces = 7, kColumns = 10;

}  // namespace

int64_t TokenBytesOf(const Decoder& decoder, at::ScalarType compute) {
  int64_t values = 0;
  for (const DecoderBlock& block : decoder.blocks()) {
    const SelfAttention& attention = block.attention;
    if (!attention.borrows) values += 2 * attention.kv_heads * attention.head_dim;
  }
  return values * static_cast<int64_t>(c10::elementSize(compute));
}

int64_t StateBytesOf(const Decoder& decoder, at::ScalarType compute) {
  int64_t bytes = 0;
  for (const DecoderBlock& block : decoder.blocks()) {
    if (!block.delta) continue;
    const auto states = block.delta.EmptyStates(1, at::TensorOptions(at::kMeta).dtype(compute));
    bytes += static_cast<int64_t>(states.conv.nbytes() + states.rule.nbytes());
  }
  return bytes;
}

PagedDecoder::PagedDecoder(const ModelConfig& config, Decoder& decoder,
                           const at::TensorOptions& activations, int64_t most_pages,
                           int64_t requests)
    : decoder_(decoder),
      activations_(activations),
      most_pages_(most_pages),
      requests_(requests),
      layers_(decoder.blocks().size()),
      states_(decoder.blocks().size()),
      positions_(decoder, LongFrom(config), activations.device()) {
  if (on_gpu() && decoder.source().fixed() && !config.HasExperts()) {
    recorder_ = MakeGraphRecorder(activations.device());
  }
  const AcquiredUnit block(decoder.source(), decoder.layout(), 1);
  few_rows_ = !block.weights().nf4.empty();
}

void PagedDecoder::Reserve(int64_t tokens, int64_t pages, int64_t states) {
  if (positions_.Reserve(tokens)) ++moves_;
  // A GPU has all of them from the start, and one more for padding: a recording knows where they
  // are, and its memory is not wanted for anything else.
  const int64_t most = on_gpu() ? most_pages_ + 1 : most_pages_;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const DecoderBlock& block = decoder_.blocks()[layer];
    const SelfAttention& attention = block.attention;
    if (attention.borrows || block.delta) continue;
    layers_[layer].Reserve(on_gpu() ? most : pages, most, {attention.kv_heads, attention.head_dim},
                           activations_);
  }
  ReserveStates(on_gpu() ? requests_ : states);
}

void PagedDecoder::ReserveStates(int64_t count) {
  for (size_t layer = 0; layer < states_.size(); ++layer) {
    const DeltaNet& delta = decoder_.blocks()[layer].delta;
    DeltaNet::States& kept = states_[layer];
    const int64_t present = kept.rule.defined() ? kept.rule.size(0) : 0;
    if (!delta || count <= present) continue;
    const DeltaNet::States grown = delta.EmptyStates(count, activations_);
    if (present > 0) {
      grown.conv.narrow(0, 0, present).copy_(kept.conv);
      grown.rule.narrow(0, 0, present).copy_(kept.rule);
    }
    kept = grown;
  }
}

void PagedDecoder::CopyStates(std::span<const int32_t> from, std::span<const int32_t> to) {
  const auto indices = [&](std::span<const int32_t> numbers) {
    return at::tensor(at::ArrayRef<int32_t>(numbers.data(), numbers.size()), at::kLong)
        .to(activations_.device());
  };
  const Tensor sources = indices(from), targets = indices(to);
  for (DeltaNet::States& kept : states_) {
    for (Tensor* states : {&kept.conv, &kept.rule}) {
      if (states->defined()) {
        states->index_copy_(0, targets, states->index_select(0, sources));
      }
    }
  }
}

void PagedDecoder::BeginStates(std::span<const PagedRow> rows) {
  for (const PagedRow& row : rows) {
    if (row.position > 0) continue;
    for (DeltaNet::States& kept : states_) {
      for (Tensor* states : {&kept.conv, &kept.rule}) {
        if (states->defined()) states->select(0, row.state).zero_();
      }
    }
  }
}

ops::Pieces PagedDecoder::PiecesOf(std::span<const PagedRow> rows, int64_t count, bool single) {
  ops::Pieces pieces;
  const auto used = static_cast<int64_t>(rows.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto row = static_cast<size_t>(i);
    const bool goes_on =
        i > 0 && !single && i != used && (i > used || rows[row].request == rows[row - 1].request);
    if (!goes_on) {
      pieces.lengths.push_back(0);
      pieces.states.push_back(i < used ? rows[row].state : -1);
    }
    ++pieces.lengths.back();
  }
  return pieces;
}

void PagedDecoder::SetTables(const std::vector<std::span<const int32_t>>& pages) {
  size_t widest = 1;
  for (const auto& table : pages) widest = std::max(widest, table.size());
  const int64_t width = tables_.defined() ? tables_.size(1) : 0;
  if (width < static_cast<int64_t>(widest)) {
    const int64_t room =
        on_gpu() ? static_cast<int64_t>(std::bit_ceil(widest)) : static_cast<int64_t>(widest);
    tables_ = at::zeros({requests_, room}, activations_.dtype(at::kInt));
    ++moves_;
  }
  Tensor all = at::zeros({requests_, tables_.size(1)}, at::kInt);
  auto* row = all.mutable_data_ptr<int32_t>();
  for (const auto& table : pages) {
    std::copy(table.begin(), table.end(), row);
    row += tables_.size(1);
  }
  tables_.copy_(all);
}

void PagedDecoder::CopyPages(std::span<const BeamPages::Copy> copies) {
  if (copies.empty()) return;
  std::vector<int64_t> from, to;
  for (const BeamPages::Copy& copy : copies) {
    from.push_back(copy.from);
    to.push_back(copy.to);
  }
  const Tensor sources = at::tensor(from, at::kLong).to(activations_.device());
  const Tensor targets = at::tensor(to, at::kLong).to(activations_.device());
  for (LayerPages& layer : layers_) {
    for (Tensor* kept : {&layer.k, &layer.v}) {
      if (kept->defined()) kept->index_copy_(0, targets, kept->index_select(0, sources));
    }
  }
}

Tensor PagedDecoder::Pack(std::span<const PagedRow> rows, int64_t count,
                          const ops::Pieces& pieces) const {
  Tensor packed = at::zeros({kColumns, count}, at::kLong);
  auto* columns = packed.mutable_data_ptr<int64_t>();
  auto* places = columns + kPlaces * count;
  for (int64_t i = 0; i < count; ++i) {
    const bool padding = i >= static_cast<int64_t>(rows.size());
    const PagedRow row = padding ? PagedRow{.slot = most_pages_ * PageTable::kPageTokens}
                                 : rows[static_cast<size_t>(i)];
    columns[i] = row.token;
    columns[count + i] = row.position;
    columns[2 * count + i] = row.slot;
    places[2 * i] = row.request;
    places[2 * i + 1] = padding ? -1 : row.position;
    columns[kIsLong * count + i] = row.is_long ? 1 : 0;
    columns[kAdapted * count + i] = row.adapted ? 1 : 0;
  }
  int64_t first = 0;
  for (size_t i = 0; i < pieces.lengths.size(); ++i) {
    int64_t* piece = columns + kPieces * count + static_cast<int64_t>(i);
    piece[0] = first;
    piece[count] = pieces.lengths[i];
    piece[2 * count] = pieces.states[i];
    first += pieces.lengths[i];
  }
  return packed;
}

PagedDecoder::Inputs PagedDecoder::Unpack(const Tensor& packed, int64_t count,
                                          bool reads_adapter_rows, ops::Pieces pieces) const {
  Inputs inputs;
  inputs.tokens = packed.select(0, 0);
  inputs.positions = packed.select(0, 1);
  inputs.slots = packed.select(0, 2);
  inputs.places = packed.narrow(0, kPlaces, 2).view({count, 2});
  inputs.is_long = packed.select(0, kIsLong).ne(0);
  if (reads_adapter_rows) {
    inputs.adapter_rows = packed.select(0, kAdapted).to(activations_).view({-1, 1});
  }
  inputs.documents = std::move(pieces);
  inputs.documents.table = packed.narrow(0, kPieces, 3)
                               .narrow(1, 0, static_cast<int64_t>(inputs.documents.lengths.size()));
  return inputs;
}

Tensor PagedDecoder::RunBlock(size_t layer, const Tensor& x, const BlockContext& context,
                              const Inputs& inputs) {
  const DecoderBlock& block = decoder_.blocks()[layer];
  AcquiredUnit unit(decoder_.source(), decoder_.layout(), static_cast<int>(layer) + 1);
  const Pass pass{unit.weights(), decoder_.lora(), nullptr, inputs.tile, inputs.adapter_rows};
  LayerPages& kept = layers_[static_cast<size_t>(block.keys_of)];
  const auto attend = [&](const SelfAttention::Heads& projected) {
    if (!block.attention.borrows) kept.Write(inputs.slots, projected.k, projected.v);
    Tensor out = at::empty(projected.q.sizes(), projected.q.options());
    ops::PagedAttention(out, projected.q, kept.k, kept.v, tables_, inputs.places,
                        block.attention.scale, block.attention.window, inputs.pieces,
                        block.attention.Sinks(pass));
    return out;
  };
  return block.ForwardWith(x, context, pass, {attend, inputs.documents, states_[layer]});
}

Tensor PagedDecoder::RunBlocks(const Inputs& inputs) {
  BlockContext context;
  context.ropes = positions_.At(inputs.positions, inputs.is_long);
  context.links = decoder_.MakeLinks();
  Tensor x = decoder_.Embed(inputs.tokens, inputs.positions);
  context.links->inputs = decoder_.InputsOfLayers(inputs.tokens, x, inputs.tile);
  for (size_t layer = 0; layer < layers_.size(); ++layer) x = RunBlock(layer, x, context, inputs);
  return x;
}

PagedDecoder::Scores PagedDecoder::ScoresOf(const Tensor& x) {
  Scores scores;
  scores.logits = decoder_.HeadByRow(x, kTokenTile);
  const auto [largest, token] = at::max(scores.logits, 1);
  scores.likeliest = at::stack({token.to(at::kDouble), largest.to(at::kDouble)});
  return scores;
}

// A tile of rows at a time: logits of a whole piece would be gigabytes of a large vocabulary.
std::vector<TokenScore> PagedDecoder::ScoresOfTargets(const Tensor& x,
                                                      std::span<const Target> targets) {
  std::vector<TokenScore> scores;
  scores.reserve(targets.size());
  for (size_t first = 0; first < targets.size(); first += kTokenTile) {
    const auto part = targets.subspan(first, std::min<size_t>(kTokenTile, targets.size() - first));
    std::vector<int64_t> rows, tokens;
    for (const Target& target : part) {
      rows.push_back(target.row);
      tokens.push_back(target.token);
    }
    const Tensor places = at::tensor(rows, at::kLong).to(x.device());
    const Tensor ids = at::tensor(tokens, at::kLong).to(x.device()).view({-1, 1});
    const Tensor logits =
        decoder_.HeadByRow(at::index_select(x, 0, places), kTokenTile).to(at::kFloat);
    const auto [largest, token] = at::max(logits, 1);
    const Tensor whole = at::logsumexp(logits, {1}).to(at::kDouble);
    const Tensor wanted = at::gather(logits, 1, ids).view({-1}).to(at::kDouble);
    const Tensor all =
        at::stack({wanted.sub(whole), token.to(at::kDouble), largest.to(at::kDouble).sub(whole)})
            .cpu();
    const auto* values = all.const_data_ptr<double>();
    const size_t count = part.size();
    for (size_t i = 0; i < count; ++i) {
      scores.push_back({values[i], static_cast<int32_t>(values[count + i]), values[2 * count + i]});
    }
  }
  return scores;
}

PagedDecoder::Scores PagedDecoder::Prompts(std::span<const PagedRow> rows,
                                           std::span<const int64_t> last,
                                           std::span<const Target> targets) {
  const auto used = static_cast<int64_t>(rows.size());
  const int64_t tile = on_gpu() ? kPromptTile : used;
  const int64_t count = (used + tile - 1) / tile * tile;
  const bool all_adapted =
      std::all_of(rows.begin(), rows.end(), [](const PagedRow& row) { return row.adapted; });
  ops::Pieces pieces = PiecesOf(rows, count, /*single=*/false);
  const Tensor packed = Pack(rows, count, pieces).to(activations_.device());
  Inputs inputs = Unpack(packed, count, /*reads_adapter_rows=*/!all_adapted, std::move(pieces));
  inputs.tile = tile;
  BeginStates(rows);
  const Tensor x = RunBlocks(inputs);
  Scores scores;
  if (!last.empty()) {
    const Tensor ends = at::tensor(at::ArrayRef<int64_t>(last.data(), last.size()), at::kLong);
    scores = ScoresOf(at::index_select(x, 0, ends.to(activations_.device())));
  }
  scores.targets = ScoresOfTargets(x, targets);
  return scores;
}

PagedDecoder::Scores PagedDecoder::Tokens(std::span<const PagedRow> rows) {
  const auto used = static_cast<int64_t>(rows.size());
  if (used > kTokenTile) throw InternalError("a forward of more single tokens than a tile has");
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(used)));
  const int64_t count = few_rows_ ? power : kTokenTile;
  Recording& recording = recordings_[count];
  if (!recording.packed.defined()) {
    recording.packed = at::empty({kColumns, count}, activations_.dtype(at::kLong));
  }
  const ops::Pieces pieces = PiecesOf(rows, count, /*single=*/true);
  recording.packed.copy_(Pack(rows, count, pieces));
  BeginStates(rows);
  const auto forward = [this, &recording, &pieces, count] {
    const bool has_adapters = decoder_.lora().scale != 0.0;
    Inputs inputs = Unpack(recording.packed, count, /*reads_adapter_rows=*/has_adapters, pieces);
    inputs.tile = kTokenTile;
    inputs.pieces = false;
    recording.scores = ScoresOf(RunBlocks(inputs));
  };
  if (!recorder_) {
    forward();
  } else if (!std::exchange(recording.has_run, true)) {
    recorder_->Run(forward);  // libraries load and choose what they need
  } else {
    // The recorder's memory would go with its last recording: the old one stays until the new is
    // there.
    if (recording.moves != moves_) {
      recording.graph = recorder_->Record(forward);
      recording.moves = moves_;
    }
    recording.graph->Replay();
  }
  return {recording.scores.logits.narrow(0, 0, used),
          recording.scores.likeliest.narrow(1, 0, used),
          {}};
}

}  // namespace sft::engine
