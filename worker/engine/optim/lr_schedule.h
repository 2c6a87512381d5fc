#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"

namespace sft::engine {

// Learning rate of each optimizer step. With t from 1, W = warmup_steps = ceil(ratio * total) and
// N = total - W:
//
//   t <= W   peak * t / W
//   t >  W   constant  peak
//            linear    peak * (total - t + 1) / N
//            cosine    peak * (1 + cos(pi * (t - 1 - W) / N)) / 2
//
// so the first step after the warm-up has the peak and the step after the last one would have 0;
// for t > W this is the factor of transformers' schedules for the same step. Past `total`, linear
// and cosine give 0.
class LrSchedule {
 public:
  // Throws InternalError for a total below 1 or a ratio outside [0, 1].
  LrSchedule(spec::LrScheduler kind, double peak, double warmup_ratio, int64_t total_steps);

  // The rate of step t, counted from 1.
  double At(int64_t step) const;
  int64_t warmup_steps() const { return warmup_steps_; }
  int64_t total_steps() const { return total_steps_; }

 private:
  spec::LrScheduler kind_;
  double peak_;
  int64_t total_steps_;
  int64_t warmup_steps_;
};

}  // namespace sft::engine
