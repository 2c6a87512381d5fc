#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/data/dataset.h"
#include "worker/engine/data/row_source.h"

namespace sft::engine {

// What of a file's rows is left out before they are encoded.
struct RowSelection {
  std::vector<Line> lines;       // what is left, in order
  int64_t held_out = 0;          // rows on the other side of data.val_split
  int64_t repeated = 0;          // rows that repeat an earlier one (data.dedup)
  std::vector<int64_t> repeats;  // the lines of the first of them
};

// Chooses by what stands in the rows alone: the same rows whatever their order, except for which of
// two that are equal is the first. Throws UserError where one side would be empty, or a row has no
// column data.group_by.
RowSelection SelectRows(std::vector<Line> lines, const PrepareOptions& options);

// What the rows of options.earlier add to the key of the cache; empty without dedup.
std::string EarlierText(const PrepareOptions& options);

}  // namespace sft::engine
