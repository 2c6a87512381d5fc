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

// 0.07 * 100 is 7.000000000000001 in floating point and means 7.
int64_t StepsOfShare(double share, int64_t total) {
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(total) - 1e-9));
}

double DecayTo(spec::LrDecay decay, double done) {
  switch (decay) {
    case spec::LrDecay::kCosine:
      return HalfCosine(done);
    case spec::LrDecay::kLinear:
      return 1 - done;
    case spec::LrDecay::kOneMinusSqrt:
      return 1 - std::sqrt(done);
  }
  throw InternalError("unknown decay of the learning rate");
}

}  // namespace

LrSchedule::LrSchedule(const spec::LrSettings& settings, double peak, double warmup_ratio,
                       int64_t total_steps)
    : settings_(settings),
      peak_(peak),
      least_(settings.min > 0 ? settings.min / peak : settings.min_ratio),
      total_steps_(total_steps) {
  if (total_steps < 1 || !(warmup_ratio >= 0 && warmup_ratio <= 1)) {
    throw InternalError(fmt::format("a schedule of {} steps with a warm-up ratio of {}",
                                    total_steps, warmup_ratio));
  }
  if (settings.warmup_steps < 0 || settings.num_cycles < 1 || !(settings.power > 0)) {
    throw InternalError(fmt::format("a schedule with {} steps of warm-up, {} cycles and power {}",
                                    settings.warmup_steps, settings.num_cycles, settings.power));
  }
  if (!(settings.min >= 0) || !(settings.min_ratio >= 0 && settings.min_ratio <= 1) ||
      !(settings.decay_steps >= 0)) {
    throw InternalError(fmt::format("a schedule that ends at {} or {} of its peak, after {} steps",
                                    settings.min, settings.min_ratio, settings.decay_steps));
  }
  warmup_steps_ =
      settings.warmup_steps > 0 ? settings.warmup_steps : StepsOfShare(warmup_ratio, total_steps);
  const int64_t decay = settings.decay_steps >= 1 ? static_cast<int64_t>(settings.decay_steps)
                                                  : StepsOfShare(settings.decay_steps, total_steps);
  decay_steps_ = std::min(decay, std::max<int64_t>(total_steps - warmup_steps_, 0));
}

double LrSchedule::Between(double share) const { return peak_ * (share * (1 - least_) + least_); }

double LrSchedule::Stable(int64_t now) const {
  if (now >= total_steps_) return Between(0);
  const int64_t done = now - (total_steps_ - decay_steps_);
  if (done < 0) return peak_;
  return Between(
      DecayTo(settings_.decay, static_cast<double>(done) / static_cast<double>(decay_steps_)));
}

double LrSchedule::At(int64_t step) const {
  const bool stable = settings_.kind == spec::LrScheduler::kWarmupStableDecay;
  if (step <= warmup_steps_) {
    const double share = static_cast<double>(step) / static_cast<double>(warmup_steps_);
    return stable ? Between(share) : peak_ * share;
  }
  if (stable) return Stable(step - 1);
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
    case spec::LrScheduler::kCosineWithMinLr:
      return Between(HalfCosine(done));
    case spec::LrScheduler::kWarmupStableDecay:
      break;  // Stable
  }
  throw InternalError("unknown learning rate schedule");
}

}  // namespace sft::engine
