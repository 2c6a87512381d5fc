#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "client/base/connection.h"
#include "sft/v1/job.pb.h"

namespace sft::client {

// How a job is followed.
struct FollowOptions {
  bool metrics = false;                         // also deliver each training step
  std::optional<std::chrono::seconds> timeout;  // give up waiting after this long
  // Asked after each change: true ends the watch before the job has ended.
  std::function<bool()> enough;
};

// What is called while it is; both must be set.
struct FollowHandlers {
  std::function<void(const v1::Job&)> on_job;
  std::function<void(const v1::Metric&)> on_metric;
};

// Watches a job until it has ended, through restarts of the server (each outage is waited for
// kOutageLimit). Returns the ended job (or as
// it is when there is enough); CANCELLED after Ctrl-C; DEADLINE_EXCEEDED after the
// timeout.
absl::StatusOr<v1::Job> FollowJob(Connection& connection, const std::string& name,
                                  const FollowOptions& options, const FollowHandlers& handlers);

inline constexpr std::chrono::minutes kOutageLimit{10};

// Runs `read`, one try of a streaming call that goes on where the last one broke, until it says
// that all is read or fails; with `follow` through outages of the server, each up to kOutageLimit.
// OK after Ctrl-C too (Interrupt::Raised).
using ReadOnce = std::function<grpc::Status(bool& heard, bool& ended)>;
absl::Status ReadThroughOutages(Connection& connection, bool follow, const ReadOnce& read);

}  // namespace sft::client
