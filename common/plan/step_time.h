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
  double exchange = 0;     // between ranks that share matrices, of tokens and of gradients of what
                           // several have; nothing hides it

  double total() const;
};

// Seconds of a step in which the host waits for the loss, the norm and other ranks.
inline constexpr double kStepOverhead = 4e-3;

// Predicted seconds of one micro-batch, forward and backward; nothing that happens once a step.
struct MicroBatchTime {
  StepTime time;
  double forward = 0;  // of this, the forward's products and attention in the blocks
  double calls = 0;    // the host's for the blocks' collectives, in no part of `time` yet
};
MicroBatchTime PredictMicroBatch(const Problem& problem, const ExecutionPlan& run,
                                 const GpuRates& gpu);

// Seconds in which the host launches so many blocks of a micro-batch, what is recomputed included,
// and their collectives, where ranks pass messages and nothing is recorded.
double LaunchSeconds(const StepTime& time, int64_t blocks, double calls);

// Predicts the time with full rows. Rates: gpu.h; a kernel between products reaches 0.92 of a copy,
// products and attention less than their rate on few tokens.
StepTime PredictTime(const Problem& problem, const ExecutionPlan& run, const GpuRates& gpu);

}  // namespace sft::plan
