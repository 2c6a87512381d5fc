#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/top/picture.h"

namespace sft::client::top {

// A curve to be drawn; x ascending, a y that is no number is a gap.
struct PlotCurve {
  std::vector<double> x;
  std::vector<float> y;
  Style style = Style::kCurve;
};

// The size and the axes of a plot.
struct PlotOptions {
  int width = 80;       // with the axis
  int height = 10;      // rows, with that of x
  bool unicode = true;  // dots of Braille, eight in a cell; else two in a cell
  std::function<std::string(double)> x_text, y_text;
};

// Lines through the points of the curves, over what they span, with the least and the most of both
// axes. Of as many rows as asked for; one says so where there is nothing to draw.
std::vector<Row> Plot(const std::vector<PlotCurve>& curves, const PlotOptions& options);

}  // namespace sft::client::top
