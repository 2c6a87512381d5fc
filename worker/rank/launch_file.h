#pragma once

#include <string>

#include "common/base/status.h"
#include "common/spec/job_spec.h"
#include "worker/channel/launch.h"

namespace sft::rank {

// A launch file with its job parsed.
struct Launch {
  channel::RankLaunch file;
  spec::JobSpec spec;
};

// InvalidArgument or NotFound naming the file and the member that is wrong.
absl::StatusOr<Launch> ReadLaunch(const std::string& path);

// <attempt dir>/<process>.events
std::string EventPath(const Launch& launch, const std::string& process);

}  // namespace sft::rank
