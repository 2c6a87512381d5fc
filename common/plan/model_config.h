#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/plan/layer_kinds.h"
#include "common/plan/stored_weights.h"

// The description of a model, from the config.json that transformers writes. Read the same way by
// the server, which refuses at submit what ranks cannot run, and by the ranks.

namespace sft::plan {

// The sizes that may differ from layer to layer.
struct LayerShape {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;      // of each expert, where the layer has experts
  bool keys_are_values = false;  // no projection of values: they are made of what keys are made of
  int64_t keys_of = -1;  // the layer before whose keys and values it attends to; -1: its own
  int64_t experts = 0;   // 0: one feed-forward layer for all tokens
  int64_t chosen = 0;    // experts that a token goes to
  int64_t shared = 0;    // intermediate size of an expert that every token goes to; 0: none
  bool delta = false;    // a gated DeltaNet in the place of attention

  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

// What else may differ from layer to layer.
struct LayerOptions {
  int64_t window = 0;  // a token sees so many, itself included; 0: all before it
  int rope = 0;        // which of ModelConfig::ropes

  friend bool operator==(const LayerOptions&, const LayerOptions&) = default;
};

// Tokens that the convolution of a gated DeltaNet reads.
inline constexpr int64_t kDeltaConvolution = 4;

// Gated DeltaNet, linear attention: the same sizes in all layers that have one
// (worker/engine/nn/delta_net.h).
struct DeltaShape {
  int64_t key_heads = 0, value_heads = 0;
  int64_t key_size = 0, value_size = 0;  // of a head

  int64_t keys() const { return key_heads * key_size; }
  int64_t values() const { return value_heads * value_size; }
  int64_t channels() const { return 2 * keys() + values(); }  // queries, keys, values
};

// How tokens are given experts.
struct RouterOptions {
  RouterWeights weights = RouterWeights::kSoftmaxOfTopK;
  double scale = 1.0;        // multiplies the weights, of sigmoids
  double score_scale = 1.0;  // multiplies the scores
  // Experts are chosen within the best groups, as the sum of a group's two best tells; 1: all are
  // one group.
  int64_t groups = 1;
  int64_t best_groups = 1;
};

// The sizes of a decoder that determine its parameters, and what the work of its attention is.
struct ModelShape {
  std::string family;  // model_type: "llama", "qwen3", ... (families/table.cc)
  // Before the names of all tensors: "language_model." for the decoder of a multimodal model.
  std::string prefix;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;
  int64_t vocab = 0;
  bool tied_head = false;  // the output head is the embedding
  bool qkv_bias = false;
  bool output_bias = false;  // the attention's output projection has a bias
  bool mlp_bias = false;
  int64_t learned_positions = 0;  // rows of a table of positions; 0: none
  QkNorm qk_norm = QkNorm::kNone;
  bool value_norm = false;  // over each head, without a weight
  // Each head's output is multiplied by the sigmoid of gates, which the projection of queries makes
  // behind the queries of the head.
  bool output_gate = false;
  DeltaShape delta;
  NormKind norm = NormKind::kRms;
  ActivationKind activation = ActivationKind::kSilu;
  RouterOptions router;
  // What attention and feed-forward layer write is multiplied by this before it is added to the
  // residual stream.
  double residual_scale = 1.0;
  double logit_cap = 0.0;  // logits x become cap * tanh(x / cap); 0: they stay
  // By layer; empty: all layers have the sizes above.
  std::vector<LayerShape> layer_shapes;
  // Size of the input that each layer has of its own, made of the token and its embedding, and rows
  // of the table of tokens; 0: layers have none.
  int64_t layer_input = 0;
  int64_t layer_input_vocab = 0;
  StoredWeights stored;
  std::vector<LayerOptions> layer_options;  // by layer; empty: all have the defaults

  LayerShape Layer(int64_t layer) const {
    return layer_shapes.empty() ? LayerShape{kv_heads, head_dim, intermediate}
                                : layer_shapes[layer];
  }
  int64_t Window(int64_t layer) const {
    return layer_options.empty() ? 0 : layer_options[layer].window;
  }
  // True if the attention of both layers costs the same.
  bool SameAttention(int64_t a, int64_t b) const {
    return Layer(a) == Layer(b) && Window(a) == Window(b);
  }
  // True if other layers attend to the keys and values of this one.
  bool Lends(int64_t layer) const;
  bool HasExperts() const;
  int64_t LargestHead() const;  // of any layer
  // The most elements that a buffer of activations has for a token, in any layer: gates with ups,
  // or the rows of all experts that the token goes to.
  int64_t WidestRow() const;
};

enum class RopeType { kDefault, kLinear, kLlama3, kYarn, kLongRope, kProportional, kNone };

// Rotary position embedding, in the terms of transformers' modeling_rope_utils.py. kProportional
// has the frequencies of the whole head, of which only the first, fastest share is rotated. kNone
// rotates by nothing: the layer sees no positions.
struct RopeOptions {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double rotated = 1.0;                // the share of each head that is rotated, its first part;
                                       // proportional: of its frequencies
  int64_t original_max_positions = 0;  // llama3, yarn, longrope
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn
  std::optional<double> attention_factor;  // yarn, longrope; else from factor and the two below
  double mscale = 0.0;                     // yarn; 0: not given
  double mscale_all_dim = 0.0;
  // longrope: a divisor for each frequency, of documents up to original_max_positions and of longer
  // ones.
  std::vector<double> short_factors, long_factors;
  // Queries are multiplied by 1 + query_scaling * ln(1 + floor(position / original_max_positions)).
  double query_scaling = 0.0;
};

// A decoder-only transformer of any family. Families differ by options, not by subclasses.
struct ModelConfig : ModelShape {
  double norm_epsilon = 1e-6;
  std::vector<RopeOptions> ropes;
  double embedding_scale = 1.0;         // multiplies what the embedding's table gives
  bool rounds_embedding_scale = false;  // to the type of the activations, before the product
  double attention_scale = 0.0;         // multiplies the scores of queries and keys
  double logit_scale = 1.0;             // multiplies the head's logits
  // Dropout while training: of the embedding, of what sub-layers write, of attention's
  // probabilities.
  double embedding_dropout = 0.0;
  double residual_dropout = 0.0;
  double attention_dropout = 0.0;
  // What config.json asks for of the latter, where models of the family are trained without it.
  double dropout_left_out = 0.0;
  // The longest row the model was made for, position scaling included; 0: not given.
  int64_t max_positions = 0;
  // The token whose embedding is not trained, like nn.Embedding's padding_idx; -1: none.
  int64_t pad_token = -1;
  std::string dtype;  // that config.json says the weights have: "bfloat16"; empty: not said
};

// InvalidArgument names the key that is missing, wrong or not supported, and what would be.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json);

}  // namespace sft::plan
