#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "common/spec/raw_entry.h"

namespace sft::spec {

// The forms that a job file may have. All hold the same tables and keys.
enum class FileForm { kToml, kYaml, kJson };

// The form that a file's name ends with (.toml, .yaml, .yml, .json). Other names, and those of
// YAML and JSON whose text begins as only TOML does, go by the first line that says anything.
FileForm FormOf(std::string_view text, std::string_view file_name);

// The name without such an ending.
std::string_view WithoutFormEnding(std::string_view file_name);

// Reads the tables and keys of a job file in the order of its lines. Every table is listed before
// its entries. A text that is not of its form, or exceeds a limit, gives one error.
std::variant<std::vector<RawEntry>, ReadError> ReadJobFile(std::string_view text,
                                                           std::string_view file_name);

// YAML as far as job files need it: anchors, aliases, merges, tags and several documents are
// refused, since what a value is would not stand beside its key. Unquoted scalars are typed as
// YAML 1.2's core schema has it, and further by their keys (TypedBy).
std::variant<std::vector<RawEntry>, ReadError> ReadYaml(std::string_view text);

// JSON; comments are skipped.
std::variant<std::vector<RawEntry>, ReadError> ReadJson(std::string_view text);

}  // namespace sft::spec
