#pragma once

#include <exception>

#include "worker/channel/event.h"
#include "worker/channel/launch.h"

namespace sft::rank {

// What an exception means to the job: who has to act, and how the process ends.
struct Failure {
  channel::FatalEvent event;
  channel::ExitCode exit_code = channel::kExitInternal;
};

// Errors of the engine name their domain; of LibTorch's, memory that ran out is the user's to solve
// (a smaller batch), a failing device is the node's, the rest is ours.
Failure DescribeFailure(const std::exception& error);

}  // namespace sft::rank
