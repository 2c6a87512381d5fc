#pragma once

#include <array>
#include <functional>
#include <string_view>

#include "common/base/clock.h"
#include "common/obs/histogram.h"

namespace sft::server {

// How long the server took to answer requests over HTTP, by what was asked and the class of the
// answer's status: few of both, whatever callers ask. Thread-safe.
class HttpTimes {
 public:
  // Counts a request. `path` is empty when its head could not be read. `took` runs from the last
  // byte read of it to the head of its answer, so neither a slow caller nor a long stream adds to
  // it.
  void Count(std::string_view path, int status, Nanos took);

  // Calls `show` for each that was counted: ("api", "2xx", ...).
  using Show = std::function<void(std::string_view route, std::string_view status,
                                  const obs::Histogram::Counts& times)>;
  void Each(const Show& show) const;

 private:
  static constexpr size_t kRoutes = 7, kStatuses = 5;

  std::array<std::array<obs::Histogram, kStatuses>, kRoutes> times_;
};

}  // namespace sft::server
