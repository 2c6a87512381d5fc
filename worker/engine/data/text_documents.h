#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/row_form.h"

namespace sft::engine {

// Documents of a text (data.text_documents = "blank_lines").
struct TextPart {
  int64_t lines_before = 0;  // lines of the text before its first
  std::string_view text;     // its lines, without the last one's end
};
std::vector<TextPart> PartsOfText(std::string_view text);

// A row of text as a row for each of its documents, with the other columns as they are.
struct RowPart {
  int64_t lines_before = 0;
  std::string row;
};
// Empty: the row is one document, or none of text.
std::vector<RowPart> PartsOfRow(std::string_view row, const data::RowNames& names,
                                data::Learns learns);

}  // namespace sft::engine
