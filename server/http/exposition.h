#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/obs/histogram.h"

namespace sft::server {

// Writes Prometheus' text exposition format (version 0.0.4). Not thread-safe; one object per page.
class Exposition {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  // Starts a metric; its samples follow.
  void Metric(std::string_view name, std::string_view type, std::string_view help);
  void Sample(const Labels& labels, double value);

  // All samples of a histogram with these labels.
  void Sample(const Labels& labels, const obs::Histogram::Counts& counts);

  const std::string& text() const { return text_; }

 private:
  void Write(std::string_view suffix, const Labels& labels, double value);

  std::string text_;
  std::string name_;
};

}  // namespace sft::server
