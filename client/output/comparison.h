#pragma once

#include <string>
#include <vector>

#include "client/output/json.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// Figures of one run, from its job and its curve. A sample is a row of the global batch: a step has
// hyperparameters.global_batch samples.
struct RunFigures {
  v1::Job job;
  Json resolved;  // the resolved job; an object
  std::vector<v1::Metric> steps, validations;

  int64_t global_batch = 1;
  int64_t last_step = 0;
  int64_t samples = 0;  // processed so far
  int64_t tokens = 0;
  double tokens_per_second = 0;  // median over all steps but the first
  int64_t gpu_memory_bytes = 0;  // maximum over the steps
  double wall_seconds = 0;  // from the start of the last attempt's ranks to the end, or until now
  std::string method;       // "qlora r=16", "lora r=8", "full"
};

// `now` is used for a job that still runs: seconds since the Unix epoch.
RunFigures FiguresOf(const v1::Job& job, const std::vector<v1::Metric>& curve, double now);

// The samples that all curves cover; the curve of a resumed run begins where it continued.
struct CommonSamples {
  int64_t from = 0, to = 0;  // from >= to: there are none
};
CommonSamples CommonSamplesOf(const std::vector<RunFigures>& runs);

// A run's loss at the end of the common samples: that of the last step within them, and the mean of
// up to ten steps that begin within them and end there. `known` is false if there is no such step.
struct LossAt {
  bool known = false;
  int64_t step = 0;
  double loss = 0;
  double mean = 0;
};
LossAt LossAtSamples(const RunFigures& run, const CommonSamples& common);

// Keys of the resolved jobs whose values differ, with the values in the order of the runs. Names
// and folders, which do not affect the training, are left out.
std::vector<std::pair<std::string, std::vector<std::string>>> Differences(
    const std::vector<RunFigures>& runs);

}  // namespace sft::client
