#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "worker/channel/launch.h"

namespace sft::rank {

// A launch file with its job parsed.
struct Launch {
  channel::RankLaunch file;
  spec::JobSpec spec;
};

// The files with training rows, in the order of the job's.
std::vector<channel::RowFile> TrainingFiles(const Launch& launch);
// That of data.val, or the training files where data.val_split holds a part of them out; empty
// without validation.
std::vector<channel::RowFile> ValidationFiles(const Launch& launch);

// InvalidArgument or NotFound naming the file and the member that is wrong.
absl::StatusOr<Launch> ReadLaunch(const std::string& path);

// <attempt dir>/<process>.events
std::string EventPath(const Launch& launch, const std::string& process);

}  // namespace sft::rank
