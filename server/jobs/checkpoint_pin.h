#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/spec/resolve.h"
#include "server/store/store.h"

namespace sft::server {

// A job's checkpoint, where a job that answers names it as its adapter.
struct CheckpointName {
  std::string job;  // its id
  int64_t step = 0;
};

// Of job.adapter as PinCheckpoint leaves it, "job-2f8c0k1m3n@40"; nothing for any other.
std::optional<CheckpointName> CheckpointOf(const std::string& adapter);

// Gives a job that answers with a checkpoint ("JOB@40", "JOB@best", "JOB@latest" in job.adapter)
// the step that this is now, and the chat template of that job where it has none of its own. JOB
// may still run. What is not there is a problem of job.adapter. `project`: whose jobs are meant.
absl::Status PinCheckpoint(Store& store, const std::string& project, spec::Resolution& resolution);

}  // namespace sft::server
