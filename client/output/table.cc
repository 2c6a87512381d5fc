#include "client/output/table.h"

#include <algorithm>

#include "client/output/text.h"

namespace sft::client {

Table::Table(std::vector<std::string> header) { Add(std::move(header)); }

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = OneLine(cell);
  rows_.push_back(std::move(row));
}

std::string Table::Render() const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - Columns(row[i]) + 2, ' ');
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text += '\n';
  }
  return text;
}

}  // namespace sft::client
