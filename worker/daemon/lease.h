#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/daemon/agent.h"
#include "worker/daemon/options.h"

namespace sft::worker {

// The lease of a node that is lent (--ephemeral), from the options and Slurm's variables; nullopt
// without the option. INVALID_ARGUMENT for options that need it, a time that cannot be read, and an
// allocation too short for a job to reach a checkpoint in it: nothing is started then. The length
// does not matter to a worker that starts again in its data folder.
absl::StatusOr<std::optional<v1::Lease>> MakeLease(const Options& options, WallTime now);

// The name of this node where none is given: the host's, for a lease from Slurm with the number of
// the allocation and of its restart. An allocation is never mistaken for an earlier one.
std::string DefaultNodeName(const std::string& host, bool ephemeral);

// How the worker ends. Without a lease at a signal, and ranks go on. A node with one leaves the
// fleet at a signal, or when it had nothing to do for --leave-idle: the server sees to it that what
// runs here is moved, and then dismisses the worker. Thread-safe but for Look.
class Departure {
 public:
  // `agent` is borrowed.
  Departure(std::optional<v1::Lease> lease, const Options& options, Agent& agent);

  void AddTo(v1::Register& message) const;
  void OnSignal(int number);
  void OnDismissed();
  // Called about every second or two, by the thread that steps the agent.
  void Look();
  // The worker ends now.
  bool Ended() const { return ended_; }
  // Says so, for the log.
  void SayEnd() const;

 private:
  void End();

  const std::optional<v1::Lease> lease_;
  const Nanos idle_;  // zero: it never leaves for want of work
  Agent& agent_;
  MonoTime busy_at_;
  std::atomic<bool> ended_ = false, dismissed_ = false;
};

}  // namespace sft::worker
