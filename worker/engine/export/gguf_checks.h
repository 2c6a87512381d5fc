#pragma once

#include <string>

#include "worker/engine/model/config.h"

// What llama.cpp does otherwise than a model, or cannot.

namespace sft::engine {

// Throws UserError naming it, as far as config.json shows.
void CheckGgufFamily(const ModelConfig& config);

[[noreturn]] void RefuseGguf(const std::string& what);

}  // namespace sft::engine
