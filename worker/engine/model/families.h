#pragma once

#include <string>
#include <vector>

#include "worker/engine/model/config.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// The names a family's checkpoints use, by part of the model. A module's parameters are
// "<module>.weight" and "<module>.bias".
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

const TensorNames& NamesOf(const ModelConfig& config);

// The parameters of a model, all frozen and none quantised. A tied head has no parameter of its
// own.
ModelLayout MakeLayout(const ModelConfig& config);

// "model.layers.3"
std::string BlockName(const ModelConfig& config, int64_t layer);

}  // namespace sft::engine
