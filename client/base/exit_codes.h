#pragma once

#include "common/base/status.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// What sftctl's exit status means; docs/cli.md lists the same table.
enum ExitCode : int {
  kSucceeded = 0,
  kInternal = 1,
  kUsage = 2,  // wrong flags, or an invalid job file
  kNotFound = 3,
  kUnreachable = 4,  // no server, RPC deadline, or --timeout passed
  kRefused = 5,      // not allowed, quota, versions that do not fit
  kJobFailedUser = 10,
  kJobFailedInfra = 11,
  kJobCancelled = 12,
  kInterrupted = 130,
};

ExitCode ExitCodeOf(const absl::Status& status);

// Of an ended job: by its state and its verdict's domain.
ExitCode ExitCodeOf(const v1::Job& job);

}  // namespace sft::client
