#pragma once

#include <string>
#include <vector>

#include "client/output/json.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// Figures of one run, from its job and its curve. A sample is a row of the global batch: a step of
// a run has hyperparameters.global_batch of them.
struct RunFigures {
  v1::Job job;
  Json resolved;  // the resolved job; an object
  std::vector<v1::Metric> steps, validations;

  int64_t global_batch = 1;
  int64_t last_step = 0;
  int64_t samples = 0;  // seen so far
  int64_t tokens = 0;
  double tokens_per_second = 0;  // median of all steps but the first
  int64_t gpu_memory_bytes = 0;  // most of any step
  double wall_seconds = 0;       // from the start of the last attempt's ranks to the end, or so far
  std::string method;            // "qlora r=16", "lora r=8", "full"
};

// `now` counts for a job that still runs: seconds since the Unix epoch.
RunFigures FiguresOf(const v1::Job& job, const std::vector<v1::Metric>& curve, double now);

// Samples that the curves of all runs have steps of: a resumed run's begins where it went on.
struct CommonSamples {
  int64_t from = 0, to = 0;  // from >= to: there are none
};
CommonSamples CommonSamplesOf(const std::vector<RunFigures>& runs);

// A run's loss at the end of those samples: of the last step within them, and the mean of up to ten
// steps that end there and begin within them. `known`: it has such a step.
struct LossAt {
  bool known = false;
  int64_t step = 0;
  double loss = 0;
  double mean = 0;
};
LossAt LossAtSamples(const RunFigures& run, const CommonSamples& common);

// Keys of the resolved jobs whose values are not all the same, with the values in the order of the
// runs. Names and folders, which say nothing of the training, are left out.
std::vector<std::pair<std::string, std::vector<std::string>>> Differences(
    const std::vector<RunFigures>& runs);

}  // namespace sft::client
