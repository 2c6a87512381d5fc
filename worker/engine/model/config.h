#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/plan/model_config.h"

namespace sft::engine {

using plan::ModelConfig;

// <model_dir>/config.json. Throws UserError naming the file and the key: missing or broken file, an
// architecture or option that is not supported (with those that are).
ModelConfig ReadConfig(const std::filesystem::path& model_dir);
// The same from text; `folder` names it in messages.
ModelConfig ParseConfig(std::string_view json, const std::string& folder);

}  // namespace sft::engine
