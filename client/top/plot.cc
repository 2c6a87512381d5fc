#include "client/top/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "client/output/text.h"

namespace sft::client::top {
namespace {

// What the curves span.
struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // A flat line stands in the middle.
  void Widen() {
    if (high > low) return;
    const double half = std::max(std::abs(low) / 10, 1e-9);
    low -= half;
    high += half;
  }
};

// Dots of a picture: several in each cell.
class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns),
        rows_(rows),
        unicode_(unicode),
        cells_(static_cast<size_t>(columns * rows)),
        styles_(cells_.size(), Style::kPlain) {}

  int width() const { return unicode_ ? 2 * columns_ : columns_; }
  int height() const { return unicode_ ? 4 * rows_ : 2 * rows_; }

  // (0, 0) is at the top left.
  void Set(int x, int y, Style style) {
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    const int across = unicode_ ? 2 : 1, down = unicode_ ? 4 : 2;
    const auto cell = static_cast<size_t>(y / down * columns_ + x / across);
    cells_[cell] |= 1 << (y % down * across + x % across);
    styles_[cell] = style;
  }

  void AddTo(Row& row, int number) const {
    for (int column = 0; column < columns_; ++column) {
      const auto cell = static_cast<size_t>(number * columns_ + column);
      if (row.empty() || row.back().style != styles_[cell]) row.push_back({"", styles_[cell]});
      row.back().text += GlyphOf(cells_[cell]);
    }
  }

 private:
  std::string GlyphOf(int dots) const {
    if (!unicode_) return std::string(1, " '.:"[dots]);
    if (dots == 0) return " ";
    // Bits of U+2800 by our order, left and right from the top.
    constexpr int kBits[8] = {0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80};
    int code = 0x2800;
    for (int i = 0; i < 8; ++i) {
      if ((dots >> i & 1) != 0) code |= kBits[i];
    }
    return {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
            static_cast<char>(0x80 | (code & 0x3f))};
  }

  const int columns_, rows_;
  const bool unicode_;
  std::vector<int> cells_;
  std::vector<Style> styles_;
};

struct Spot {
  int x = 0, y = 0;
};

void Line(Canvas& canvas, Spot from, Spot to, Style style) {
  const int steps = std::max({std::abs(to.x - from.x), std::abs(to.y - from.y), 1});
  for (int i = 0; i <= steps; ++i) {
    const double part = static_cast<double>(i) / steps;
    canvas.Set(static_cast<int>(std::lround(from.x + part * (to.x - from.x))),
               static_cast<int>(std::lround(from.y + part * (to.y - from.y))), style);
  }
}

void Draw(Canvas& canvas, const PlotCurve& curve, const Extent& x, const Extent& y) {
  bool joined = false;
  Spot last;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.y[i])) {
      joined = false;
      continue;
    }
    const Spot spot{static_cast<int>(std::lround((curve.x[i] - x.low) / (x.high - x.low) *
                                                 (canvas.width() - 1))),
                    static_cast<int>(std::lround((y.high - curve.y[i]) / (y.high - y.low) *
                                                 (canvas.height() - 1)))};
    Line(canvas, joined ? last : spot, spot, curve.style);
    last = spot;
    joined = true;
  }
}

std::vector<Row> Nothing(const PlotOptions& options) {
  std::vector<Row> rows(static_cast<size_t>(std::max(1, options.height)));
  rows[rows.size() / 2] = {{Fit("  no points yet", options.width), Style::kDim}};
  return rows;
}

}  // namespace

std::vector<Row> Plot(const std::vector<PlotCurve>& curves, const PlotOptions& options) {
  Extent x, y;
  for (const PlotCurve& curve : curves) {
    for (size_t i = 0; i < curve.x.size(); ++i) {
      if (!std::isfinite(curve.y[i])) continue;
      x.Take(curve.x[i]);
      y.Take(curve.y[i]);
    }
  }
  if (x.empty()) return Nothing(options);
  x.Widen();
  y.Widen();
  const std::string most = options.y_text(y.high), least = options.y_text(y.low);
  const std::string first = options.x_text(x.low), last = options.x_text(x.high);
  const int axis = static_cast<int>(std::max(Columns(most), Columns(least)));
  const int columns = options.width - axis - 1, lines = options.height - 1;
  if (columns < 4 || lines < 1) return Nothing(options);
  Canvas canvas(columns, lines, options.unicode);
  for (const PlotCurve& curve : curves) Draw(canvas, curve, x, y);
  std::vector<Row> rows;
  for (int i = 0; i < lines; ++i) {
    const std::string label = i == 0 ? most : i == lines - 1 ? least : "";
    Row row = {{Fit(label, axis, Align::kRight) + "|", Style::kDim}};
    canvas.AddTo(row, i);
    rows.push_back(std::move(row));
  }
  const int room = columns - static_cast<int>(Columns(last));
  rows.push_back(
      {{std::string(static_cast<size_t>(axis + 1), ' ') + Fit(first, room) + last, Style::kDim}});
  Cut(rows.back(), options.width);
  return rows;
}

}  // namespace sft::client::top
