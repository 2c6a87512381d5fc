#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/spec/value.h"

namespace sft::spec {

// One entry of a TOML file, before any key is known.
struct RawEntry {
  std::string key;  // dotted
  int line = 0;
  bool is_table = false;
  // Nullopt for a table and for kinds that no key has (dates, mixed lists); `kind` then names the
  // kind.
  std::optional<Value> value;
  std::string kind;
};

// Why and where a text could not be read.
struct TomlError {
  int line = 0;
  std::string message;  // "is not TOML: ...", or the limit that it exceeds
};

// Reads tables and their entries in the order of the file's lines. Every table is listed before its
// entries. A text that is not TOML, or exceeds what common/base/toml_limits.h allows, gives one
// error.
std::variant<std::vector<RawEntry>, TomlError> ReadToml(std::string_view text);

}  // namespace sft::spec
