#pragma once

// The kinds of layers that families choose among, for descriptions of models (model_config.h) and
// for the engine's operations, those on a GPU included.

namespace sft::plan {

// How a norm scales a row by its weight, and where it rounds to the activations' type. x^ is the
// row divided by the root of its mean square.
enum class NormKind {
  kRms,         // weight * round(x^) (Llama)
  kRmsFp32,     // round(weight * x^) (T5, Olmo 2)
  kRmsOnePlus,  // round((1 + weight) * x^) (Gemma 3)
};

// Norms of queries and keys before their rotation.
enum class QkNorm {
  kNone,
  kHeads,  // over each head, one weight for all
  kWhole,  // over all heads together
};

// The activation of the gate in a gated feed-forward layer.
enum class GateKind {
  kSilu,      // SwiGLU
  kGeluTanh,  // GeGLU, GELU in the tanh form
};

}  // namespace sft::plan
