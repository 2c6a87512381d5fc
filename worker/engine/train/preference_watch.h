#pragma once

#include <cstdint>
#include <string>

#include "common/spec/job_spec.h"

namespace sft::engine {

// What is looked at while a job learns from preferences, and what its owner is told of it.

// Means over the first step of a run with a reference.
struct FirstStep {
  double margin = 0;  // beta times the difference of the log-ratios
  double beta = 0;
  double answer_tokens = 0;  // of both answers of a pair
  double pairs = 0;
  bool fp32 = false;
};
enum class Start {
  kAtReference,  // the margin is 0, as far as rounding lets it be
  kOdd,          // further away than rounding mostly takes it
  kWrong,        // the reference is not this model
};
Start JudgeStart(const FirstStep& step);

// Tells when chosen answers win less and less.
class AccuracyWatch {
 public:
  explicit AccuracyWatch(spec::Loss loss) : loss_(loss) {}
  // Looks at the accuracy after a step; steps come one after the other, from 1 or where a run goes
  // on. Returns what to say; empty: nothing.
  std::string After(int64_t step, int64_t total_steps, double accuracy);

 private:
  spec::Loss loss_;
  int64_t seen_ = 0;
  double first_ = 0.5;  // of the first steps, where the loss has no reference
  double last_ = 0.5;   // of the last steps
};

// What to say of KTO's good and bad answers; empty: they are in balance.
std::string ImbalanceText(double good, double bad, double good_weight, double bad_weight);

}  // namespace sft::engine
