#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/io/file.h"
#include "worker/channel/launch.h"

namespace sft::shim {

// A started process: leader of its own group, with a pipe to its standard input. The kernel kills
// it when the shim dies.
struct Child {
  pid_t pid = 0;
  io::UniqueFd command_pipe;
};

// Starts `process`, with standard output and error appended to `log_path`. RESOURCE_EXHAUSTED when
// the log or the process cannot be made. A program that cannot be executed is the child's own
// failure: exit code kExitInfrastructure and a line in its log.
absl::StatusOr<Child> Spawn(const channel::ShimLaunch::Process& process,
                            const std::string& log_path);

// All processes descended from this one.
std::vector<pid_t> Descendants();

}  // namespace sft::shim
