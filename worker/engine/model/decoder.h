#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "common/plan/execution.h"
#include "worker/engine/kernels/graph.h"
#include "worker/engine/model/block_graphs.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/decoder_block.h"
#include "worker/engine/model/host_activations.h"
#include "worker/engine/model/layer_inputs.h"
#include "worker/engine/nn/head_loss.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Options of a decoder, fixed for its life.
struct DecoderOptions {
  LoraScaling lora;
  double noise_alpha = 0.0;  // of NEFTune; 0: none
  // Weight of the routers' balance (nn/router_balance.h) beside the mean loss of a token; 0: none.
  double router_balance = 0.0;
  plan::ExecutionPlan run;  // what each block recomputes, and how many logits are made at a time
};

// Consecutive units of a layout: all of a model, or a piece of it that a stage of a pipeline holds.
struct UnitRange {
  int first = 0;
  int last = 0;  // behind the last one

  bool Contains(int unit) const { return first <= unit && unit < last; }
};

// A micro-batch on its way through a piece of the model: what the forward leaves to the backward.
struct PieceWalk {
  DeviceBatch batch;
  std::optional<DropoutKey> dropout;  // of masks and noise; nothing: there are none
  BlockContext context;
  std::vector<DecoderBlock::Saved> saved;  // by layer
  at::Tensor out;                          // what the last block wrote, where the head is next

  const DropoutKey* key() const { return dropout ? &*dropout : nullptr; }
};

// The model walked unit by unit: forward, and backward in reverse. Weights come from a
// WeightSource, gradients go to a GradientSink; the decoder decides only the order. Every
// micro-batch walks the same units in the same order, whatever it holds, so sources and sinks may
// communicate. Thread-compatible.
class Decoder {
 public:
  // Borrows `layout` and `source`.
  Decoder(const ModelConfig& config, const ModelLayout& layout, WeightSource& source,
          at::Device device, const DecoderOptions& options);

  // Sum of the cross entropies over the batch's targets (fp64 scalar on the device), or what the
  // batch's objective makes of them; adds the
  // unnormalised gradients to `sink` and finishes every trained unit. `dropout` draws masks and
  // noise, null: there are none.
  at::Tensor ForwardBackward(const DeviceBatch& batch, const DropoutKey* dropout,
                             GradientSink& sink);

  // ForwardBackward piece by piece, for a pipeline whose stages hold some units each. Pieces run
  // forward in the order of the model and backward in the reverse.
  UnitRange AllUnits() const { return {0, layout_.size()}; }
  // Begins the walk of a micro-batch. Its dropout is none where the pointer is null.
  PieceWalk Begin(DeviceBatch batch, const DropoutKey* dropout) const;
  // The forward of the units: of x [T, H], what the piece before wrote, undefined where the
  // embedding is among them; returns what the last of their blocks wrote. `keeps`: a backward
  // follows.
  at::Tensor ForwardPiece(const UnitRange& units, PieceWalk& walk, at::Tensor x, bool keeps);
  struct PieceGradients {
    at::Tensor loss;  // as ForwardBackward's, where the head is among the units
    at::Tensor dx;    // of what they read; undefined where NeedsGradient says so
  };
  // The backward of what ForwardPiece kept: of dy [T, H], the gradient of what it returned,
  // undefined where the head is among the units. Finishes their trained ones.
  PieceGradients BackwardPiece(const UnitRange& units, PieceWalk& walk, at::Tensor dy,
                               GradientSink& sink);
  // True if something before unit `first` is trained: its piece gives a gradient back.
  bool NeedsGradient(int first) const { return layout_.first_trainable() < first; }
  // The sum of Loss, the losses of RowLosses or the logits of Logits, of what the last piece's
  // ForwardPiece returned.
  at::Tensor LossOf(const DeviceBatch& batch, const at::Tensor& x);
  at::Tensor LogitsOf(const at::Tensor& x, const at::Tensor& tokens);

  // Has the blocks of ForwardBackward recorded by the shape of the micro-batch (BlockGraphs). It is
  // then called with this sink alone, and without dropout, whose masks would not change; source and
  // sink are fixed(). A unit's gradients are exchanged only when all blocks have theirs.
  void RecordBlocks(std::unique_ptr<GraphRecorder> recorder, GradientSink& sink);
  const BlockGraphs* graphs() const { return graphs_.get(); }  // null: not recorded
  // Host memory for what blocks keep; null: the device keeps all.
  const HostActivations* on_host() const { return on_host_.get(); }

  // The same sum, forward only, without dropout; and the cross entropy of each target, fp64 [N].
  at::Tensor Loss(const DeviceBatch& batch);
  at::Tensor RowLosses(const DeviceBatch& batch);

  // Logits of every token [T, V], or of those whose numbers `tokens` holds, without dropout.
  at::Tensor Logits(const DeviceBatch& batch, const at::Tensor& tokens = {});

  // The pieces of a forward, for generation.
  const std::vector<DecoderBlock>& blocks() const { return blocks_; }
  // True if a rope turns otherwise in long documents.
  bool depends_on_length() const;
  // The tables of each of the model's ropes. `positions`: int64 [T] on the device; `numbers` of the
  // tokens as DeviceBatch has them, and `cu_seqlens` as ops::Documents, both read only where
  // depends_on_length().
  std::vector<RopeTables> RopeTablesOf(const at::Tensor& positions, const at::Tensor& cu_seqlens,
                                       const at::Tensor& numbers) const;
  // The same, where `lengths`, int64 [T], are those of each token's document.
  std::vector<RopeTables> RopeTablesAt(const at::Tensor& positions,
                                       const at::Tensor& lengths) const;
  // What goes between the blocks of a micro-batch, with nothing in it yet.
  std::shared_ptr<LayerLinks> MakeLinks() const;
  // LayerLinks::inputs of tokens int64 [N] and what Embed makes of them; undefined where layers
  // have none. `tile`: as Pass has it.
  at::Tensor InputsOfLayers(const at::Tensor& tokens, const at::Tensor& embedded, int64_t tile);
  WeightSource& source() { return source_; }
  const ModelLayout& layout() const { return layout_; }
  const LoraScaling& lora() const { return options_.lora; }
  // Rows [N, H] of tokens int64 [N] at positions int64 [N], without dropout.
  at::Tensor Embed(const at::Tensor& tokens, const at::Tensor& positions);
  // Final norm and head of x [N, H] -> [N, V].
  at::Tensor Head(const at::Tensor& x);
  // The same, where the bits of a row do not depend on the rows beside it.
  at::Tensor HeadByRow(const at::Tensor& x, int64_t tile);

 private:
  // Forward only, of the whole model.
  at::Tensor Forward(const DeviceBatch& batch);
  at::Tensor ForwardBlocks(const UnitRange& units, at::Tensor x, const BlockContext& context,
                           const DropoutKey* dropout, std::vector<DecoderBlock::Saved>* saved);
  using HeadPass = at::Tensor (HeadLoss::*)(const at::Tensor& x, const at::Tensor& weight,
                                            const at::Tensor& targets) const;
  at::Tensor RunHead(const DeviceBatch& batch, const at::Tensor& x, HeadPass pass);
  // Loss, and the gradient of the last block's output: in `dx`, or where that is undefined in rows
  // that are made.
  HeadLoss::Gradients BackwardHead(const at::Tensor& x, const DeviceBatch& batch,
                                   GradientSink& sink, at::Tensor dx);
  // Of the units' blocks the trained ones and those above; `drows` as the dy of
  // DecoderBlock::Backward. `finish` them.
  at::Tensor BackwardBlocks(const UnitRange& units, at::Tensor drows, const BlockContext& context,
                            const DropoutKey* dropout, std::vector<DecoderBlock::Saved>& saved,
                            GradientSink& sink, bool finish);
  // Starts to bring back what the backward of `unit` begins with, where that is in host memory.
  void FetchFor(int unit, std::vector<DecoderBlock::Saved>& saved);
  // Makes the input of block `layer` again, and of those before it from the one that kept its own.
  void RebuildInputs(size_t layer, const BlockContext& context, const DropoutKey* dropout,
                     std::vector<DecoderBlock::Saved>& saved);
  // Prefetches the weights that the walk back acquires after those of `unit`.
  void PrefetchBefore(int unit, const std::vector<DecoderBlock::Saved>& saved);
  // ForwardBackward with recorded blocks.
  at::Tensor RunRecorded(BlockGraphs::Walk& walk, const DeviceBatch& batch,
                         const DropoutKey* dropout, GradientSink& sink);
  // Embed, with NEFTune's noise where `dropout` says that this is a training's forward.
  at::Tensor EmbedNoisy(const DeviceBatch& batch, const DropoutKey* dropout);
  // The projection that multiplies the gradient of the output of `unit`; null if there is none.
  const Projection* GradientReader(int unit, GradientSink& sink) const;
  // Multiplies what the embedding's table gives, or its gradient.
  void ScaleEmbedding(at::Tensor& rows) const;
  // Overwrites dx.
  void BackwardEmbedding(at::Tensor dx, const DeviceBatch& batch, const DropoutKey* dropout,
                         GradientSink& sink);
  // Adds the gradients of what makes the layers' own inputs, and that of the embedding to dx.
  void BackwardLayerInputs(at::Tensor dinputs, const DeviceBatch& batch, const DropoutKey* dropout,
                           GradientSink& sink, at::Tensor& dx);
  bool DropsEmbedding(const DropoutKey* dropout) const {
    return dropout != nullptr && config_.embedding_dropout > 0.0;
  }
  Pass PassOf(const UnitWeights& weights, const BlockContext& context,
              const DropoutKey* dropout) const;
  struct Normed {
    at::Tensor normed, statistics;
  };
  Normed FinalNorm(const at::Tensor& x, const UnitWeights& head) const;
  const at::Tensor& HeadWeight(const UnitWeights& head, const UnitWeights& embedding) const;
  BlockContext MakeContext(const DeviceBatch& batch) const;
  plan::BlockPlan PlanOf(size_t layer) const {
    return options_.run.BlockOf(static_cast<int64_t>(layer), config_.layers);
  }
  // Columns to spare in the rows of the gradient that goes from block to block: room for the
  // adapters of each that reads it.
  int64_t GradientSpare() const;
  // The lowest block that has a backward, as a unit.
  int LowestBlock() const;
  // The use that the backward of a block makes of its weights.
  WeightUse BackwardUse(size_t layer) const;

  ModelConfig config_;
  const ModelLayout& layout_;
  WeightSource& source_;
  DecoderOptions options_;
  std::vector<Rope> ropes_;
  LayerInputs layer_inputs_;
  HeadLoss head_loss_;
  Norm final_norm_;
  int head_weight_ = 0;  // its position in the head's unit, where it is not tied
  std::vector<DecoderBlock> blocks_;
  std::unique_ptr<BlockGraphs> graphs_;
  std::unique_ptr<HostActivations> on_host_;  // null: the device keeps all
};

}  // namespace sft::engine
