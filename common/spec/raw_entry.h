#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/spec/value.h"

namespace sft::spec {

// One entry of a job file, before any key is known.
struct RawEntry {
  std::string key;  // dotted
  int line = 0;
  bool is_table = false;
  // Nullopt for a table and for kinds that no key has (dates, mixed lists); `kind` then names the
  // kind.
  std::optional<Value> value;
  std::string kind;
  // YAML's and JSON's null: the key counts as left out.
  bool is_null = false;
  // The text of an unquoted scalar of YAML, whose type is that of its key (TypedBy), or of a date
  // of TOML, which only some keys take.
  std::optional<std::string> plain;
};

// Why and where a text could not be read.
struct ReadError {
  int line = 0;
  std::string message;  // "is not TOML: ...", or the limit that it exceeds
};

// The value of an entry that has one, as its field takes it: an unquoted scalar of YAML has the
// type of its key, so that a name may be a number and a switch may be yes or off.
Value TypedBy(const Field& field, const RawEntry& entry);

}  // namespace sft::spec
