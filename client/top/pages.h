#pragma once

#include <string>
#include <vector>

#include "client/top/view.h"

namespace sft::client::top {

// A row of a page that can be selected.
struct ListRow {
  std::string name;  // by which the selection finds it again; empty: it cannot be selected
  std::string job;   // that Enter opens and actions are about; empty: none
  Row row;
};

// A page: what stays at its top, and rows of which as many are shown as there is room for.
struct PageParts {
  std::vector<Row> head;
  std::vector<ListRow> rows;
  std::string nothing;    // in place of rows
  bool from_end = false;  // the last rows are seen first
};

// The page of the view without title and keys. `room`: rows that it may take, for its picture.
PageParts PartsOf(const View& view, const Snapshot& snapshot, const Screen& size, int room);

// The value behind the one that is drawn, or before it; those that the curve may have.
std::string NextValue(const std::string& value, int by);

}  // namespace sft::client::top
