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
//            cosine_with_min_lr    (peak - min) * (1 + cos(pi * p)) / 2 + min
//            warmup_stable_decay   peak, and in the last D steps (peak - min) * f(q) + min,
//                                  q = (t - 1 - total + D) / D
//
// so the first step after the warm-up has the peak and the step after the last one would have 0
// (or end, or min); for t > W this is the factor of transformers' schedules for the same step.
// Past `total` that value stays; constant and inverse_sqrt know no end. min is lr_min, or
// lr_min_ratio * peak; D = lr_decay_steps, or ceil of a share of total, at most N; and f(q) =
// (1 + cos(pi * q)) / 2, 1 - q or 1 - sqrt(q). warmup_stable_decay warms up from min, not from 0.
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
  // Between the least rate (0) and the peak (1).
  double Between(double share) const;
  // Of warmup_stable_decay after the warm-up, at `now` = t - 1.
  double Stable(int64_t now) const;

  spec::LrSettings settings_;
  double peak_;
  double least_;  // of the peak
  int64_t total_steps_;
  int64_t warmup_steps_;
  int64_t decay_steps_;
};

}  // namespace sft::engine
