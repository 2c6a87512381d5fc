#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "server/state/schedule.h"

// How near estimates of jobs' starts and ends came. Pure.

namespace sft::server {

// Of one kind of estimate: an error is what it was off by, as a part of what it took from the
// submit (after the 50th step: from the start) to what happened.
struct EstimateErrors {
  // Bounds of the buckets of errors.
  static constexpr std::array kBounds = {0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0};
  int all = 0, within_10 = 0, within_20 = 0, within_50 = 0;
  std::array<int64_t, kBounds.size() + 1> by_bound{};  // of each alone; the last: beyond all
  double mean = 0;
};

// Of all kinds.
struct EstimateReport {
  EstimateErrors start, end;    // as of the submit; a start within two minutes counts as right
  EstimateErrors end_after_50;  // as of the 50th step
};

// `begun`: jobs that have begun; `ended`: those that ended with success.
EstimateReport ReportOf(const std::vector<EstimateRecord>& begun,
                        const std::vector<EstimateRecord>& ended);

}  // namespace sft::server
