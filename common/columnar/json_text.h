#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace sft::columnar {

// What a column's values mean, beyond how they are stored.
enum class Meaning : uint8_t {
  kBool,
  kInt,
  kUnsigned,
  kFloat,
  kDouble,
  kText,     // UTF-8
  kBytes,    // of no known form; text where it is UTF-8
  kDecimal,  // an integer of `scale` decimal places
  kDate,     // days since 1970
  kTime,     // units since midnight, `scale` of them a second
  kInstant,  // units since 1970, `scale` of them a second
  kUuid,
  kHalf,   // a 16-bit float
  kInt96,  // nanoseconds of a day, and the Julian day
  kNull,
};

// One value as it is stored. Which member holds it is a matter of the meaning.
struct Value {
  int64_t number = 0;
  double real = 0;
  std::string_view bytes;
};

// How a column's values are written as JSON.
struct ValueForm {
  Meaning meaning = Meaning::kBytes;
  int64_t scale = 0;
  bool utc = false;
};

// JSON has no such number: NaN and the infinities.
bool HasNoJson(const ValueForm& form, const Value& value);
// Whether the value's text takes more than `room` bytes, told before it is made.
bool LongerThan(const ValueForm& form, const Value& value, int64_t room);
// INVALID_ARGUMENT names a decimal that is not read: of more than 16 bytes, or with digits that its
// type does not have. 0 bytes: the type does not say how many.
absl::Status CheckDecimal(std::string_view column, int64_t bytes, int64_t scale);
// Appends the value; false when a text is not UTF-8.
bool AppendValue(const ValueForm& form, const Value& value, std::string& out);
// Appends the text in quotes; it must be UTF-8.
void AppendQuoted(std::string_view text, std::string& out);

// The float of the low 16 bits (IEEE 754 binary16).
double HalfToDouble(uint16_t bits);

// Whether the nulls below this member of an object are meant: JSON schemas list values there.
// Elsewhere a null member is what a table puts where a row's object has no such member.
bool KeepsNulls(std::string_view member);

}  // namespace sft::columnar
