#include "server/blob/drawn_series.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace sft::server {

double DrawnSeries::Smooth(double y) {
  if (options_.half_life <= 0 || !std::isfinite(y)) return y;
  const double keep = std::exp2(-1 / options_.half_life);
  sum_ = keep * sum_ + (1 - keep) * y;
  weight_ = keep * weight_ + (1 - keep);
  return sum_ / weight_;
}

void DrawnSeries::Add(double x, double y) {
  const Point point{x, Smooth(y)};
  if (x < options_.begin) {
    before_ = point;
    return;
  }
  if (x > options_.end) {
    if (!after_) after_ = point;
    return;
  }
  ++points_;
  last_ = point;
  if (!parts_.empty()) return AddToParts(point);
  all_.push_back(point);
  if (all_.size() <= 2 * static_cast<size_t>(options_.max_parts)) return;
  first_ = all_.front();
  origin_ = first_.x;
  width_ = (all_.back().x - origin_) / options_.max_parts;
  // Many points at one x: any width will do.
  if (!(width_ > 0)) width_ = 1;
  for (const Point& each : all_) AddToParts(each);
  all_.clear();
  all_.shrink_to_fit();
}

void DrawnSeries::Merge(const Part& from, Part& into) {
  if (from.low && (!into.low || from.low->y < into.low->y)) into.low = from.low;
  if (from.high && (!into.high || from.high->y > into.high->y)) into.high = from.high;
  if (from.gap) into.gap = from.gap;
}

void DrawnSeries::AddToParts(const Point& point) {
  while ((point.x - origin_) / width_ >= options_.max_parts) {
    // Twice as wide, two become one; the curve goes on far enough for half of the parts at least.
    width_ *= 2;
    size_t kept = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part part = parts_[i];
      part.index /= 2;
      if (kept > 0 && parts_[kept - 1].index == part.index) {
        Merge(part, parts_[kept - 1]);
      } else {
        parts_[kept++] = part;
      }
    }
    parts_.resize(kept);
  }
  Part part{.index = static_cast<int64_t>((point.x - origin_) / width_)};
  if (std::isfinite(point.y)) {
    part.low = part.high = point;
  } else {
    part.gap = point;
  }
  if (!parts_.empty() && parts_.back().index >= part.index) {
    Merge(part, parts_.back());
  } else {
    parts_.push_back(part);
  }
}

void DrawnSeries::AddParts(const std::function<void(const Point&)>& add) const {
  add(first_);
  Point newest = first_;
  const auto once = [&](const Point& point) {
    // The first and the last may be the lowest or highest of their parts too.
    if (point.x == newest.x && point.y == newest.y) return;
    add(newest = point);
  };
  for (const Part& part : parts_) {
    std::array<std::optional<Point>, 3> some{part.low, part.high, part.gap};
    // A lone point is its part's lowest and highest; one of many alike stands for all.
    if (part.low && part.high && part.low->y == part.high->y) some[1].reset();
    std::ranges::stable_sort(some, {}, [](const std::optional<Point>& p) { return p ? p->x : 0; });
    for (const std::optional<Point>& point : some) {
      if (point) once(*point);
    }
  }
  if (newest.x < last_.x) once(last_);
}

DrawnSeries::Drawing DrawnSeries::Draw() const {
  Drawing drawing;
  drawing.points = points_ + before_.has_value() + after_.has_value();
  drawing.parts = static_cast<int>(parts_.size());
  const auto add = [&](const Point& point) {
    drawing.x.push_back(point.x);
    drawing.y.push_back(static_cast<float>(point.y));
  };
  if (before_) add(*before_);
  for (const Point& point : all_) add(point);
  if (!parts_.empty()) AddParts(add);
  if (after_) add(*after_);
  return drawing;
}

}  // namespace sft::server
