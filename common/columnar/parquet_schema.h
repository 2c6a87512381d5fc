#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/columnar/json_text.h"

namespace sft::columnar {

// How values are stored; the numbers are the file's.
enum class Stored { kBoolean, kInt32, kInt64, kInt96, kFloat, kDouble, kByteArray, kFixed };

// A column of a Parquet file: one leaf of the tree that its schema is.
struct Leaf {
  std::string path;  // messages.list.element.content
  Stored stored = Stored::kByteArray;
  int width = 0;  // bytes of a kFixed
  ValueForm form;
  // Levels of a value that is there, and within how many lists it is (Dremel's two levels).
  int max_definition = 0, max_repetition = 0;
};

// What a value of the schema is made of.
struct Node {
  enum Kind { kLeaf, kStruct, kList, kMap };
  Kind kind = kLeaf;
  std::string name;
  bool optional = false;
  int definition = 0;       // level from which on it is not null
  int item_definition = 0;  // of a list or map: level from which on it is not empty
  int item_repetition = 0;
  std::vector<Node> children;  // members; the one element; key and value
  size_t begin = 0, end = 0;   // its leaves
};

// Where the pages of a leaf stand for the rows of one row group.
struct Chunk {
  int codec = 0;
  int64_t values = 0;
  int64_t offset = 0, size = 0;
};

// Rows that stand together, column by column.
struct RowGroup {
  int64_t rows = 0;
  std::vector<Chunk> chunks;  // as leaves
};

// What the footer of a Parquet file says.
struct ParquetFooter {
  int64_t rows = 0;
  Node root;
  std::vector<Leaf> leaves;
  std::vector<RowGroup> groups;
};

// Reads the footer of a file with `file_size` bytes. INVALID_ARGUMENT says what is wrong, or what
// of the file is not read.
absl::StatusOr<ParquetFooter> ParseFooter(std::string_view bytes, int64_t file_size);

}  // namespace sft::columnar
