#include "worker/shim/supervisor.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "common/io/proc.h"

namespace sft::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Interval of repeated SIGKILLs until all are gone: a process may fork between the scan and the
// signal.
constexpr milliseconds kKillInterval{200};
constexpr seconds kStatusRetry{1};
// Reserved and freed for the last status, so that a full disk does not hide the end and keep the
// GPU held.
constexpr size_t kSpareBytes = 64 << 10;
// How long an ended attempt waits for a full disk before its shim leaves without a last status.
constexpr seconds kStatusPatience{600};
constexpr milliseconds kIdleWake{60'000};
// How often the sizes of logs are checked.
constexpr seconds kLogLook{1};

Nanos Seconds(double value) {
  return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(value));
}

std::string Describe(const channel::ShimStatus::Process& process) {
  const std::string who = process.rank < 0 ? process.name : fmt::format("rank {}", process.rank);
  if (process.signal != 0) {
    return fmt::format("{} was killed by signal {} ({})", who, process.signal,
                       strsignal(process.signal));
  }
  return fmt::format("{} failed with exit code {}", who, process.exit_code);
}

}  // namespace

Supervisor::Supervisor(channel::ShimLaunch launch, Clock& clock)
    : launch_(std::move(launch)), clock_(clock), spare_path_(launch_.attempt_dir + "/spare") {
  status_.attempt_uid = launch_.attempt_uid;
  status_.epoch = launch_.epoch;
  status_.shim_pid = getpid();
  status_.shim_start_ticks = io::ReadProcessStat(getpid()).value_or(io::ProcessStat{}).start_ticks;
  fence_at_ = clock_.Mono() + Seconds(launch_.fencing_seconds - launch_.fencing_age);
}

void Supervisor::Start() {
  (void)io::WriteFileAtomic(spare_path_, std::string(kSpareBytes, 's'));
  status_.state = "preparing";
  if (launch_.prepare.argv.empty()) {
    StartRanks();
  } else {
    StartProcess(launch_.prepare);
  }
  WriteStatus();
  Reap();  // if nothing was started, this ends the attempt
}

void Supervisor::StartRanks() {
  ranks_started_ = true;
  status_.state = "running";
  for (const auto& rank : launch_.ranks) {
    if (status_.state == "stopping") return;  // an earlier one could not start
    StartProcess(rank);
  }
}

void Supervisor::StartProcess(const channel::ShimLaunch::Process& process) {
  const size_t index = status_.processes.size();
  status_.processes.push_back({.name = process.name, .rank = process.rank});
  absl::StatusOr<LogLimit> limit =
      LogLimit::Make(launch_.attempt_dir, process.name, launch_.log_limit_bytes);
  if (limit.ok()) log_limits_.push_back(*std::move(limit));
  absl::StatusOr<Child> child =
      Spawn(process, fmt::format("{}/{}.log", launch_.attempt_dir, process.name));
  if (!child.ok()) {
    Stop("failure", fmt::format("{} did not start: {}", process.name, Message(child.status())));
    return Ended(index, channel::kExitInfrastructure, 0);
  }
  status_.processes[index].pid = child->pid;
  running_.push_back({child->pid, std::move(child->command_pipe), index});
}

void Supervisor::Ended(size_t index, int exit_code, int signal) {
  channel::ShimStatus::Process& process = status_.processes[index];
  process.exited = true;
  process.exit_code = exit_code;
  process.signal = signal;
  process.order = ++ended_;
  if (exit_code != 0 || signal != 0) {
    Stop("failure", Describe(process));
  } else if (process.rank < 0 && !ranks_started_ && status_.state != "stopping") {
    StartRanks();
  }
}

void Supervisor::Reap() {
  bool changed = false;
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [pid](const Running& running) { return running.pid == pid; });
    if (found == running_.end()) continue;  // an orphan inherited from the ranks
    const size_t index = found->index;
    running_.erase(found);
    changed = true;
    Ended(index, WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0,
          WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0);
  }
  children_left_ = pid == 0;
  if (running_.empty() && children_left_ && status_.state != "stopping") Stop("", "");
  if (running_.empty() && !children_left_ && status_.state != "exited") {
    status_.state = "exited";
    give_up_at_ = clock_.Mono() + kStatusPatience;
    changed = true;
  }
  if (changed) WriteStatus();
}

channel::Answer Supervisor::Handle(const channel::Command& command) {
  channel::Answer answer{.ok = true};
  if (command.command == "renew") {
    // A message older than the last one changes nothing.
    const MonoTime heard = clock_.Mono() - Seconds(std::max(command.age, 0.0));
    fence_at_ = std::max(fence_at_, heard + Seconds(launch_.fencing_seconds));
  } else if (command.command == "stop") {
    Stop(command.cause == "watch" ? "watch" : "command",
         command.reason.empty() ? "stop requested" : command.reason);
  } else if (command.command == "checkpoint" || command.command == "profile") {
    SendCommand(command);
  } else if (command.command != "status") {
    answer.ok = false;
    answer.error = fmt::format("unknown command \"{}\"", command.command);
  }
  answer.status = status_;
  return answer;
}

void Supervisor::Stop(const std::string& cause, const std::string& reason) {
  if (status_.state == "stopping" || status_.state == "exited") return;
  status_.state = "stopping";
  status_.cause = cause;
  status_.reason = reason;
  kill_at_ = clock_.Mono() + Seconds(launch_.grace_seconds);
  SendCommand({"stop", reason});
  SignalAll(SIGTERM);
  WriteStatus();
}

void Supervisor::SendCommand(const channel::Command& command) {
  const std::string line = ToLine(command);
  for (const Running& running : running_) {
    // A full pipe or a closed reader is no problem: the signals that follow a stop do not need it.
    [[maybe_unused]] const ssize_t written =
        write(running.command_pipe.get(), line.data(), line.size());
  }
}

void Supervisor::SignalAll(int signal) {
  // Groups first: atomic with regard to forks. Then processes that left their group; pids of
  // descendants cannot have been reused, because only this process reaps them.
  for (const Running& running : running_) kill(-running.pid, signal);
  for (const pid_t pid : Descendants()) {
    if (std::none_of(running_.begin(), running_.end(),
                     [pid](const Running& running) { return running.pid == getpgid(pid); })) {
      kill(pid, signal);
    }
  }
}

void Supervisor::Tick() {
  const MonoTime now = clock_.Mono();
  if (launch_.fencing_seconds > 0 && now >= fence_at_) {
    Stop("fencing",
         fmt::format("no word from the worker for {} s: fencing limit", launch_.fencing_seconds));
  }
  if (status_.state == "stopping" && now >= kill_at_) {
    SignalAll(SIGKILL);
    kill_at_ = now + kKillInterval;
  }
  if (launch_.log_limit_bytes > 0 && now >= look_at_) LimitLogs();
  if (status_unwritten_ && now >= write_at_) WriteStatus();
}

void Supervisor::LimitLogs() {
  for (LogLimit& limit : log_limits_) {
    const absl::Status checked = limit.Check();
    if (checked.ok() || log_limit_told_) continue;
    log_limit_told_ = true;
    fprintf(stderr, "sft-shim: logs are not limited: %s\n", std::string(Message(checked)).c_str());
  }
  look_at_ = clock_.Mono() + kLogLook;
}

milliseconds Supervisor::NextWake() const {
  MonoTime next = clock_.Mono() + kIdleWake;
  if (status_.state == "stopping") next = std::min(next, kill_at_);
  if (launch_.fencing_seconds > 0 && status_.state != "stopping" && status_.state != "exited") {
    next = std::min(next, fence_at_);
  }
  if (launch_.log_limit_bytes > 0 && !running_.empty()) next = std::min(next, look_at_);
  if (status_unwritten_) next = std::min(next, write_at_);
  const auto left = std::chrono::ceil<milliseconds>(next - clock_.Mono());
  return std::max(left, milliseconds(0));
}

void Supervisor::WriteStatus() {
  const absl::Status written =
      io::WriteFileAtomic(launch_.attempt_dir + "/status.json", ToJson(status_));
  status_unwritten_ = !written.ok();
  if (absl::IsResourceExhausted(written) && status_.state == "exited" && io::Exists(spare_path_)) {
    if (io::RemoveAll(spare_path_).ok()) return WriteStatus();
  }
  write_at_ = clock_.Mono() + kStatusRetry;
}

bool Supervisor::Finished() const {
  return status_.state == "exited" && (!status_unwritten_ || clock_.Mono() >= give_up_at_);
}

}  // namespace sft::shim
