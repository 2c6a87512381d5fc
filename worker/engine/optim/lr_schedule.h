#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"

namespace sft::engine {

// Learning rate of each optimizer step. With t from 1, W = warmup_steps, which is the job's or else
// ceil(ratio * total), N = total - W, and p = (t - 1 - W) / N, the part of the decay that is done:
//
//   t <= W   peak * t / W
//   t >  W   constant              peak
//            linear                peak * (1 - p)
//            cosine                peak * (1 + cos(pi * p)) / 2
//            cosine_with_restarts  peak * (1 + cos(pi * (num_cycles * p mod 1))) / 2
//            polynomial            (peak - end) * (1 - p)^power + end
//            inverse_sqrt          peak / sqrt((t - 1) / W), without a warm-up
//                                  peak / sqrt((t - 1 + 10000) / 10000)
//
// so the first step after the warm-up has the peak and the step after the last one would have 0
// (the polynomial: end); for t > W this is the factor of transformers' schedules for the same step.
// Past `total` that value stays; constant and inverse_sqrt know no end.
class LrSchedule {
 public:
  // Throws InternalError for a total below 1, a ratio outside [0, 1], or numbers of the settings
  // that no job may have.
  LrSchedule(const spec::LrSettings& settings, double peak, double warmup_ratio,
             int64_t total_steps);

  // The rate of step t, counted from 1.
  double At(int64_t step) const;
  int64_t warmup_steps() const { return warmup_steps_; }
  int64_t total_steps() const { return total_steps_; }

 private:
  // The rate where `done` of the decay is done, from 0 to 1.
  double Decayed(double done) const;

  spec::LrSettings settings_;
  double peak_;
  int64_t total_steps_;
  int64_t warmup_steps_;
};

}  // namespace sft::engine
