#pragma once

#include <string>
#include <string_view>
#include <vector>

// A picture of text: what `sftctl top` draws on a terminal, or prints where there is none.

namespace sft::client::top {

enum class Style { kPlain, kDim, kBold, kGood, kWarn, kBad, kCurve, kSelected, kBar };

// A piece of a row. Its text is harmless: Fit and Safe make it so.
struct Span {
  std::string text;
  Style style = Style::kPlain;
};
using Row = std::vector<Span>;

// Text of others on one line, control characters shown as "\x1b".
Span Safe(std::string_view text, Style style = Style::kPlain);

// The text, made harmless, in exactly so many columns of a terminal: filled up, or cut with a "…"
// at its end. Wide characters take two, combining ones none.
enum class Align { kLeft, kRight };
std::string Fit(std::string_view text, int columns, Align align = Align::kLeft);

int ColumnsOf(const Row& row);
// Not wider than so many columns.
void Cut(Row& row, int columns);

// A column of a Grid.
struct Column {
  std::string title;
  int width = 0;  // of the last one: the least; it takes what is left
  Align align = Align::kLeft;
  int need = 0;  // it is left out of a picture that is narrower
};
// Rows of cells below their titles, in columns of a given width.
class Grid {
 public:
  Grid(std::vector<Column> columns, int width);
  Row Head() const;
  // As many cells as columns; styles of cells stay.
  Row Line(const std::vector<Span>& cells) const;

 private:
  std::vector<Column> columns_;
  int width_;
};

// "[####    ]" of so many columns.
std::string Bar(double share, int columns);

// Rows as plain text, one line each; without characters beyond ASCII where the terminal has none.
std::string PlainText(const std::vector<Row>& rows, bool unicode);
std::string ToAscii(std::string_view text);

}  // namespace sft::client::top
