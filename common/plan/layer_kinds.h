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
  kLayerNorm,   // round(weight * z + bias), z the row less its mean, over its deviation (GPT-2)
};

// Norms of queries and keys before their rotation.
enum class QkNorm {
  kNone,
  kHeads,  // over each head, one weight for all
  kWhole,  // over all heads together
};

// The activation of a feed-forward layer: of its gate, where it is gated.
enum class ActivationKind {
  kSilu,      // gated: SwiGLU
  kGeluTanh,  // GELU in the tanh form; gated: GeGLU
  // (u + 1) g sigmoid(1.702 g), where g is the gate, at most 7, and u is up, within [-7, 7]; the
  // two of an output stand side by side in a row: g0, u0, g1, u1, ... (gpt_oss)
  kClampedSwiGlu,
};

// How a router weighs the experts that it chooses for a token, those with the largest scores, or of
// kSigmoid... the largest sigmoids plus a correction of each expert's.
enum class RouterWeights {
  kSoftmaxOfTopK,        // softmax over the scores of the chosen
  kSoftmaxOfAll,         // softmax over all scores: the weights of the chosen add up to less than 1
  kSigmoid,              // sigmoid of each score
  kSigmoidOverTheirSum,  // the same over the sum of the chosen
};

}  // namespace sft::plan
