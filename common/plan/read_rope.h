#pragma once

#include "common/plan/config_reader.h"
#include "common/plan/model_config.h"

namespace sft::plan {

// Reads an object of rope parameters (rope_scaling, or rope_parameters as transformers 5 writes it)
// over `rope`. `config`: the object that has max_position_embeddings.
void ReadRopeParameters(const ConfigReader& parameters, const ConfigReader& config,
                        RopeOptions& rope);

// The rope of all layers, or of those that no other is said for.
RopeOptions ReadRope(const ConfigReader& config, double default_theta);

// The rope, without scaling, of a family that rotates a part of each head: `rotated` of it where no
// key says.
RopeOptions ReadPartialRope(const ConfigReader& config, double default_theta, double rotated);

// The longest row that a model with `rope` was made for, position scaling included; 0: not given.
int64_t ReadMaxPositions(const ConfigReader& config, const char* key, const RopeOptions& rope,
                         int64_t fallback);

}  // namespace sft::plan
