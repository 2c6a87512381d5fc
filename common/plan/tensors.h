#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/model_config.h"

// The tensors of a base model under the names its checkpoint gives them: one description for the
// plan, which counts them, and for the engine, which loads, shards, quantises and adapts them.

namespace sft::plan {

// The names a family's checkpoints use. A module's tensors are "<module>.weight" and
// "<module>.bias".
struct TensorNames {
  const char* embedding;   // module
  const char* final_norm;  // module
  const char* head;        // module
  const char* block;       // prefix; ".<layer>." follows
  const char* input_norm;  // within a block
  const char* post_norm;
  const char* q;
  const char* k;
  const char* v;
  const char* o;
  const char* q_norm;
  const char* k_norm;
  const char* gate;
  const char* up;
  const char* down;
};
const TensorNames& NamesOf(const ModelShape& shape);

// "model.layers.3"
std::string BlockName(const ModelShape& shape, int64_t layer);

// What a tensor is to the plan and the engine.
enum class TensorRole { kEmbedding, kNorm, kLinear, kBias, kHead };

// One tensor of the base model.
struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // a linear's weight: [outputs, inputs]
  TensorRole role = TensorRole::kLinear;

  int64_t elements() const;
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
};

TensorUnit EmbeddingTensors(const ModelShape& shape);
TensorUnit BlockTensors(const ModelShape& shape, int64_t layer);
// A tied head has no tensor of its own.
TensorUnit HeadTensors(const ModelShape& shape);
// All units in the order of the forward pass.
std::vector<TensorUnit> TensorsOf(const ModelShape& shape);

}  // namespace sft::plan
