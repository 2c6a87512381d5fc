#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "common/spec/raw_entry.h"

namespace sft::spec {

// Reads tables and their entries in the order of the file's lines. Every table is listed before its
// entries. A text that is not TOML, or exceeds what common/base/toml_limits.h allows, gives one
// error.
std::variant<std::vector<RawEntry>, ReadError> ReadToml(std::string_view text);

}  // namespace sft::spec
