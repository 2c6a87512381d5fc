#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/status.h"

namespace sft::data {

// The front matter of a README.md (between two lines of "---") as JSON: the part of YAML that data
// set cards are written in, which is block mappings and lists, lists in brackets, and words plain
// or in quotes. Words stay text. An empty object where there is none; INVALID_ARGUMENT with the
// line for what is not of that part.
absl::StatusOr<nlohmann::ordered_json> ParseFrontMatter(std::string_view text);

}  // namespace sft::data
