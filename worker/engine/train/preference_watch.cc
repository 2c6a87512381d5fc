#include "worker/engine/train/preference_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sft::engine {
namespace {

// Other micro-batches than those of the pass round otherwise. In bf16 a token's log-probability
// differs by some 0.03, mostly independent of the next one's: a pair's margin by that times the
// root of its tokens, the mean over pairs by less. Eight times as much is odd.
constexpr double kOddOfToken = 0.25;
// The same per token in all answers is no rounding.
constexpr double kWrongOfToken = 0.1;
constexpr double kFp32Tolerance = 1e-3;

// Steps over which the accuracy that is looked at is a mean, about.
constexpr double kSmoothing = 0.1;
// Those that tell where a loss without a reference begins.
constexpr int64_t kFirstSteps = 5;
// From which part of the run, and which step, on an accuracy that fell is told.
constexpr int64_t kStepsToTell = 10;
constexpr double kTimeToLearn = 0.2;
// How far it falls below the first steps' by the rows alone.
constexpr double kUnderFirst = 0.1;

}  // namespace

Start JudgeStart(const FirstStep& step) {
  const double margin = std::abs(step.margin);
  if (step.fp32) {
    return margin <= kFp32Tolerance * std::max(1.0, step.beta) ? Start::kAtReference
                                                               : Start::kWrong;
  }
  const double rounding = std::sqrt(step.answer_tokens / std::max(1.0, step.pairs));
  if (margin <= step.beta * std::max(1.0, kOddOfToken * rounding)) return Start::kAtReference;
  return margin > step.beta * kWrongOfToken * step.answer_tokens ? Start::kWrong : Start::kOdd;
}

std::string AccuracyWatch::After(int64_t step, int64_t total_steps, double accuracy) {
  // Before the first update all margins to a reference are 0, and nothing wins.
  const bool has_reference = loss_ == spec::Loss::kDpo || loss_ == spec::Loss::kKto;
  if (!std::isfinite(accuracy) || (has_reference && step == 1)) return "";
  ++seen_;
  if (!has_reference && seen_ <= kFirstSteps) {
    first_ += (accuracy - first_) / static_cast<double>(seen_);
    last_ = first_;
  } else {
    last_ += kSmoothing * (accuracy - last_);
  }
  const double part =
      static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, total_steps));
  const double least = has_reference ? first_ : first_ - kUnderFirst;
  if (step < kStepsToTell || part < kTimeToLearn || last_ >= least) return "";
  const std::string when = fmt::format("after {} of {} steps", step, total_steps);
  if (loss_ == spec::Loss::kKto) {
    return fmt::format(
        "{} {:.0f} % of the answers are on their side of z (good ones above, bad ones below), less "
        "than by chance: are the labels swapped, or is the learning rate too high?",
        when, 100 * last_);
  }
  if (has_reference) {
    return fmt::format(
        "{} the chosen answers win in {:.0f} % of the rows, less than by chance: are chosen and "
        "rejected swapped, or is the learning rate too high?",
        when, 100 * last_);
  }
  return fmt::format(
      "{} the chosen answers win in {:.0f} % of the rows, in the first steps in {:.0f} %: is the "
      "learning rate too high?",
      when, 100 * last_, 100 * first_);
}

std::string ImbalanceText(double good, double bad, double good_weight, double bad_weight) {
  if (bad == 0) {
    return fmt::format(
        "{:.0f} good answers and no bad ones: nothing says what to avoid; give bad ones too, or "
        "learn from the good ones with training.loss = \"sft\"",
        good);
  }
  if (good == 0) {
    return fmt::format(
        "{:.0f} bad answers and no good ones: the model learns what to avoid and not what to say; "
        "give good ones too",
        bad);
  }
  // A side without weight is left out on purpose.
  if (good_weight == 0 || bad_weight == 0) return "";
  const double ratio = good * good_weight / (bad * bad_weight);
  // Some room, as a ratio that is right cannot always be met.
  if (ratio >= 0.9 && ratio <= 1.5) return "";
  return fmt::format(
      "{:.0f} good and {:.0f} bad answers: with their weights the good ones count {:.2f} times as "
      "much, and a factor of 1 to 1.33 works best; set training.preference.kto_desirable_weight or "
      "kto_undesirable_weight",
      good, bad, ratio);
}

}  // namespace sft::engine
