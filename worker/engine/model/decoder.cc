#include "worker/engine/model/decoder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "worker/engine/base/phase_span.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr int kEmbeddingUnit = 0;
constexpr int kEmbedding = 0;                              // positions in the embedding's unit
constexpr int kPositions = 1;                              // where there is a table of positions
constexpr uint64_t kEmbeddingDropout = uint64_t{1} << 41;  // identifies its mask
constexpr uint64_t kEmbeddingNoise = uint64_t{1} << 42;

// The head size of the layers that rotate by a rope, which is one.
int64_t HeadOfRope(const ModelConfig& config, int rope) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    if (config.layer_options[layer].rope == rope) return config.Layer(layer).head_dim;
  }
  return config.head_dim;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const ModelLayout& layout, WeightSource& source,
                 at::Device device, const DecoderOptions& options)
    : config_(config), layout_(layout), source_(source), options_(options) {
  for (size_t i = 0; i < config.ropes.size(); ++i) {
    ropes_.emplace_back(config.ropes[i], HeadOfRope(config, static_cast<int>(i)), device);
  }
  layer_inputs_ = LayerInputs::Bind(config, layout.units[kEmbeddingUnit]);
  head_loss_.scale = config.logit_scale;
  head_loss_.cap = config.logit_cap;
  final_norm_ = {.weight = 0, .options = {config.norm_epsilon, config.norm}};
  if (config.norm == plan::NormKind::kLayerNorm) final_norm_.bias = 1;
  head_weight_ = std::max(final_norm_.weight, final_norm_.bias) + 1;
  head_loss_.chunk_rows = options.run.LogitsRows(config.vocab);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.push_back(DecoderBlock::Bind(config, layout.units[layer + 1], layer));
  }
  if (options.run.kept_on_host > 0) {
    on_host_ = std::make_unique<HostActivations>(device, blocks_.size(), options.run.most_tokens);
  }
}

WeightUse Decoder::BackwardUse(size_t layer) const {
  const bool runs_forward = PlanOf(layer).recompute >= plan::Recompute::kMlp;
  return runs_forward ? WeightUse::kBoth : WeightUse::kBackward;
}

BlockContext Decoder::MakeContext(const DeviceBatch& batch) const {
  // Attention has the tokens of all ranks that share the matrices.
  const bool all = batch.sharers != nullptr;
  return {batch.documents(),
          RopeTablesOf(all ? batch.all_positions : batch.positions, batch.documents().cu_seqlens,
                       all ? Tensor() : batch.numbers),
          MakeLinks(),
          batch.exchange,
          batch.keys,
          batch.sharers};
}

std::shared_ptr<LayerLinks> Decoder::MakeLinks() const {
  auto links = std::make_shared<LayerLinks>();
  links->heads.resize(blocks_.size());
  return links;
}

Tensor Decoder::InputsOfLayers(const Tensor& tokens, const Tensor& embedded, int64_t tile) {
  if (!layer_inputs_) return {};
  AcquiredUnit unit(source_, layout_, kEmbeddingUnit);
  return layer_inputs_.Forward(tokens, embedded, Pass{unit.weights(), {}, nullptr, tile});
}

bool Decoder::depends_on_length() const {
  return std::any_of(ropes_.begin(), ropes_.end(),
                     [](const Rope& rope) { return rope.depends_on_length(); });
}

std::vector<RopeTables> Decoder::RopeTablesOf(const Tensor& positions, const Tensor& cu_seqlens,
                                              const Tensor& numbers) const {
  Tensor lengths;  // of each token's document
  for (const Rope& rope : ropes_) {
    if (rope.depends_on_length() && !lengths.defined()) {
      const Tensor ends = cu_seqlens.narrow(0, 1, cu_seqlens.size(0) - 1).to(at::kLong);
      const Tensor tokens =
          numbers.defined() ? numbers : at::arange(positions.size(0), positions.options());
      const Tensor document = at::bucketize(tokens, ends, /*out_int32=*/false, /*right=*/true);
      lengths = cu_seqlens.to(at::kLong).diff().index_select(0, document);
    }
  }
  return RopeTablesAt(positions, lengths);
}

std::vector<RopeTables> Decoder::RopeTablesAt(const Tensor& positions,
                                              const Tensor& lengths) const {
  std::vector<RopeTables> tables;
  for (const Rope& rope : ropes_) tables.push_back(rope.Tables(positions, lengths));
  return tables;
}

const Tensor& Decoder::HeadWeight(const UnitWeights& head, const UnitWeights& embedding) const {
  return config_.tied_head ? embedding[kEmbedding] : head[head_weight_];
}

void Decoder::ScaleEmbedding(Tensor& rows) const {
  double scale = config_.embedding_scale;
  if (scale == 1.0) return;
  if (config_.rounds_embedding_scale) {
    scale = RoundedTo(scale, rows.scalar_type());
  }
  rows.mul_(scale);
}

Tensor Decoder::Embed(const Tensor& tokens, const Tensor& positions) {
  AcquiredUnit unit(source_, layout_, kEmbeddingUnit);
  Tensor rows = at::index_select(unit.weights()[kEmbedding], 0, tokens);
  ScaleEmbedding(rows);
  if (config_.learned_positions > 0) {
    rows.add_(at::index_select(unit.weights()[kPositions], 0, positions));
  }
  return rows;
}

// As transformers' hook on the module of the embedding: a scale that the module applies itself,
// with its rounding, leaves the noise as it is; one that follows multiplies it.
Tensor Decoder::EmbedNoisy(const DeviceBatch& batch, const DropoutKey* dropout) {
  const PhaseSpan span("embedding");
  Tensor rows = Embed(batch.tokens, batch.positions);
  if (options_.noise_alpha == 0.0 || dropout == nullptr) return rows;
  const double scale = config_.rounds_embedding_scale ? 1.0 : config_.embedding_scale;
  const int64_t length = std::max<int64_t>(batch.longest_row, 1);  // 0: padding alone
  const double elements = static_cast<double>(length * rows.size(1));
  AddNoise(rows, options_.noise_alpha * scale / std::sqrt(elements), *dropout, kEmbeddingNoise);
  return rows;
}

PieceWalk Decoder::Begin(DeviceBatch batch, const DropoutKey* dropout) const {
  PieceWalk walk{.batch = std::move(batch)};
  if (dropout != nullptr) walk.dropout = *dropout;
  walk.context = MakeContext(walk.batch);
  walk.saved.resize(blocks_.size());
  return walk;
}

Tensor Decoder::ForwardPiece(const UnitRange& units, PieceWalk& walk, Tensor x, bool keeps) {
  const DropoutKey* dropout = walk.key();
  if (units.Contains(kEmbeddingUnit)) {
    source_.Prefetch(kEmbeddingUnit, WeightUse::kBoth);
    if (units.Contains(1)) source_.Prefetch(1, WeightUse::kForward);
    x = EmbedNoisy(walk.batch, dropout);
    walk.context.links->inputs = InputsOfLayers(walk.batch.tokens, x, /*tile=*/0);
    if (DropsEmbedding(dropout)) {
      x = Dropout(x, config_.embedding_dropout, *dropout, kEmbeddingDropout);
    }
  }
  x = ForwardBlocks(units, std::move(x), walk.context, dropout, keeps ? &walk.saved : nullptr);
  if (keeps && units.Contains(layout_.head_unit())) walk.out = x;
  return x;
}

Tensor Decoder::Forward(const DeviceBatch& batch) {
  PieceWalk walk = Begin(batch, nullptr);
  return ForwardPiece(AllUnits(), walk, {}, /*keeps=*/false);
}

Tensor Decoder::ForwardBlocks(const UnitRange& units, Tensor x, const BlockContext& context,
                              const DropoutKey* dropout, std::vector<DecoderBlock::Saved>* saved) {
  // Below it nothing has a backward.
  const auto lowest = static_cast<size_t>(options_.run.InputFrom(LowestBlock() - 1));
  const int end = std::min(units.last, layout_.head_unit());
  for (int unit = std::max(units.first, 1); unit < end; ++unit) {
    const size_t layer = unit - 1;
    const PhaseSpan span("forward layer", unit - 1);
    AcquiredUnit acquired(source_, layout_, unit, WeightUse::kForward);
    const bool next_is_head = unit + 1 == layout_.head_unit();
    if (units.Contains(unit + 1)) {
      source_.Prefetch(unit + 1, next_is_head ? WeightUse::kBoth : WeightUse::kForward);
      if (next_is_head && config_.tied_head) source_.Prefetch(kEmbeddingUnit, WeightUse::kBoth);
    }
    const Pass pass = PassOf(acquired.weights(), context, dropout);
    const plan::BlockPlan plan = PlanOf(layer);
    const bool keeps = saved != nullptr && layer >= lowest;
    x = blocks_[layer].Forward(x, context, pass, plan, keeps ? &(*saved)[layer] : nullptr);
    if (!keeps) continue;
    if (!plan.keeps_input) (*saved)[layer].input = Tensor();
    if (plan.on_host) {
      on_host_->Put(layer, (*saved)[layer]);
    } else if (on_host_ != nullptr) {
      on_host_->Await();  // the last ones' rows need not stay
    }
  }
  if (on_host_ != nullptr) on_host_->Await();
  return x;
}

Pass Decoder::PassOf(const UnitWeights& weights, const BlockContext& context,
                     const DropoutKey* dropout) const {
  return {.weights = weights,
          .lora = options_.lora,
          .dropout = dropout,
          .balance = context.links->balance.get(),
          .exchange = context.exchange,
          .keys = context.keys.get(),
          .sharers = context.sharers};
}

Decoder::Normed Decoder::FinalNorm(const Tensor& x, const UnitWeights& head) const {
  Activation normed = at::empty_like(x);
  const Tensor statistics = final_norm_.Forward(normed, x, Pass{head, {}, nullptr});
  return {normed.rows, statistics};
}

Tensor Decoder::Head(const Tensor& x) {
  AcquiredUnit head(source_, layout_, layout_.head_unit());
  AcquiredUnit embedding(source_, layout_,
                         config_.tied_head ? kEmbeddingUnit : layout_.head_unit());
  const Tensor normed = FinalNorm(x, head.weights()).normed;
  Tensor logits = at::mm(normed, HeadWeight(head.weights(), embedding.weights()).t());
  head_loss_.Finish(logits);
  return logits;
}

Tensor Decoder::HeadByRow(const Tensor& x, int64_t tile) {
  // Elementwise operations of so few elements are not divided (kernels/elementwise_cpu.cc).
  constexpr int64_t kUndivided = 32768;
  AcquiredUnit head(source_, layout_, layout_.head_unit());
  AcquiredUnit embedding(source_, layout_,
                         config_.tied_head ? kEmbeddingUnit : layout_.head_unit());
  const Tensor normed = FinalNorm(x, head.weights()).normed;
  const Tensor& weight = HeadWeight(head.weights(), embedding.weights());
  Tensor logits = at::empty({x.size(0), weight.size(0)}, x.options());
  ops::RowProduct(logits, normed, weight, {}, 1.0, tile);
  if (!logits.is_cpu()) {
    head_loss_.Finish(logits);
    return logits;
  }
  for (int64_t row = 0; row < x.size(0); ++row) {
    for (int64_t first = 0; first < weight.size(0); first += kUndivided) {
      const int64_t count = std::min(kUndivided, weight.size(0) - first);
      Tensor part = logits.narrow(0, row, 1).narrow(1, first, count);
      head_loss_.Finish(part);
    }
  }
  return logits;
}

Tensor Decoder::Logits(const DeviceBatch& batch, const Tensor& tokens) {
  return LogitsOf(Forward(batch), tokens);
}

Tensor Decoder::LogitsOf(const Tensor& x, const Tensor& tokens) {
  return Head(tokens.defined() ? at::index_select(x, 0, tokens) : x);
}

Tensor Decoder::RunHead(const DeviceBatch& batch, const Tensor& x, HeadPass pass) {
  AcquiredUnit head(source_, layout_, layout_.head_unit());
  AcquiredUnit embedding(source_, layout_,
                         config_.tied_head ? kEmbeddingUnit : layout_.head_unit());
  const Tensor rows = at::index_select(x, 0, batch.loss_rows);
  const Tensor normed = FinalNorm(rows, head.weights()).normed;
  return (head_loss_.*pass)(normed, HeadWeight(head.weights(), embedding.weights()), batch.targets);
}

Tensor Decoder::Loss(const DeviceBatch& batch) { return LossOf(batch, Forward(batch)); }

Tensor Decoder::LossOf(const DeviceBatch& batch, const Tensor& x) {
  return RunHead(batch, x, &HeadLoss::Forward);
}

Tensor Decoder::RowLosses(const DeviceBatch& batch) {
  return RunHead(batch, Forward(batch), &HeadLoss::ForwardRows);
}

HeadLoss::Gradients Decoder::BackwardHead(const Tensor& x, const DeviceBatch& batch,
                                          GradientSink& sink, Tensor dx) {
  const PhaseSpan span("head and loss");
  const int unit = layout_.head_unit();
  AcquiredUnit head(source_, layout_, unit);
  AcquiredUnit embedding(source_, layout_, config_.tied_head ? kEmbeddingUnit : unit);
  const Tensor rows = at::index_select(x, 0, batch.loss_rows);
  const auto [normed, statistics] = FinalNorm(rows, head.weights());
  Tensor dweight =
      config_.tied_head ? sink.Buffer(kEmbeddingUnit, kEmbedding) : sink.Buffer(unit, head_weight_);
  UnitGradients gradients(sink, unit);
  const Tensor& weight = HeadWeight(head.weights(), embedding.weights());
  const bool need_dx = layout_.first_trainable() < unit || final_norm_.trained(gradients);
  HeadLoss::Gradients result =
      batch.objective ? head_loss_.ForwardBackwardRows(normed, weight, batch.targets, dweight,
                                                       need_dx, batch.objective)
                      : head_loss_.ForwardBackward(normed, weight, batch.targets, dweight, need_dx);
  if (result.dx.defined()) {
    Activation drows = result.dx;
    final_norm_.Backward(drows, result.dx, rows, statistics, Tensor(),
                         Pass{head.weights(), {}, nullptr}, gradients);
    if (!dx.defined()) dx = EmptyRows(x.size(0), x.size(1), GradientSpare(), x);
    dx.zero_().index_copy_(0, batch.loss_rows, drows.rows);
    result.dx = dx;
  }
  return result;
}

const Projection* Decoder::GradientReader(int unit, GradientSink& sink) const {
  const int first = layout_.first_trainable();
  if (!layout_.is_block(unit) || unit < first) return nullptr;
  UnitGradients gradients(sink, unit);
  return blocks_[unit - 1].GradientReader(gradients, /*need_dx=*/unit > first);
}

void Decoder::BackwardLayerInputs(Tensor dinputs, const DeviceBatch& batch,
                                  const DropoutKey* dropout, GradientSink& sink, Tensor& dx) {
  if (!layer_inputs_) return;
  const Tensor embedded = EmbedNoisy(batch, dropout);  // as the forward had it
  AcquiredUnit unit(source_, layout_, kEmbeddingUnit);
  UnitGradients gradients(sink, kEmbeddingUnit);
  layer_inputs_.Backward(std::move(dinputs), batch.tokens, embedded,
                         Pass{unit.weights(), {}, nullptr}, gradients, dx);
}

void Decoder::BackwardEmbedding(Tensor dx, const DeviceBatch& batch, const DropoutKey* dropout,
                                GradientSink& sink) {
  const PhaseSpan span("backward embedding");
  if (DropsEmbedding(dropout)) {
    dx = Dropout(dx, config_.embedding_dropout, *dropout, kEmbeddingDropout);
  }
  if (config_.learned_positions > 0) {
    Tensor positions = sink.Buffer(kEmbeddingUnit, kPositions);
    if (positions.defined()) AddRows(positions, batch.positions, dx);
  }
  Tensor buffer = sink.Buffer(kEmbeddingUnit, kEmbedding);
  if (buffer.defined()) {
    // transformers gives the embedding the pad token as padding_idx: its lookups have no gradient,
    // even where it is a chat format's end of turn. A tied head still trains the row.
    if (config_.pad_token >= 0) {
      dx.masked_fill_(batch.tokens.eq(config_.pad_token).unsqueeze(1), 0.0);
    }
    ScaleEmbedding(dx);
    AddRows(buffer, batch.tokens, dx);
  }
  sink.FinishUnit(kEmbeddingUnit);
}

int64_t Decoder::GradientSpare() const {
  int64_t most = 0;
  for (const DecoderBlock& block : blocks_) most = std::max(most, block.gradient_spare());
  return most;
}

int Decoder::LowestBlock() const { return std::max(layout_.first_trainable(), 1); }

void Decoder::FetchFor(int unit, std::vector<DecoderBlock::Saved>& saved) {
  const int64_t layer = unit - 1;
  if (on_host_ == nullptr || unit < LowestBlock() || saved[layer].input.defined()) return;
  const int64_t from = options_.run.InputFrom(layer);
  if (PlanOf(from).on_host && !saved[from].input.defined()) on_host_->Fetch(from, saved[from]);
}

void Decoder::RebuildInputs(size_t layer, const BlockContext& context, const DropoutKey* dropout,
                            std::vector<DecoderBlock::Saved>& saved) {
  size_t from = options_.run.InputFrom(static_cast<int64_t>(layer));
  for (; from < layer; ++from) {
    const int unit = static_cast<int>(from) + 1;
    AcquiredUnit acquired(source_, layout_, unit, WeightUse::kForward);
    source_.Prefetch(unit + 1, from + 1 == layer ? BackwardUse(layer) : WeightUse::kForward);
    const Pass pass = PassOf(acquired.weights(), context, dropout);
    saved[from + 1].input =
        blocks_[from].Forward(saved[from].input, context, pass, PlanOf(from), nullptr);
  }
}

void Decoder::PrefetchBefore(int unit, const std::vector<DecoderBlock::Saved>& saved) {
  if (unit - 1 < LowestBlock()) return;
  const int64_t next = unit - 2;
  const int64_t from = options_.run.InputFrom(next);
  if (from < next && !saved[next].input.defined()) {
    source_.Prefetch(static_cast<int>(from) + 1, WeightUse::kForward);
  } else {
    source_.Prefetch(unit - 1, BackwardUse(next));
  }
}

Tensor Decoder::BackwardBlocks(const UnitRange& units, Tensor drows, const BlockContext& context,
                               const DropoutKey* dropout, std::vector<DecoderBlock::Saved>& saved,
                               GradientSink& sink, bool finish) {
  const int first = layout_.first_trainable();
  const int highest = std::min(units.last, layout_.head_unit()) - 1;
  const int lowest = std::max(units.first, LowestBlock());
  Activation dx = std::move(drows);
  FetchFor(highest, saved);
  for (int unit = highest; unit >= lowest; --unit) {
    const size_t layer = unit - 1;
    const PhaseSpan span("backward layer", unit - 1);
    if (on_host_ != nullptr) on_host_->Await();
    if (!saved[layer].input.defined()) RebuildInputs(layer, context, dropout, saved);
    FetchFor(unit - 1, saved);
    AcquiredUnit acquired(source_, layout_, unit, BackwardUse(layer));
    if (unit > lowest) PrefetchBefore(unit, saved);
    const Pass pass = PassOf(acquired.weights(), context, dropout);
    UnitGradients gradients(sink, unit);
    dx = blocks_[layer].Backward(std::move(dx), context, pass, PlanOf(layer), saved[layer],
                                 gradients, /*need_dx=*/unit > first,
                                 GradientReader(unit - 1, sink));
    saved[layer] = {};
    if (finish && layout_.units[unit].trainable()) sink.FinishUnit(unit);
  }
  return dx.rows;
}

Tensor Decoder::ForwardBackward(const DeviceBatch& batch, const DropoutKey* dropout,
                                GradientSink& sink) {
  if (graphs_ != nullptr) return RunRecorded(graphs_->Begin(batch), batch, dropout, sink);
  PieceWalk walk = Begin(batch, dropout);
  if (options_.router_balance > 0.0) {
    // As the loss of tokens, which is a sum over those that count.
    const auto weight = options_.router_balance * static_cast<double>(batch.targets.size(0));
    walk.context.links->balance = std::make_unique<RouterBalance>(weight);
  }
  ForwardPiece(AllUnits(), walk, {}, /*keeps=*/true);
  return BackwardPiece(AllUnits(), walk, {}, sink).loss;
}

Decoder::PieceGradients Decoder::BackwardPiece(const UnitRange& units, PieceWalk& walk, Tensor dy,
                                               GradientSink& sink) {
  const DeviceBatch& batch = walk.batch;
  LayerLinks& links = *walk.context.links;
  PieceGradients result;
  if (units.Contains(layout_.head_unit())) {
    HeadLoss::Gradients of_head = BackwardHead(walk.out, batch, sink, {});
    result.loss = std::move(of_head.loss);
    if (links.balance) result.loss = result.loss.add(links.balance->Finish());
    walk.out = Tensor();
    if (layout_.units[layout_.head_unit()].trainable()) sink.FinishUnit(layout_.head_unit());
    // The copy of the table beside the head of another stage than the embedding's.
    const bool copies =
        config_.tied_head && layout_.stages.StageOf(kEmbeddingUnit) != layout_.stage;
    if (copies && sink.Trains(kEmbeddingUnit, kEmbedding)) sink.FinishUnit(kEmbeddingUnit);
    dy = std::move(of_head.dx);
  } else if (dy.defined()) {
    const Tensor rows = EmptyRows(dy.size(0), dy.size(1), GradientSpare(), dy);
    dy = rows.copy_(dy);
  }
  const bool to_embedding =
      units.Contains(kEmbeddingUnit) && layout_.first_trainable() == kEmbeddingUnit;
  if (to_embedding && links.inputs.defined()) links.dinputs = at::empty_like(links.inputs);
  dy = BackwardBlocks(units, std::move(dy), walk.context, walk.key(), walk.saved, sink,
                      /*finish=*/true);
  if (to_embedding) {
    BackwardLayerInputs(std::exchange(links.dinputs, Tensor()), batch, walk.key(), sink, dy);
    BackwardEmbedding(std::move(dy), batch, walk.key(), sink);
  } else if (NeedsGradient(units.first)) {
    result.dx = std::move(dy);
  }
  return result;
}

void Decoder::RecordBlocks(std::unique_ptr<GraphRecorder> recorder, GradientSink& sink) {
  const auto forward = [this](BlockGraphs::Walk& walk) {
    walk.context = MakeContext(walk.batch);
    walk.saved.resize(blocks_.size());
    walk.y.copy_(ForwardBlocks(AllUnits(), walk.x, walk.context, nullptr, &walk.saved));
  };
  const auto backward = [this, &sink](BlockGraphs::Walk& walk) {
    BackwardBlocks(AllUnits(), walk.dx, walk.context, nullptr, walk.saved, sink,
                   /*finish=*/false);
    walk.context = {};
    walk.saved.clear();
  };
  const Tensor first = at::zeros({1}, ropes_[0].inverse_frequencies().options().dtype(at::kLong));
  const Tensor row = Embed(first, first);
  graphs_ = std::make_unique<BlockGraphs>(std::move(recorder), BlockGraphs::Work{forward, backward},
                                          row, GradientSpare());
}

// Weights that changed are written where the recording reads them; sums are zeroed when the head's
// backward asks for its own.
Tensor Decoder::RunRecorded(BlockGraphs::Walk& walk, const DeviceBatch& batch,
                            const DropoutKey* dropout, GradientSink& sink) {
  for (int unit = 1; unit < layout_.head_unit(); ++unit) {
    UnitWeights weights(layout_.units[unit]);
    source_.Acquire(unit, weights);
    source_.Release(unit);
  }
  walk.x.copy_(EmbedNoisy(batch, dropout));
  {
    const PhaseSpan span("forward blocks");
    graphs_->Forward();
  }
  const Tensor loss = BackwardHead(walk.y, batch, sink, walk.dx).loss;
  if (layout_.units[layout_.head_unit()].trainable()) sink.FinishUnit(layout_.head_unit());
  {
    const PhaseSpan span("backward blocks");
    graphs_->Backward();
  }
  for (int unit = layout_.head_unit() - 1; unit >= LowestBlock(); --unit) {
    if (layout_.units[unit].trainable()) sink.FinishUnit(unit);
  }
  if (layout_.first_trainable() == kEmbeddingUnit) BackwardEmbedding(walk.dx, batch, nullptr, sink);
  return loss;
}

}  // namespace sft::engine
