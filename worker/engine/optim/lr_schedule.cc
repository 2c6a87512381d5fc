#include "worker/engine/optim/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/engine/base/error.h"

namespace sft::engine {

LrSchedule::LrSchedule(spec::LrScheduler kind, double peak, double warmup_ratio,
                       int64_t total_steps)
    : kind_(kind), peak_(peak), total_steps_(total_steps) {
  if (total_steps < 1 || !(warmup_ratio >= 0 && warmup_ratio <= 1)) {
    throw InternalError(fmt::format("a schedule of {} steps with a warm-up ratio of {}",
                                    total_steps, warmup_ratio));
  }
  // 0.07 * 100 is 7.000000000000001 in floating point and means 7.
  const double steps = warmup_ratio * static_cast<double>(total_steps);
  warmup_steps_ = static_cast<int64_t>(std::ceil(steps - 1e-9));
}

double LrSchedule::At(int64_t step) const {
  if (step <= warmup_steps_) {
    return peak_ * (static_cast<double>(step) / static_cast<double>(warmup_steps_));
  }
  const auto length = static_cast<double>(std::max<int64_t>(total_steps_ - warmup_steps_, 1));
  const double progress = std::min(static_cast<double>(step - 1 - warmup_steps_) / length, 1.0);
  switch (kind_) {
    case spec::LrScheduler::kConstant:
      return peak_;
    case spec::LrScheduler::kLinear:
      return peak_ * (1 - progress);
    case spec::LrScheduler::kCosine:
      return peak_ * (0.5 * (1 + std::cos(std::numbers::pi * progress)));
  }
  throw InternalError("unknown learning rate schedule");
}

}  // namespace sft::engine
