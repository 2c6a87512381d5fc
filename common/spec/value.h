#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/spec/fields.h"

namespace sft::spec {

// A value of one key, in the type that its field declares: kString, kChoice and kDuration
// ("15m") hold a string.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

// The name of a type in messages: "a string", "a whole number", ...
std::string_view TypeName(Type type);
std::string_view TypeNameOf(const Value& value);

// The value as one would type it after `--set key=`; numbers as the shortest text that reads back
// equal.
std::string ToText(const Value& value);

// The most items that a list may have.
size_t MostItems(const Field& field);

// True when the value is "auto" and that means the same as leaving the key out.
bool LeavesOut(const Field& field, const Value& value);

// True for a word that is taken as a value of ours with a warning (Field::noted_words).
bool IsNoted(const Field& field, const Value& value);

// ToText, but "auto" for a value that the plan sets.
std::string ToText(const Field& field, const Value& value);

// Parses text typed on a command line or in the environment. InvalidArgument says what would be
// right.
absl::StatusOr<Value> ParseText(const Field& field, std::string_view text);

// Converts a value of the file to the field's type (a whole number may stand for a float) and
// checks its range, choices and whether it is supported. InvalidArgument says what would be right.
absl::StatusOr<Value> Check(const Field& field, Value value);

// The legal values, for messages and docs: "a whole number from 1 to 1024", "\"steps\" or
// \"epoch\"".
std::string Expectation(const Field& field);

}  // namespace sft::spec
