#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/model_config.h"

// The tensors of a base model under the names its checkpoint gives them: one description for the
// plan, which counts them, and for the engine, which loads, shards, quantises and adapts them.

namespace sft::plan {

// The names a family's checkpoints use. A module's tensors are "<module>.weight" and
// "<module>.bias".
struct TensorNames {
  const char* embedding = nullptr;   // module
  const char* positions = nullptr;   // module; null: no table of positions
  const char* final_norm = nullptr;  // module
  const char* head = nullptr;        // module
  // Modules that make the inputs that layers have of their own (ModelShape::layer_input): the table
  // of tokens, the projection of their embeddings and its norm. Null: none.
  const char* layer_inputs = nullptr;
  const char* layer_inputs_projection = nullptr;
  const char* layer_inputs_norm = nullptr;
  const char* block = nullptr;  // prefix; ".<layer>." follows
  // Within a block. Where k and v are null, q is one linear of queries, keys and values; where up
  // is, gate is one of gate and up; where gate is, the feed-forward layer is not gated. A norm
  // stands before the sub-layer, behind it (..._out_norm), or both: null where there is none.
  const char* attention_norm = nullptr;
  const char* q = nullptr;
  const char* k = nullptr;
  const char* v = nullptr;
  const char* o = nullptr;
  const char* sinks = nullptr;  // a score of each head that has no value
  const char* q_norm = nullptr;
  const char* k_norm = nullptr;
  // A layer with a gated DeltaNet has, in place of these: linears of its input for queries, keys
  // and values, for its output's gate, and for two gates of its state, parameters of its own, and
  // the linear of its output. Where delta_z and delta_a are null, delta_qkv makes all four and
  // delta_b both gates, in turn by key head: queries, keys, values and output gates of the first,
  // then of the second.
  const char* delta_qkv = nullptr;
  const char* delta_z = nullptr;
  const char* delta_b = nullptr;
  const char* delta_a = nullptr;
  const char* delta_conv = nullptr;
  const char* delta_a_log = nullptr;  // a whole name, as the next
  const char* delta_dt_bias = nullptr;
  const char* delta_norm = nullptr;
  const char* delta_out = nullptr;
  const char* attention_out_norm = nullptr;
  const char* mlp_norm = nullptr;
  const char* gate = nullptr;
  const char* up = nullptr;
  const char* down = nullptr;
  const char* mlp_out_norm = nullptr;
  // A layer with a mixture of experts has, in place of gate, up and down, the linear that scores
  // the experts, and the stacks of all experts' weights (TensorInfo::experts), gate and up in one.
  const char* router = nullptr;
  const char* experts_gate_up = nullptr;
  const char* experts_down = nullptr;
  bool router_bias = false, experts_bias = false;
  const char* router_correction = nullptr;  // a constant, added to scores to choose by
  // Whole names: the weight of a norm that the router reads through, of the layer's input as it is
  // before mlp_norm, and what multiplies the weight of each expert. Null: none.
  const char* router_norm = nullptr;
  const char* router_expert_scale = nullptr;
  // Linears of the expert that every token goes to.
  const char* shared_gate = nullptr;
  const char* shared_up = nullptr;
  const char* shared_down = nullptr;
  // A linear of one output, whose sigmoid multiplies what that expert writes; null: none.
  const char* shared_output_gate = nullptr;
  // Norms of experts that stand beside that one as a branch of their own: mlp_norm is before it
  // alone then, and these are behind it, before the other experts and behind them. Null: none.
  const char* shared_out_norm = nullptr;
  const char* experts_norm = nullptr;
  const char* experts_out_norm = nullptr;
  bool has_mtp_layer = false;  // files may hold a layer more than the model has, which is not read
  // A module that files may hold beside the decoder: it is not read, and stays as it is.
  const char* other_part = nullptr;
  // Where files hold the stacks, as [experts, inputs, outputs] or [experts, outputs, inputs], under
  // their names without ".weight", and biases with "_bias".
  bool transposed_stacks = false;
  // What files hold instead: "<experts>.<expert>.<linear>.weight", by linear. Null: the stacks.
  const char* experts = nullptr;
  bool may_be_stacks = false;  // or the stacks all the same
  const char* expert_gate = nullptr;
  const char* expert_up = nullptr;
  const char* expert_down = nullptr;
  // What reads the layer's own input: gate, projection and the norm behind it.
  const char* input_gate = nullptr;
  const char* input_projection = nullptr;
  const char* input_out_norm = nullptr;
  const char* layer_scale = nullptr;  // a constant that multiplies what the block writes
  bool transposed = false;            // weights of linears stand in the file as [inputs, outputs]
  // What published files may leave out at the start of all names.
  std::string_view optional_prefix;
};
const TensorNames& NamesOf(const ModelShape& shape);

// "model.layers.3"
std::string BlockName(const ModelShape& shape, int64_t layer);

// The name that a module has at run time in transformers, and in PEFT's adapters, of its name in
// the checkpoint, and the other way round; of a tensor's name likewise. `prefix`:
// ModelShape::prefix; one that starts with "model." is that of names at run time.
std::string RuntimeModule(std::string_view prefix, std::string_view module);
std::string CheckpointModule(std::string_view prefix, std::string_view module);

// "q_proj", of "model.layers.0.self_attn.q_proj".
std::string LastName(std::string_view module);

// The name in the checkpoint of a tensor or module of the decoder, of its name in a text model. A
// wrapped decoder has its prefix before it, or, where that starts with "model.", in place of the
// name's own "model.".
std::string PrefixedName(std::string_view prefix, std::string_view name);

// What a tensor is to the plan and the engine. A constant is never trained; a router is neither
// quantised nor adapted; full fine-tuning alone trains what is a mixer's own (sinks, what a gated
// DeltaNet has beside linears and its norm) and scales of a router.
enum class TensorRole { kEmbedding, kNorm, kLinear, kBias, kHead, kConstant, kRouter, kMixer };

// The shape that a tensor of the model, or each of the parts it is made of, has in the files.
std::vector<int64_t> ShapeInFiles(std::vector<int64_t> shape, int64_t experts, size_t parts,
                                  bool transposed);

// One tensor of the base model.
struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // a linear's weight: [outputs, inputs]; a stack's: see `experts`
  TensorRole role = TensorRole::kLinear;
  bool transposed = false;  // a linear's weight stands in the file as [inputs, outputs]
  // A stack: the weights of so many experts one below the other, [experts * outputs, inputs]; 0:
  // one linear.
  int64_t experts = 0;
  // Outputs of the linears that are one here, one below the other (queries, keys and values; gate
  // and up), and of their biases; empty: it is one linear's.
  std::vector<int64_t> joined;
  bool exact = false;  // held in fp32 while it is frozen, whatever the model is computed in
  // The tensors of the files that this one is made of, one below the other and of one shape, or one
  // that has the experts as a dimension of its own; empty: it stands there under its name.
  std::vector<std::string> parts;
  // A stack: what files may hold instead of the one of `parts`, in the same order of rows.
  std::vector<std::string> single_parts;

  int64_t elements() const;
  // The shape of each of `parts`, or of what stands in the files under the name.
  std::vector<int64_t> ShapeInFiles() const;
  // "model.layers.0.self_attn.q_proj": the name without its last part.
  std::string module() const;
};

// The tensors that are gathered, reduced and released together: the embedding, a block, or final
// norm and head.
struct TensorUnit {
  std::string name;  // "embedding", "model.layers.3", "head"
  std::vector<TensorInfo> tensors;
  // The weights of linear layers that read one input, as positions in `tensors`: they stand one
  // below the other in one matrix.
  std::vector<std::vector<int>> shared_matrices;
  // Modules that published files hold and that the model does not use.
  std::vector<std::string> unused;
};

TensorUnit EmbeddingTensors(const ModelShape& shape);
TensorUnit BlockTensors(const ModelShape& shape, int64_t layer);
// A tied head has no tensor of its own.
TensorUnit HeadTensors(const ModelShape& shape);
// All units in the order of the forward pass.
std::vector<TensorUnit> TensorsOf(const ModelShape& shape);

}  // namespace sft::plan
