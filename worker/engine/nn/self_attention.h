#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "worker/engine/nn/batch.h"
#include "worker/engine/nn/projection.h"
#include "worker/engine/nn/rope.h"

namespace sft::engine {

// Keys and values that several layers attend to, from the forward of the layer that makes them to
// its backward: normed and rotated, and fp32 sums of the gradients that the others have of them.
struct SharedHeads {
  at::Tensor k, v;    // [T, kv_heads, D]
  at::Tensor dk, dv;  // undefined: none yet
};

// Grouped-query attention with rotary positions; optional biases, norms of queries, keys and values
// and sliding window. Positions of parameters are those in the unit. Rows have the spare columns
// that their projection asks for (projection.h).
struct SelfAttention {
  Projection qkv, o;
  int q_norm = -1;
  int k_norm = -1;
  int sinks = -1;  // a score of each head that has no value (ops::AddSinks); -1: none
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: a token sees all before it
  double scale = 0.0;
  plan::QkNorm qk_norm = plan::QkNorm::kNone;
  bool value_norm = false;       // over each head, without a weight
  bool keys_are_values = false;  // values are normed keys as projected; with value_norm alone
  bool lends = false;            // its keys and values go to SharedHeads, for other layers
  bool borrows = false;          // it projects queries alone, and attends to those of SharedHeads
  bool output_gate = false;      // what `o` reads is out * sigmoid(gates), which stand behind each
                                 // head's queries: of 2 heads' width each; with norms of heads
  ops::NormOptions norm = 0.0;
  double dropout = 0.0;  // of the probabilities, while training
  uint64_t dropout_module = 0;

  // Views of rows [T, (heads + 2 kv_heads) D] by head; where keys are values, of one kv_heads less,
  // and with output_gate of `heads` more.
  struct Heads {
    at::Tensor q, k, v;  // [T, heads, D]
    at::Tensor gate;     // as q; undefined: there is none
  };

  // Activations kept for the backward; Restore computes undefined q, k and v again, who reads
  // it `gated`.
  struct Saved {
    // [T, (heads + 2 kv_heads) D]: queries, keys, values (these are left out where keys are
    // values, both where they are borrowed). As projected where queries and keys are normed; else
    // these two are rotated in place.
    at::Tensor qkv;
    at::Tensor q, k;  // [T, heads, D], normed and rotated; only with norms
    // [T] with norms over all heads together, [T * heads] where a part of each head is rotated.
    at::Tensor q_rstd, k_rstd;
    at::Tensor v, v_rstd;  // [T, kv_heads, D] and [T * kv_heads]; only with value_norm
    at::Tensor out;        // rows [T, heads * D]
    at::Tensor gated;      // rows likewise: what `o` reads; only with output_gate
    at::Tensor lse;
    at::Tensor qkv_xa, o_xa;
  };

  // Fills qkv, q and k from x [T, H], already normalised.
  void Project(Activation x, const RopeTables& rope, const Pass& pass, Saved& saved) const;
  // The inputs of attention: queries and keys normed and rotated, and values; borrowed ones are
  // undefined.
  Heads Inputs(const Saved& saved) const;
  // Writes y [T, H] = what the layer makes of what Project filled, plus `residual` where it is
  // defined. Attention is computed unless `out` and `lse` are there from a forward before.
  // `shared`: null where it neither lends nor borrows.
  void Attend(at::Tensor& y, const at::Tensor& residual, const ops::Documents& documents,
              const Pass& pass, SharedHeads* shared, Saved& saved) const;
  // Computes q, k and v where they are missing in `saved`.
  void Restore(const RopeTables& rope, const Pass& pass, Saved& saved) const;
  // Drops what is computed again at little cost: all but the products, out and lse.
  static void DropRows(Saved& saved);
  // out [T, heads, D] * sigmoid(gate), as `o` reads it.
  at::Tensor Gated(const at::Tensor& out, const at::Tensor& gate, const Pass& pass) const;

  // Adds the parameters' gradients; makes that of x [T, H] only where dx is not null. `input` gives
  // x once attention's own memory is free again. Consumes `saved`.
  void Backward(Activation dy, const std::function<at::Tensor()>& input,
                const ops::Documents& documents, const RopeTables& rope, const Pass& pass,
                SharedHeads* shared, Saved& saved, UnitGradients& gradients, at::Tensor* dx) const;

  // The sinks as fp32 [heads]; undefined where there are none.
  at::Tensor Sinks(const Pass& pass) const {
    return sinks < 0 ? at::Tensor() : pass.weights[sinks].to(at::kFloat);
  }

  // True if a parameter before the output projection is trained.
  bool inputs_trained(UnitGradients& gradients) const;

 private:
  // Heads of keys that it projects.
  int64_t own_kv_heads() const { return borrows ? 0 : kv_heads; }
  // The gradients of keys and values are sums over all layers that attend to them: adds a
  // borrower's to `shared`, and takes the sum from it.
  static void ReturnGradients(const Heads& d, SharedHeads& shared);
  static void TakeGradients(Heads& d, SharedHeads& shared);
  bool has_norms() const { return qk_norm != plan::QkNorm::kNone; }
  // Norms q and k of all heads together, from `saved.qkv` to `saved`, and back.
  void NormWhole(const RopeTables& rope, const Pass& pass, Saved& saved) const;
  void NormWholeBackward(at::Tensor& dqkv, const RopeTables& rope, const Pass& pass,
                         const Saved& saved, UnitGradients& gradients) const;
  // The same of each head. One operation also rotates, but whole heads only.
  void NormHeads(const RopeTables& rope, const Pass& pass, Saved& saved) const;
  // `d`: of the rotated q and k, which may stand apart from `dqkv`.
  void NormHeadsBackward(at::Tensor& dqkv, Heads& d, const RopeTables& rope, const Pass& pass,
                         const Saved& saved, UnitGradients& gradients) const;
  // True if one operation norms heads that lie side by side, and rotates them.
  bool RotatesWholeHeads(const RopeTables& rope) const {
    return !output_gate && 2 * rope.cos.size(1) == head_dim;
  }
  // Norms the values, and turns their gradient `dv` [T, kv_heads, D] back, into `dqkv`.
  void NormValues(Saved& saved) const;
  void NormValuesBackward(at::Tensor& dqkv, const at::Tensor& dv, const Saved& saved) const;
  const at::Tensor& Read(const Saved& saved) const { return output_gate ? saved.gated : saved.out; }
  void RestoreGated(const Pass& pass, Saved& saved) const;
  // Of dout, the gradient of what `o` read: writes that of the gates, and makes it that of `out`.
  void GateBackward(at::Tensor& dout, at::Tensor& dgate, const Saved& saved) const;
  // Of queries, keys and values of some of the heads, from `first` on: writes out [T, n, D] and
  // returns lse; and of dout the gradients, in `d`. Over nodes in runs (key_gather.h).
  at::Tensor ComputeHeads(at::Tensor& out, const Heads& inputs, int64_t first,
                          const ops::Documents& documents, const Pass& pass) const;
  void ComputeHeadsBackward(Heads& d, const at::Tensor& dout, const Heads& inputs,
                            const at::Tensor& out, int64_t first, const at::Tensor& lse,
                            const ops::Documents& documents, const Pass& pass,
                            UnitGradients& gradients) const;
  // The same of queries that lie behind each other in the rows, from token `number` on.
  at::Tensor ComputeRun(at::Tensor& out, const Heads& inputs, int64_t first,
                        const ops::Documents& documents, int64_t number, const Pass& pass) const;
  void ComputeRunBackward(Heads& d, const at::Tensor& dout, const Heads& inputs,
                          const at::Tensor& out, int64_t first, const at::Tensor& lse,
                          const ops::Documents& documents, int64_t number, const Pass& pass,
                          UnitGradients& gradients) const;
  // Of the gradient of `out`; `inputs` as the forward had them.
  void ComputeBackward(Heads& d, const at::Tensor& dout, const Heads& inputs, const Saved& saved,
                       const ops::Documents& documents, const Pass& pass,
                       UnitGradients& gradients) const;
  // Fills out and lse. Where tokens are cut over ranks, lse is that of the rank's own heads.
  void Compute(const ops::Documents& documents, const Pass& pass, SharedHeads* shared,
               Saved& saved) const;
  bool Drops(const Pass& pass) const { return dropout > 0.0 && pass.dropout != nullptr; }
  // Queries from another token on have another mask.
  ops::AttentionDropout DropoutOf(const Pass& pass, int64_t number) const {
    const uint64_t seed = MixSeed(pass.dropout->seed, dropout_module);
    return {dropout, number == 0 ? seed : MixSeed(seed, number)};
  }
  // Multiplies the queries [T, heads, D], or their gradient, by the scale of their positions.
  void ScaleQueries(at::Tensor q, const RopeTables& rope) const;
  Heads Split(const at::Tensor& qkv) const;  // v is k where keys are values
  // Queries and keys together, which lie side by side: [T, heads + kv_heads, D].
  at::Tensor QueriesAndKeys(const at::Tensor& qkv) const;
};

}  // namespace sft::engine
