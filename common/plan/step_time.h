#pragma once

#include "common/plan/gpu.h"
#include "common/plan/peak_memory.h"

namespace sft::plan {

// Predicted seconds of an optimizer step on each rank, by activity.
struct StepTime {
  double products = 0;     // weights times activations, the head included
  double attention = 0;    // forward and backward, causal pairs only
  double elementwise = 0;  // memory traffic of the kernels between them
  double adapters = 0;     // skinny products of the factors: the bytes they read
  double weights = 0;      // de-quantising and gathering that is not overlapped
  double recompute = 0;    // all recomputation in the backward
  double optimizer = 0;    // update, norm, reduction that is not overlapped
  double launches = 0;     // the host lagging behind the device, and waits between them
  double exchange = 0;     // of tokens between ranks that share matrices; nothing hides it

  double total() const;
};

// Predicts the time with full rows. Rates: gpu.h; a kernel between products reaches 0.92 of a copy,
// products and attention less than their rate on few tokens.
StepTime PredictTime(const Problem& problem, const ExecutionPlan& run, const GpuRates& gpu);

}  // namespace sft::plan
