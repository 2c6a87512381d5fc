#include "server/app/dev_worker.h"

#include <fmt/format.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"

extern char** environ;

namespace sft::server {
namespace {

constexpr std::chrono::milliseconds kPoll{50};
// sft-worker's exit code for wrong options.
constexpr int kExitUsage = 2;

// Field 22 of /proc/<pid>/stat: distinguishes the process from a later one with the same pid. 0: no
// process.
uint64_t StartTicks(pid_t pid) {
  const absl::StatusOr<std::string> stat = io::ReadFile(fmt::format("/proc/{}/stat", pid));
  if (!stat.ok()) return 0;
  size_t at = stat->rfind(')');
  for (int field = 2; field < 22 && at != stat->npos; ++field) at = stat->find(' ', at + 1);
  return at == stat->npos ? 0 : std::strtoull(stat->c_str() + at, nullptr, 10);
}

std::string BesideThisProgram(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / name).string();
}

}  // namespace

DevWorker::DevWorker(const Options& options, std::string data_dir, std::string server, Clock& clock)
    : options_(options),
      data_dir_(std::move(data_dir)),
      server_(std::move(server)),
      clock_(clock),
      binary_(options.worker_binary.empty() ? BesideThisProgram("sft-worker")
                                            : options.worker_binary) {}

std::vector<std::string> DevWorker::Arguments() const {
  std::vector<std::string> arguments = {binary_, "--dev",      "--server",
                                        server_, "--data-dir", data_dir_ + "/worker"};
  const auto add = [&](const char* flag, const std::string& value) {
    if (value.empty()) return;
    arguments.push_back(flag);
    arguments.push_back(value);
  };
  for (const std::string& folder : options_.models) add("--models", folder);
  add("--model-cache", options_.model_cache);
  add("--model-cache-limit", options_.model_cache_limit);
  add("--hub", options_.hub);
  add("--hub-token-file", options_.hub_token_file);
  add("--hub-ca", options_.hub_ca);
  add("--shared", options_.shared);
  add("--disk-low", options_.disk_low);
  add("--disk-full", options_.disk_full);
  add("--simulate-gpus", options_.simulate_gpus);
  add("--torch", options_.torch);
  if (options_.cpu_slots >= 0) add("--cpu-slots", std::to_string(options_.cpu_slots));
  if (options_.log_level != "info") add("--log-level", options_.log_level);
  return arguments;
}

pid_t DevWorker::FindLeftBehind(bool& same_server) const {
  const absl::StatusOr<std::string> text = io::ReadFile(RecordPath());
  if (!text.ok()) return 0;
  const auto json = ParseJson(*text);
  if (!json.is_object() || !json.contains("pid") || !json["pid"].is_number_integer() ||
      !json.contains("start_ticks") || !json["start_ticks"].is_number_unsigned() ||
      !json.contains("server") || !json["server"].is_string()) {
    return 0;
  }
  const pid_t pid = json["pid"].get<pid_t>();
  const uint64_t ticks = StartTicks(pid);
  if (ticks == 0 || ticks != json["start_ticks"].get<uint64_t>()) return 0;
  same_server = json["server"].get<std::string>() == server_;
  return pid;
}

absl::Status DevWorker::Start() {
  bool same_server = false;
  const pid_t left = FindLeftBehind(same_server);
  if (left != 0 && same_server) {
    spdlog::info("the worker of an earlier server goes on, pid {}", left);
    pid_ = left;
    is_child_ = false;
    return absl::OkStatus();
  }
  if (left != 0) {
    spdlog::info("the worker of an earlier server dials another address: pid {} is stopped", left);
    End(left);
  }
  if (::access(binary_.c_str(), X_OK) != 0) {
    return NotFound(
        fmt::format("no worker program {}: build the target sft-worker, or give "
                    "--worker-binary PATH",
                    binary_));
  }
  return Spawn();
}

absl::Status DevWorker::Spawn() {
  std::vector<std::string> arguments = Arguments();
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // The worker gets its own process group: Ctrl-C in the terminal reaches the server, which stops
  // the worker itself. Signals that this process blocks for sigwait are unblocked in the child.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  const int error = posix_spawn(&pid_, binary_.c_str(), nullptr, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid_ = 0;
    return ErrnoStatus(fmt::format("cannot start {}", binary_), error);
  }
  is_child_ = true;
  started_ = clock_.Mono();
  const nlohmann::json record = {
      {"pid", pid_}, {"start_ticks", StartTicks(pid_)}, {"server", server_}};
  return io::WriteFileAtomic(RecordPath(), DumpJson(record));
}

bool DevWorker::Alive() {
  if (pid_ == 0) return false;
  if (!is_child_) return StartTicks(pid_) != 0;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  spdlog::error("the worker has ended: {} {}", WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  refused_options_ = WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage;
  return false;
}

absl::Status DevWorker::Watch() {
  if (Alive()) return absl::OkStatus();
  if (refused_options_) {
    pid_ = 0;
    return InvalidArgument("the worker of --dev refused its options; it says why above");
  }
  if (pid_ != 0) {
    pid_ = 0;
    // A worker that ran for long was healthy; one that dies at once is restarted less and less
    // often.
    const bool was_well = clock_.Mono() - started_ > kMaxDelay;
    delay_ = was_well ? Nanos(std::chrono::seconds(1)) : std::min<Nanos>(2 * delay_, kMaxDelay);
    next_start_ = clock_.Mono() + delay_;
  }
  if (clock_.Mono() < next_start_) return absl::OkStatus();
  spdlog::info("starting the worker again");
  if (const absl::Status status = Spawn(); !status.ok()) {
    spdlog::error("{}", Message(status));
    next_start_ = clock_.Mono() + delay_;
  }
  return absl::OkStatus();
}

void DevWorker::End(pid_t pid) {
  ::kill(pid, SIGTERM);
  const MonoTime deadline = clock_.Mono() + kGrace;
  const auto gone = [&] {
    int status = 0;
    return is_child_ ? ::waitpid(pid, &status, WNOHANG) != 0 : StartTicks(pid) == 0;
  };
  while (!gone()) {
    if (clock_.Mono() > deadline) {
      spdlog::warn("the worker does not end: it is killed");
      ::kill(pid, SIGKILL);
      return;
    }
    clock_.Sleep(kPoll);
  }
}

void DevWorker::Stop() {
  if (pid_ != 0 && Alive()) End(pid_);
  pid_ = 0;
  const absl::Status removed = io::RemoveAll(RecordPath());
  if (!removed.ok()) spdlog::warn("{}", Message(removed));
}

}  // namespace sft::server
