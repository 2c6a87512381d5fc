#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/columnar/flat_table.h"
#include "common/columnar/json_text.h"
#include "common/columnar/row_limits.h"

namespace sft::columnar {

// A column of an Arrow table, as its schema describes it.
struct ArrowField {
  enum Layout { kNothing, kBits, kFixed, kBytes, kList, kFixedList, kStruct, kMap };
  std::string name;
  Layout layout = kNothing;
  ValueForm form;
  bool large = false;  // offsets of 64 bits
  int width = 0;       // bytes of a value; items of a fixed list
  bool is_signed = true;
  int64_t dictionary = -1;  // its values are numbers of those
  int index_width = 4;
  bool index_signed = true;
  std::vector<ArrowField> children;
};

// How many fields a schema may still have, and how much their names may still take: fields can
// stand for one another in the buffer, so that a short one makes many.
struct ArrowSchemaRoom {
  int fields = 10'000;
  int64_t name_bytes = kMostAllNameBytes;
};

// Reads a field of the schema, and those below it. INVALID_ARGUMENT names a type that is not read.
absl::StatusOr<ArrowField> ReadArrowField(const FlatTable& table, int depth, ArrowSchemaRoom& room);

}  // namespace sft::columnar
