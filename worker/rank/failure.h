#pragma once

#include <exception>

#include "common/spec/job_spec.h"
#include "worker/channel/event.h"
#include "worker/channel/launch.h"

namespace sft::rank {

// An exception as the job sees it: who has to act, and how the process ends.
struct Failure {
  channel::FatalEvent event;
  channel::ExitCode exit_code = channel::kExitInternal;
};

// The rank that failed and the values that it ran with, for advice that names them.
struct FailureContext {
  int rank = -1;
  const spec::JobSpec* spec = nullptr;  // null: no job, none of its values are named
  int64_t peak_memory_bytes = 0;        // 0: not known
};

// Errors of the engine name their domain; of LibTorch's, memory that ran out is the user's to solve
// (a smaller batch), a failing device is the node's, the rest is ours.
Failure DescribeFailure(const std::exception& error, const FailureContext& context = {});

// Where in the program an error of LibTorch's was raised, for the rank's log; empty for others.
std::string TraceOf(const std::exception& error);

}  // namespace sft::rank
