#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "client/base/connection.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// Options of FollowJob.
struct FollowOptions {
  bool metrics = false;                         // also deliver each training step
  std::optional<std::chrono::seconds> timeout;  // stop waiting after this time
  // The server was there a moment ago: an outage is waited for from the start.
  bool reached = false;
  // Called after each change: true ends the watch before the job has ended.
  std::function<bool()> enough;
};

// Callbacks of FollowJob; both must be set.
struct FollowHandlers {
  std::function<void(const v1::Job&)> on_job;
  std::function<void(const v1::Metric&)> on_metric;
};

// Watches a job until it has ended, through restarts of the server (waiting up to kOutageLimit for
// each outage). Returns the ended job (or its current state when `enough` was true); CANCELLED
// after Ctrl-C; DEADLINE_EXCEEDED after the timeout.
absl::StatusOr<v1::Job> FollowJob(Connection& connection, const std::string& name,
                                  const FollowOptions& options, const FollowHandlers& handlers);

// FollowJob for a command that waits for one job: on a terminal a line says what is waited for.
absl::StatusOr<v1::Job> FollowOneLine(Connection& connection, const std::string& id);

inline constexpr std::chrono::minutes kOutageLimit{10};

// Calls `read`, one try of a streaming call that resumes where the last one broke, until it reports
// the end or fails; with `follow` through outages of the server, each up to kOutageLimit. Also OK
// after Ctrl-C (Interrupt::Raised).
using ReadOnce = std::function<grpc::Status(bool& heard, bool& ended)>;
absl::Status ReadThroughOutages(Connection& connection, bool follow, const ReadOnce& read);

}  // namespace sft::client
