#pragma once

#include <optional>

#include "common/plan/config_reader.h"
#include "common/plan/model_config.h"

namespace sft::plan {

// The object of rope parameters that counts, as in transformers: rope_scaling, which versions
// before 5 wrote, or else rope_parameters. Nothing where neither is given.
std::optional<ConfigReader> RopeObject(const ConfigReader& config);

// Reads such an object over `rope`. `config`: the object that has max_position_embeddings.
// `of_layers`: it is one of several, by type of layer.
void ReadRopeParameters(const ConfigReader& parameters, const ConfigReader& config,
                        RopeOptions& rope, bool of_layers = false);

// The length that a model was made for before its positions were scaled; that of the top level
// comes before the object's, unless the object is one of several, by type of layer.
int64_t ReadOriginalPositions(const ConfigReader& parameters, const ConfigReader& config,
                              bool of_layers = false);

// The rope of all layers, or of those that no other is said for.
RopeOptions ReadRope(const ConfigReader& config, double default_theta);

// The one rope of a model of a family that rotates a part of each head, `rotated` of it where no
// key says, and the longest row that it was made for.
void ReadPartialRope(const ConfigReader& config, double default_theta, double rotated,
                     ModelConfig& model);

// The longest row that a model with `rope` was made for, position scaling included; 0: not given.
int64_t ReadMaxPositions(const ConfigReader& config, const char* key, const RopeOptions& rope,
                         int64_t fallback);

}  // namespace sft::plan
