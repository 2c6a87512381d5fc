#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "common/plan/model_config.h"
#include "worker/engine/nn/projection.h"

namespace sft::engine {

// Gated DeltaNet, linear attention in the place of SelfAttention: a state of fixed size for each
// head instead of keys and values. T tokens, H hidden size, Hk key heads of Dk, Hv value heads of
// Dv, C = 2 Hk Dk + Hv Dv:
//
//       q | k | v | z | b | a = in(x)                               of C, Hv Dv, Hv and Hv columns
//       q | k | v  = a causal convolution of the same, with SiLU                  (ops::ShortConv)
//       heads      = the gated delta rule                                        (ops::GatedDelta)
//                    with g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)
//       y          = out(norm(heads) * silu(z))                                (ops::GatedRmsNorm)
//
// Gates, and all that follows from the parameters they are made of, are fp32 whatever the type of
// the activations: exp(A_log) of a rounded A_log is another decay. Positions of parameters are
// those in the unit. Rows have the spare columns that their projection asks for (projection.h).
//
// Where `by_key_head`, in(x) has q | k | v | z of the first key head and its value heads, then of
// the second, and behind these b | a likewise: its outputs are put in the order above, and their
// gradients back.
//
// Where tokens are cut over ranks (head_exchange.h), each has for convolution and rule all tokens
// of its own heads, whose numbers the ranks divide.
struct DeltaNet {
  Projection in, out;
  int conv = -1;     // [C, 1, 4]
  int a_log = -1;    // [Hv]
  int dt_bias = -1;  // [Hv]
  int norm = -1;     // [Dv], of all heads
  int64_t key_heads = 0, value_heads = 0;
  int64_t key_size = 0, value_size = 0;
  double epsilon = 0.0;
  bool by_key_head = false;

  explicit operator bool() const { return value_heads > 0; }

  // Activations kept for the backward. Restore computes undefined ones again, but for `projected`,
  // which Project makes.
  struct Saved {
    at::Tensor projected;  // [T, C + Hv Dv + 2 Hv]
    at::Tensor convolved;  // [T, C], of the rank's own heads
    at::Tensor heads;      // [T, Hv Dv]
    at::Tensor rstd;       // fp32 [T, Hv], of heads
    at::Tensor normed;     // rows [T, Hv Dv]: what `out` reads
    at::Tensor in_xa, out_xa;
  };

  // What is carried from piece to piece of documents, by state (ops::Pieces); zeros at their start.
  struct States {
    at::Tensor conv;  // of the activations' type [states, 3, C]
    at::Tensor rule;  // fp32 [states, Hv, Dk, Dv]
  };

  // Fills projected from x [T, H], already normalised.
  void Project(Activation x, const Pass& pass, Saved& saved) const;
  // Writes y [T, H] = what the layer makes of what Project filled, plus `residual` where it is
  // defined. The rule is computed unless `heads` are there from a forward before.
  void Attend(at::Tensor& y, const at::Tensor& residual, const ops::Documents& documents,
              const Pass& pass, Saved& saved) const;
  // As Attend, of pieces of documents, from the states before them to those behind; for generation.
  void Continue(at::Tensor& y, const at::Tensor& residual, const ops::Pieces& pieces,
                const Pass& pass, States& states, Saved& saved) const;
  // Room for so many states, uninitialised. `like`: activations.
  States EmptyStates(int64_t count, const at::TensorOptions& like) const;
  // Drops what Restore computes again at little cost: all but the products and `heads`.
  static void DropRows(Saved& saved);

  // Adds the parameters' gradients; makes that of x [T, H] only where dx is not null. `input` gives
  // x once the layer's own memory is free again. Consumes `saved`.
  void Backward(Activation dy, const std::function<at::Tensor()>& input,
                const ops::Documents& documents, const Pass& pass, Saved& saved,
                UnitGradients& gradients, at::Tensor* dx) const;

  // True if a parameter before the output projection is trained.
  bool inputs_trained(UnitGradients& gradients) const;

 private:
  // Views of rows like `projected`.
  struct Parts {
    at::Tensor qkv;   // rows [T, C]
    at::Tensor z;     // rows [T, Hv Dv]
    at::Tensor b, a;  // rows [T, Hv]
  };
  // Views of rows like `convolved`, by head.
  struct Heads {
    at::Tensor q, k, v;
  };
  // What convolution and rule read, of all tokens and the rank's heads: C and Hv below are theirs.
  struct Inputs {
    plan::DeltaShape shape;
    int64_t rank = 0;           // whose heads these are
    at::Tensor rows;            // of the three below, where they came from other ranks
    at::Tensor qkv;             // rows [T, C]
    at::Tensor b, a;            // rows [T, Hv]
    at::Tensor conv;            // [C, 4]
    at::Tensor a_log, dt_bias;  // fp32 [Hv]
  };
  struct Gates {
    at::Tensor rate;     // exp(A_log) [Hv]
    at::Tensor shifted;  // a + dt_bias [T, Hv]
    at::Tensor g, beta;  // [T, Hv]
  };

  plan::DeltaShape shape() const { return {key_heads, value_heads, key_size, value_size}; }
  int64_t keys() const { return key_heads * key_size; }
  int64_t values() const { return value_heads * value_size; }
  Parts Split(const at::Tensor& projected) const;
  // Copies rows like `projected` to or from `rows`, which are as in(x) has them.
  void CopyByKeyHead(at::Tensor& projected, at::Tensor& rows, bool to_rows) const;
  static Heads SplitHeads(const at::Tensor& convolved, const plan::DeltaShape& shape);
  at::Tensor ByHead(const at::Tensor& heads) const {  // [T, Hv Dv] -> [T, Hv, Dv]
    return heads.view({heads.size(0), value_heads, value_size});
  }
  Inputs MakeInputs(const Parts& parts, const Pass& pass) const;
  // The parts, without z, of rows that HeadExchange gathered.
  static Parts SplitRows(const at::Tensor& rows, const plan::DeltaShape& shape);
  // Parts of rows like `projected` that ranks exchange, by head.
  std::vector<at::Tensor> Exchanged(const Parts& parts) const;
  // The channels of a rank's heads: those of queries, keys and values of x [C, ...].
  std::vector<at::Tensor> Channels(const at::Tensor& x, const Inputs& inputs) const;
  static Gates MakeGates(const Inputs& inputs, bool alone);
  // Adds the gradients of A_log and dt_bias, and writes those of b and a.
  void GatesBackward(const Inputs& inputs, const Gates& gates, const at::Tensor& dg,
                     const at::Tensor& dbeta, UnitGradients& gradients, at::Tensor db,
                     at::Tensor da) const;
  // Writes the gradients of qkv, b and a, from that of all heads, dheads [T, Hv Dv].
  void RuleBackward(const at::Tensor& dheads, const ops::Documents& documents, const Pass& pass,
                    Saved& saved, UnitGradients& gradients, Parts& dparts) const;
  at::Tensor NormWeight(const Pass& pass) const { return pass.weights[norm].to(at::kFloat); }
  static void Convolve(const Inputs& inputs, const ops::Documents& documents, Saved& saved);
  void ComputeHeads(const ops::Documents& documents, const Pass& pass, Saved& saved) const;
  // Computes what `out` reads where it is missing.
  void Restore(const ops::Documents& documents, const Pass& pass, Saved& saved) const;
};

}  // namespace sft::engine
