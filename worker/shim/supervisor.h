#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "worker/channel/launch.h"
#include "worker/shim/log_limit.h"
#include "worker/shim/process.h"

namespace sft::shim {

// Supervises one attempt's processes on this node: runs prepare to its end, then all ranks. The
// first process to fail, a stop command or the fencing limit ends all of them; the state is
// "exited" when no descendant is left. One thread; the caller runs the event loop and must be the
// subreaper of its descendants.
class Supervisor {
 public:
  // `clock` is borrowed.
  Supervisor(channel::ShimLaunch launch, Clock& clock);

  // Starts prepare, or the ranks if there is no prepare.
  void Start();
  // Call after SIGCHLD.
  void Reap();
  channel::Answer Handle(const channel::Command& command);
  // Ends everything; the first reason and cause (see ShimStatus) are kept.
  void Stop(const std::string& cause, const std::string& reason);
  // Call at NextWake() at the latest: handles fencing, SIGKILL after the grace period, log limits,
  // and a status that could not be written.
  void Tick();
  // Time until Tick has something to do.
  std::chrono::milliseconds NextWake() const;
  // True when all processes are gone and the last status is on disk (or could not be written for
  // kStatusPatience).
  bool Finished() const;

 private:
  struct Running {
    pid_t pid = 0;
    io::UniqueFd command_pipe;
    size_t index = 0;  // index in status_.processes
  };

  void StartProcess(const channel::ShimLaunch::Process& process);
  void StartRanks();
  void Ended(size_t index, int exit_code, int signal);
  void SendCommand(const channel::Command& command);
  void SignalAll(int signal);
  void LimitLogs();
  void WriteStatus();

  const channel::ShimLaunch launch_;
  Clock& clock_;
  const std::string spare_path_;
  channel::ShimStatus status_;
  std::vector<Running> running_;
  bool ranks_started_ = false;
  bool children_left_ = false;
  int ended_ = 0;
  MonoTime fence_at_;
  MonoTime kill_at_;
  std::vector<LogLimit> log_limits_;
  MonoTime look_at_;  // when the logs are checked next
  bool log_limit_told_ = false;
  bool status_unwritten_ = false;
  MonoTime write_at_;
  MonoTime give_up_at_;
};

}  // namespace sft::shim
