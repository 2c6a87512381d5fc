#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>

#include "common/plan/execution.h"
#include "worker/engine/model/config.h"
#include "worker/engine/nn/mlp.h"
#include "worker/engine/nn/self_attention.h"

namespace sft::engine {

// Inputs of a micro-batch that all blocks share.
struct BlockContext {
  ops::Documents documents;
  std::vector<RopeTables> ropes;  // one for each of the model's
};

// One layer: x + attention(norm(x)), then + mlp(norm(.)). Holds positions of parameters in its
// unit, no tensors. T tokens, H hidden size.
struct DecoderBlock {
  SelfAttention attention;
  GatedMlp mlp;
  int input_norm = -1;
  int post_norm = -1;
  double epsilon = 0.0;
  int rope = 0;  // which of BlockContext::ropes
  // Multiplies what a sub-layer writes before it is added to the residual stream.
  double residual_scale = 1.0;

  // Finds the parameters of layer `layer` in its unit (adapters included).
  static DecoderBlock Bind(const ModelConfig& config, const UnitInfo& unit, int64_t layer);

  struct Saved {
    at::Tensor input;                     // [T, H]
    at::Tensor input_normed, input_rstd;  // rows [T, H], [T]
    at::Tensor middle;                    // [T, H]: after the attention's residual
    at::Tensor middle_normed, middle_rstd;
    SelfAttention::Saved attention;
    GatedMlp::Saved mlp;
  };

  // x [T, H] -> [T, H]. `saved` may be null: forward only.
  at::Tensor Forward(const at::Tensor& x, const BlockContext& context, const Pass& pass,
                     plan::Recompute recompute, Saved* saved) const;

  // Forward only, with attention supplied by the caller: `attend` gets q, k, v (rotated) and
  // returns [T, heads * D]. For generation, which keeps keys and values.
  using Attend = std::function<at::Tensor(const SelfAttention::Heads& projected)>;
  at::Tensor ForwardWith(const at::Tensor& x, const std::vector<RopeTables>& ropes,
                         const Pass& pass, const Attend& attend) const;

  // Columns to spare that the gradient of a block's output needs.
  int64_t gradient_spare() const { return std::max(attention.o.spare(), mlp.down.spare()); }

  // The projection whose weight Backward multiplies that gradient by; null where it does not.
  const Projection* GradientReader(UnitGradients& gradients, bool need_dx) const;

  // Adds the parameters' gradients; returns the gradient of x, undefined unless `need_dx`, in the
  // place of dy [T, H], which has gradient_spare() columns to spare. `reader`: who reads that next,
  // the GradientReader of the block before, whose weights are in FP8 where this block's are; may be
  // null. Consumes `saved`.
  Activation Backward(Activation dy, const BlockContext& context, const Pass& pass, Saved& saved,
                      UnitGradients& gradients, bool need_dx, const Projection* reader) const;

 private:
  at::Tensor Run(const at::Tensor& x, const BlockContext& context, const Pass& pass,
                 Saved& saved) const;
  // What a sub-layer with the residual stream `x` adds to its last product; undefined where the
  // product is scaled first.
  at::Tensor Addend(const at::Tensor& x) const;
  // y = x + residual_scale * y, unless the product made it so already.
  void AddResidual(at::Tensor& y, const at::Tensor& x) const;
  // The gradient of the output of `last`, a sub-layer's last projection, made of that of the
  // residual stream, whose rows stay and whose FP8 rows it may take.
  Activation SubLayerGradient(Activation& dy, const Projection& last) const;
  // From `saved.middle` on.
  at::Tensor RunMlp(const Pass& pass, Saved& saved) const;
  void Restore(const BlockContext& context, const Pass& pass, Saved& saved) const;
  // The norm of x, in `normed`.
  Activation Norm(Activation normed, const at::Tensor& x, int norm, const Pass& pass,
                  at::Tensor& rstd) const;
  // True if the gradient of the feed-forward layer's input is needed.
  bool NeedsMlpInput(UnitGradients& gradients, bool need_dx) const;
  // `dresidual` plus the gradient of the norm's input, in its place, in FP8 too where `reader`,
  // which may be null, multiplies it so; adds the norm's own gradient.
  Activation AddNormBackward(const at::Tensor& dresidual, const at::Tensor& dnormed,
                             const at::Tensor& x, const at::Tensor& rstd, int norm,
                             const Pass& pass, UnitGradients& gradients,
                             const Projection* reader) const;
};

}  // namespace sft::engine
