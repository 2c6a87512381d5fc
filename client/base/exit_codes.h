#pragma once

#include "common/base/status.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// Exit statuses of sftctl; docs/cli.md has the same table.
enum ExitCode : int {
  kSucceeded = 0,
  kInternal = 1,
  kUsage = 2,  // wrong flags, or an invalid job file
  kNotFound = 3,
  kUnreachable = 4,  // no server, RPC deadline, or --timeout passed
  kRefused = 5,      // not permitted, quota, incompatible versions
  kJobFailedUser = 10,
  kJobFailedInfra = 11,
  kJobCancelled = 12,
  kInterrupted = 130,
};

ExitCode ExitCodeOf(const absl::Status& status);

// The exit code for an ended job, from its state and its verdict's domain.
ExitCode ExitCodeOf(const v1::Job& job);

}  // namespace sft::client
