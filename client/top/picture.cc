#include "client/top/picture.h"

#include <algorithm>
#include <cmath>

#include "client/output/text.h"
#include "common/base/utf8.h"

namespace sft::client::top {
namespace {

constexpr std::string_view kCutSign = "…";

// The longest beginning that takes at most so many columns.
std::string_view Beginning(std::string_view text, int columns) {
  std::string_view rest = text;
  int used = 0;
  while (!rest.empty()) {
    std::string_view after = rest;
    bool valid = false;
    TakeCharacter(after, valid);
    used += static_cast<int>(Columns(rest.substr(0, rest.size() - after.size())));
    if (used > columns) break;
    rest = after;
  }
  return text.substr(0, text.size() - rest.size());
}

}  // namespace

Span Safe(std::string_view text, Style style) { return {OneLine(text), style}; }

std::string Fit(std::string_view text, int columns, Align align) {
  if (columns <= 0) return "";
  std::string line = OneLine(text);
  if (static_cast<int>(Columns(line)) > columns) {
    line = std::string(Beginning(line, columns - 1)) + std::string(kCutSign);
  }
  const auto room = static_cast<size_t>(std::max(0, columns - static_cast<int>(Columns(line))));
  const std::string blanks(room, ' ');
  return align == Align::kLeft ? line + blanks : blanks + line;
}

int ColumnsOf(const Row& row) {
  int columns = 0;
  for (const Span& span : row) columns += static_cast<int>(Columns(span.text));
  return columns;
}

void Cut(Row& row, int columns) {
  int left = columns;
  for (size_t i = 0; i < row.size(); ++i) {
    const int wide = static_cast<int>(Columns(row[i].text));
    if (wide > left) {
      row[i].text = Fit(row[i].text, left);
      row.resize(i + 1);
      return;
    }
    left -= wide;
  }
}

Grid::Grid(std::vector<Column> columns, int width) : width_(width) {
  for (Column& column : columns) {
    if (width >= column.need)
      columns_.push_back(std::move(column));
    else
      columns_.push_back({.title = "", .width = -1});
  }
  int used = 0;
  for (size_t i = 0; i + 1 < columns_.size(); ++i) {
    if (columns_[i].width >= 0) used += columns_[i].width + 1;
  }
  columns_.back().width = std::max(columns_.back().width, width - used);
}

Row Grid::Head() const {
  std::vector<Span> titles;
  for (const Column& column : columns_) titles.push_back({column.title, Style::kBold});
  return Line(titles);
}

Row Grid::Line(const std::vector<Span>& cells) const {
  Row row;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].width < 0) continue;
    row.push_back({Fit(cells[i].text, columns_[i].width, columns_[i].align), cells[i].style});
    if (i + 1 < columns_.size()) row.push_back({" "});
  }
  Cut(row, width_);
  return row;
}

std::string Bar(double share, int columns) {
  const int room = std::max(0, columns - 2);
  const double part = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const auto filled = static_cast<size_t>(std::lround(part * room));
  return "[" + std::string(filled, '#') + std::string(static_cast<size_t>(room) - filled, ' ') +
         "]";
}

std::string ToAscii(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::string_view before = text;
    bool valid = false;
    const char32_t character = TakeCharacter(text, valid);
    const std::string_view bytes = before.substr(0, before.size() - text.size());
    if (character < 0x80) {
      out += bytes;
    } else if (bytes == kCutSign) {
      out += '~';
    } else {
      out += std::string(Columns(bytes), '?');
    }
  }
  return out;
}

std::string PlainText(const std::vector<Row>& rows, bool unicode) {
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (const Span& span : row) line += unicode ? span.text : ToAscii(span.text);
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace sft::client::top
