#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "worker/base/rank_user.h"
#include "worker/channel/launch.h"

namespace sft::worker {

// The shims of a node, as an attempt works with them. Thread-safe.
class ShimHost {
 public:
  virtual ~ShimHost() = default;
  // Starts a shim, which detaches itself; returns when its control socket answers. The error is
  // what the shim said; ALREADY_EXISTS: the attempt has one, or had one; UNKNOWN: nobody said
  // anything in time, and it may be there.
  virtual absl::Status Start(const std::string& shim_json) = 0;
  // Sends one command; a bounded wait. UNAVAILABLE when no shim answers.
  virtual absl::StatusOr<channel::Answer> Ask(const std::string& socket_path,
                                              const channel::Command& command) = 0;
  // Whether the shim that wrote this status still runs: its process is there and is not a later one
  // that got its number.
  virtual bool Alive(const channel::ShimStatus& status) = 0;
};

// Processes of sft-shim, which run as the user of their ranks.
class ShimProcesses : public ShimHost {
 public:
  // A shim that says nothing for `start_deadline` is not waited for.
  explicit ShimProcesses(std::string shim_binary, std::optional<RankUser> rank_user = std::nullopt,
                         std::chrono::milliseconds start_deadline = std::chrono::seconds(10))
      : shim_binary_(std::move(shim_binary)),
        rank_user_(std::move(rank_user)),
        start_deadline_(start_deadline) {}
  absl::Status Start(const std::string& shim_json) override;
  absl::StatusOr<channel::Answer> Ask(const std::string& socket_path,
                                      const channel::Command& command) override;
  bool Alive(const channel::ShimStatus& status) override;

 private:
  const std::string shim_binary_;
  const std::optional<RankUser> rank_user_;
  const std::chrono::milliseconds start_deadline_;
};

}  // namespace sft::worker
