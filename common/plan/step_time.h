#pragma once

#include "common/plan/gpu.h"
#include "common/plan/peak_memory.h"

namespace sft::plan {

// Where the seconds of an optimizer step go on each rank.
struct StepTime {
  double products = 0;     // of weights with activations, the head's included
  double attention = 0;    // forward and backward, causal pairs alone
  double elementwise = 0;  // what the kernels between them move
  double adapters = 0;     // skinny products of the factors: bytes they read
  double weights = 0;      // de-quantising and gathering that is not hidden
  double recompute = 0;    // all that the backward computes again
  double optimizer = 0;    // update, norm, reduction that is not hidden
  double launches = 0;     // the host behind the device, and waits between them

  double total() const;
};

// With full rows. Rates: gpu.h; a kernel between products reaches 0.92 of a copy, products and
// attention less than their rate on few tokens.
StepTime PredictTime(const Problem& problem, const ExecutionPlan& run, const GpuRates& gpu);

}  // namespace sft::plan
