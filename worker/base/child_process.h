#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker/base/rank_user.h"

namespace sft::worker {

// How a program ended.
struct ChildResult {
  int exit_code = 0;  // valid when signal is 0
  int signal = 0;
  std::string output;  // standard output and error, at most 1 MiB

  bool ok() const { return exit_code == 0 && signal == 0; }
};

// Runs a program to its end in its own process group, with the variables of ChildEnvironment; with
// `user`, as that user, in its home and unable to gain privileges. DEADLINE_EXCEEDED when it did
// not end in time: its group is killed, and if it survives that (a hung driver) it is left behind.
// NOT_FOUND when there is no such program. Safe in a process with many threads.
absl::StatusOr<ChildResult> RunChild(const std::vector<std::string>& argv,
                                     const std::vector<std::string>& added_env,
                                     std::chrono::milliseconds deadline,
                                     const std::optional<RankUser>& user = std::nullopt);

}  // namespace sft::worker
