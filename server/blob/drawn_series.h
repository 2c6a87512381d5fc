#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace sft::server {

// What a picture needs of a curve, made in one pass over its points: all of them where they are
// few, else the first, the last, and the lowest and the highest of each part of x, so that no spike
// is lost. Takes memory
// for the picture alone, however long the curve is. Not thread-safe.
class DrawnSeries {
 public:
  struct Options {
    int max_parts = 1000;  // twice as many points are kept as they are
    // Only points with x in between are drawn, and the next one on either side: lines go on there.
    double begin = -std::numeric_limits<double>::infinity();
    double end = std::numeric_limits<double>::infinity();
    // Above 0: draws the exponential mean with a half-life of so many points, of all of the curve.
    double half_life = 0;
  };
  explicit DrawnSeries(const Options& options) : options_(options) {}

  // `x` is not below that of the point before; a `y` that is no number is a gap.
  void Add(double x, double y);

  struct Drawing {
    std::vector<double> x;
    std::vector<float> y;
    int64_t points = 0;  // that are drawn or stood for
    int parts = 0;       // that have points; 0: every point is there
  };
  Drawing Draw() const;

 private:
  struct Point {
    double x = 0, y = 0;
  };
  // Points whose x is in [origin + index * width, origin + (index + 1) * width).
  struct Part {
    int64_t index = 0;
    std::optional<Point> low, high, gap;
  };
  double Smooth(double y);
  void AddToParts(const Point& point);
  static void Merge(const Part& from, Part& into);
  void AddParts(const std::function<void(const Point&)>& add) const;

  const Options options_;
  std::optional<Point> before_, after_;
  Point first_, last_;       // of those in between, once there are parts
  std::vector<Point> all_;   // empty once there are parts
  std::vector<Part> parts_;  // ascending
  double origin_ = 0, width_ = 0;
  int64_t points_ = 0;
  double sum_ = 0, weight_ = 0;  // of the mean
};

}  // namespace sft::server
