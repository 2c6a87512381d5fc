#include "worker/engine/optim/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

// transformers' time scale of the inverse square root where there is no warm-up.
constexpr int64_t kTimescale = 10000;

double HalfCosine(double done) { return 0.5 * (1 + std::cos(std::numbers::pi * done)); }

}  // namespace

LrSchedule::LrSchedule(const spec::LrSettings& settings, double peak, double warmup_ratio,
                       int64_t total_steps)
    : settings_(settings), peak_(peak), total_steps_(total_steps) {
  if (total_steps < 1 || !(warmup_ratio >= 0 && warmup_ratio <= 1)) {
    throw InternalError(fmt::format("a schedule of {} steps with a warm-up ratio of {}",
                                    total_steps, warmup_ratio));
  }
  if (settings.warmup_steps < 0 || settings.num_cycles < 1 || !(settings.power > 0)) {
    throw InternalError(fmt::format("a schedule with {} steps of warm-up, {} cycles and power {}",
                                    settings.warmup_steps, settings.num_cycles, settings.power));
  }
  // 0.07 * 100 is 7.000000000000001 in floating point and means 7.
  const double steps = warmup_ratio * static_cast<double>(total_steps);
  warmup_steps_ = settings.warmup_steps > 0 ? settings.warmup_steps
                                            : static_cast<int64_t>(std::ceil(steps - 1e-9));
}

double LrSchedule::At(int64_t step) const {
  if (step <= warmup_steps_) {
    return peak_ * (static_cast<double>(step) / static_cast<double>(warmup_steps_));
  }
  if (settings_.kind == spec::LrScheduler::kInverseSqrt) {
    const int64_t scale = warmup_steps_ > 0 ? warmup_steps_ : kTimescale;
    const int64_t now = step - 1 + scale - warmup_steps_;
    return peak_ * (1 / std::sqrt(static_cast<double>(now) / static_cast<double>(scale)));
  }
  const auto length = static_cast<double>(std::max<int64_t>(total_steps_ - warmup_steps_, 1));
  return Decayed(std::min(static_cast<double>(step - 1 - warmup_steps_) / length, 1.0));
}

double LrSchedule::Decayed(double done) const {
  switch (settings_.kind) {
    case spec::LrScheduler::kConstant:
    case spec::LrScheduler::kInverseSqrt:
      return peak_;
    case spec::LrScheduler::kLinear:
      return peak_ * (1 - done);
    case spec::LrScheduler::kCosine:
      return peak_ * HalfCosine(done);
    case spec::LrScheduler::kCosineWithRestarts:
      return done < 1 ? peak_ * HalfCosine(std::fmod(settings_.num_cycles * done, 1.0)) : 0;
    case spec::LrScheduler::kPolynomial:
      return (peak_ - settings_.end) * std::pow(1 - done, settings_.power) + settings_.end;
  }
  throw InternalError("unknown learning rate schedule");
}

}  // namespace sft::engine
