#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "common/plan/execution.h"
#include "worker/engine/model/config.h"
#include "worker/engine/nn/delta_net.h"
#include "worker/engine/nn/experts.h"
#include "worker/engine/nn/layer_input.h"
#include "worker/engine/nn/mlp.h"
#include "worker/engine/nn/norm.h"
#include "worker/engine/nn/router_balance.h"
#include "worker/engine/nn/self_attention.h"

namespace sft::engine {

// What goes from layer to layer of a micro-batch beside the residual stream.
struct LayerLinks {
  std::vector<SharedHeads> heads;  // by the layer that makes them
  // [T, L P]: inputs that layers have of their own, and their gradients; undefined: there are none,
  // or they are not wanted.
  at::Tensor inputs, dinputs;
  std::unique_ptr<RouterBalance> balance;  // null: routers are not balanced
};

// Inputs of a micro-batch that all blocks share.
struct BlockContext {
  ops::Documents documents;
  std::vector<RopeTables> ropes;  // one for each of the model's
  std::shared_ptr<LayerLinks> links;
  const HeadExchange* exchange = nullptr;  // DeviceBatch's
  std::shared_ptr<const KeyGather> keys;   // likewise
  const TokenExchange* sharers = nullptr;  // likewise
};

// What stands around a sub-layer.
struct SubLayerEnds {
  Norm before;                  // of what the sub-layer reads
  Norm after;                   // of what it writes, before that is added to the residual stream
  uint64_t dropout_module = 0;  // identifies the mask of what it writes
};

// Where experts are a branch beside the feed-forward layer, which both read x through norms of
// their own: the layer is mlp_after(mlp(before(x))) + experts_after(experts(experts_before(x))),
// and the router reads x itself.
struct BranchNorms {
  Norm mlp_after, experts_before, experts_after;

  explicit operator bool() const { return static_cast<bool>(experts_before); }
};

// One layer: x + attention(x), then + mlp(.), each with norms before or behind it or both. Holds
// positions of parameters in its unit, no tensors. T tokens, H hidden size.
struct DecoderBlock {
  SelfAttention attention;
  DeltaNet delta;  // where the layer has one, in the place of `attention`
  Mlp mlp;
  // Where the layer has them: in the place of `mlp`, or beside it as the expert of all tokens.
  Experts experts;
  LayerInput input;  // where the layer has an input of its own
  SubLayerEnds attention_ends, mlp_ends, input_ends;
  BranchNorms branches;  // where experts and `mlp` are branches; else both read one input
  int64_t keys_of = 0;   // the layer whose keys and values it attends to, its own or another
  int rope = 0;          // which of BlockContext::ropes
  // Multiplies what a sub-layer writes before it is added to the residual stream.
  double residual_scale = 1.0;
  double residual_dropout = 0.0;  // of it, while training
  int scale = -1;  // position of the constant that multiplies what the block writes; -1: none

  // Finds the parameters of layer `layer` in its unit (adapters included).
  static DecoderBlock Bind(const ModelConfig& config, const UnitInfo& unit, int64_t layer);

  // What a sub-layer wrote, where a norm stands behind it.
  struct NormedOutput {
    at::Tensor rows, statistics;
  };

  struct Saved {
    at::Tensor input;                           // [T, H]
    at::Tensor input_normed, input_statistics;  // rows [T, H]; what attention reads
    NormedOutput attention_out;
    at::Tensor middle;  // [T, H]: after the attention's residual
    at::Tensor middle_normed, middle_statistics;
    NormedOutput mlp_out;
    at::Tensor experts_normed, experts_statistics;  // of branches: rows that experts read
    NormedOutput mlp_branch, experts_branch;
    at::Tensor before_input;  // rows [T, H]: what is read beside the layer's own input
    NormedOutput input_out;
    SelfAttention::Saved attention;
    DeltaNet::Saved delta;
    Mlp::Saved mlp;
    Experts::Saved experts;
    std::vector<Experts::Saved> experts_of_tiles;
    LayerInput::Saved input_layer;
  };

  // x [T, H] -> [T, H]. `saved` may be null: forward only.
  at::Tensor Forward(const at::Tensor& x, const BlockContext& context, const Pass& pass,
                     const plan::BlockPlan& plan, Saved* saved) const;

  // Forward only, after tokens that were there before. For generation, which keeps keys and values,
  // or states.
  struct Past {
    // Supplies attention: gets q, k, v (rotated; borrowed ones are undefined) and returns
    // [T, heads, D].
    std::function<at::Tensor(const SelfAttention::Heads& projected)> attend;
    // Of a gated DeltaNet.
    const ops::Pieces& pieces;
    DeltaNet::States& states;
  };
  at::Tensor ForwardWith(const at::Tensor& x, const BlockContext& context, const Pass& pass,
                         const Past& past) const;

  // Columns to spare that the gradient of a block's output needs.
  int64_t gradient_spare() const {
    return std::max({mixer_out().spare(), mlp.down.spare(), input.projection.spare()});
  }

  // The projection whose weight Backward multiplies that gradient by; null where it does not.
  const Projection* GradientReader(UnitGradients& gradients, bool need_dx) const;

  // Adds the parameters' gradients; returns the gradient of x, undefined unless `need_dx`, in the
  // place of dy [T, H], which has gradient_spare() columns to spare. `reader`: who reads that next,
  // the GradientReader of the block before, whose weights are in FP8 where this block's are; may be
  // null. Consumes `saved`. `plan` as in the forward.
  Activation Backward(Activation dy, const BlockContext& context, const Pass& pass,
                      const plan::BlockPlan& plan, Saved& saved, UnitGradients& gradients,
                      bool need_dx, const Projection* reader) const;

 private:
  // What mixes tokens, attention or `delta`: what its input and its output go through.
  const Projection& mixer_in() const { return delta ? delta.in : attention.qkv; }
  const Projection& mixer_out() const { return delta ? delta.out : attention.o; }
  bool MixerInputsTrained(UnitGradients& gradients) const {
    return delta ? delta.inputs_trained(gradients) : attention.inputs_trained(gradients);
  }
  void Mix(at::Tensor& y, const at::Tensor& residual, const BlockContext& context, const Pass& pass,
           Saved& saved) const;
  // Drops of what RunMixer made what `level` makes again.
  void DropMixerRows(plan::Recompute level, Saved& saved) const;
  // Drops what the mixer read, but, where `keeps_xa`, not its product with adapters.
  void DropInputNormed(bool keeps_xa, Saved& saved) const;
  // Of dout, the gradient of what the mixer writes; makes that of what it reads only where dinput
  // is not null.
  void MixerBackward(Activation dout, const BlockContext& context, const Pass& pass, Saved& saved,
                     UnitGradients& gradients, at::Tensor* dinput) const;
  // To `saved.middle`, without what `level` makes again.
  void RunMixer(const at::Tensor& x, const BlockContext& context, const Pass& pass,
                plan::Recompute level, Saved& saved) const;
  // From `saved.middle` on.
  at::Tensor RunFromMiddle(const BlockContext& context, const Pass& pass,
                           const plan::BlockPlan& plan, Saved& saved) const;
  // Writes y [T, H], the residual stream behind the feed-forward layer.
  void RunMlp(at::Tensor& y, const Pass& pass, Saved& saved) const;
  // Writes the sum of both branches, of what `mlp` reads.
  void RunBranches(at::Tensor& sum, Activation normed, const Pass& pass, Saved& saved) const;
  // Makes `saved.experts_normed`.
  void NormForExperts(const Pass& pass, Saved& saved) const;
  // What is kept of the feed-forward layer for the norms behind it.
  std::vector<NormedOutput*> MlpOutputs(Saved& saved) const {
    if (branches) return {&saved.mlp_out, &saved.mlp_branch, &saved.experts_branch};
    return {&saved.mlp_out};
  }
  // The same, some rows after the other; fills no more than a backward in tiles reads.
  void RunMlpInTiles(at::Tensor& y, const plan::BlockPlan& plan, const Pass& pass,
                     Saved& saved) const;
  // True if the feed-forward layer runs in tiles of tokens. Not where its backward finds all of its
  // rows kept, nor where a layer with an input of its own reads behind it.
  bool InTiles(const plan::BlockPlan& plan, int64_t tokens) const {
    return !input && plan.recompute >= plan::Recompute::kMlp && plan.mlp_rows > 0 &&
           plan.mlp_rows < tokens;
  }
  // Adds to x what the layer makes of it and of its own input.
  at::Tensor RunInput(const at::Tensor& x, const BlockContext& context, const Pass& pass,
                      Saved& saved) const;
  void InputBackward(Activation& dy, const BlockContext& context, const Pass& pass, Saved& saved,
                     UnitGradients& gradients) const;
  SharedHeads* SharedOf(const BlockContext& context) const {
    const bool shares = attention.lends || attention.borrows;
    return shares ? &context.links->heads[keys_of] : nullptr;
  }
  void Restore(const BlockContext& context, const Pass& pass, const plan::BlockPlan& plan,
               Saved& saved) const;
  void RestoreMlp(const Pass& pass, Saved& saved) const;
  bool HasMlp() const { return mlp.down.inputs() > 0; }
  // Room for what the feed-forward layer reads of x; `again`: for what the backward reads alone.
  Activation MlpInput(const at::Tensor& x, const Pass& pass, bool again = false) const;
  // Multiplies what the block writes, or its gradient.
  void Scale(at::Tensor& rows, const Pass& pass) const {
    if (scale >= 0) rows.mul_(pass.weights[scale]);
  }
  // What a sub-layer reads, in `input`: the norm of x, or x itself where there is none.
  Activation Before(Activation input, const at::Tensor& x, const SubLayerEnds& ends,
                    const Pass& pass, at::Tensor& statistics) const;
  bool Drops(const Pass& pass) const { return residual_dropout > 0.0 && pass.dropout != nullptr; }
  // sum [T, H] = x plus what a sub-layer writes, normed, dropped out or scaled. sub_layer(y,
  // addend) writes its output to y [T, H], plus `addend` where it is defined.
  template <typename SubLayer>
  void AddSubLayer(at::Tensor& sum, const at::Tensor& x, const SubLayerEnds& ends, const Pass& pass,
                   NormedOutput& out, const SubLayer& sub_layer) const;
  // True if the gradient of the residual stream is that of a sub-layer's output, too.
  bool IsPlain(const SubLayerEnds& ends) const {
    return residual_scale == 1.0 && !ends.after && residual_dropout == 0.0;
  }
  // The gradient of what `last`, a sub-layer's last projection, writes, made of that of the
  // residual stream, whose rows stay and whose FP8 rows it may take. Consumes `out`; adds the
  // gradient of the norm behind the sub-layer.
  // `last` is null for experts, whose products read plain rows.
  Activation SubLayerGradient(Activation& dy, const Projection* last, const SubLayerEnds& ends,
                              NormedOutput& out, const Pass& pass, UnitGradients& gradients) const;
  // True if the gradient of the feed-forward layer's input is needed.
  bool NeedsMlpInput(UnitGradients& gradients, bool need_dx) const;
  // The feed-forward layer's part of the backward: of dy, the gradient of `saved.middle` in the
  // place of dy's rows, undefined unless `need_input`; for `reader` as AddBeforeBackward. Consumes
  // all of `saved` that is the layer's. In tiles, there is nothing for a reader yet.
  Activation MlpBackward(Activation dy, const Pass& pass, Saved& saved, UnitGradients& gradients,
                         bool need_input, const Projection* reader) const;
  // Of dsum, the gradient of what RunBranches writes: adds that of what the experts' branch reads
  // to `dresidual`, writes that of what `mlp` reads, where dx is not null: else neither is needed.
  void BranchesBackward(const at::Tensor& dsum, at::Tensor& dresidual, const Pass& pass,
                        Saved& saved, UnitGradients& gradients, at::Tensor* dx) const;
  Activation MlpBackwardInTiles(const Activation& dy, int64_t rows, const Pass& pass, Saved& saved,
                                UnitGradients& gradients, bool need_input) const;
  // `dresidual` plus the gradient of what a sub-layer read of x, made of that of its input, in the
  // place of `dresidual`, in FP8 too where `reader`, which may be null, multiplies it so; adds the
  // norm's own gradient.
  Activation AddBeforeBackward(const at::Tensor& dresidual, const at::Tensor& dinput,
                               const at::Tensor& x, const at::Tensor& statistics,
                               const SubLayerEnds& ends, const Pass& pass, UnitGradients& gradients,
                               const Projection* reader) const;
};

}  // namespace sft::engine
