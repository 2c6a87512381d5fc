#include "worker/shim/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>

#include "common/io/proc.h"

extern char** environ;

namespace sft::shim {
namespace {

std::vector<std::string> Environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!added.contains(std::string(text.substr(0, text.find('='))))) result.emplace_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Runs between fork and exec; the shim has one thread, so ordinary calls are allowed.
[[noreturn]] void RunChild(pid_t shim, int input, int log, char** argv, char** env) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // the shim died before the line above
  if (getppid() != shim) _exit(channel::kExitInfrastructure);
  dup2(input, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(argv[0], argv, env);
  dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], strerror(errno));
  _exit(channel::kExitInfrastructure);
}

// Maps every process to its parent.
std::map<pid_t, pid_t> ProcessTable() {
  std::map<pid_t, pid_t> parents;
  const auto names = io::ListDir("/proc").value_or(std::vector<std::string>{});
  for (const std::string& name : names) {
    const pid_t pid = static_cast<pid_t>(strtol(name.c_str(), nullptr, 10));
    if (pid <= 0) continue;
    if (const auto stat = io::ReadProcessStat(pid)) parents[pid] = stat->parent;
  }
  return parents;
}

}  // namespace

absl::StatusOr<Child> Spawn(const channel::ShimLaunch::Process& process,
                            const std::string& log_path) {
  io::UniqueFd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!log.valid()) return ErrnoStatus("cannot open " + log_path, errno);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  io::UniqueFd read_end(ends[0]);
  Child child;
  child.command_pipe = io::UniqueFd(ends[1]);
  // A rank that does not read must not block the shim.
  fcntl(ends[1], F_SETFL, O_NONBLOCK);

  std::vector<std::string> argv = process.argv;
  std::vector<std::string> env = Environment(process.env);
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> env_pointers = Pointers(env);
  const pid_t shim = getpid();
  child.pid = fork();
  if (child.pid < 0) return ErrnoStatus("cannot start " + process.name, errno);
  if (child.pid == 0) {
    RunChild(shim, ends[0], log.get(), const_cast<char**>(argv_pointers.data()),
             const_cast<char**>(env_pointers.data()));
  }
  setpgid(child.pid, child.pid);  // parent and child both do: signals must find the group
  return child;
}

std::vector<pid_t> Descendants() {
  const std::map<pid_t, pid_t> parents = ProcessTable();
  std::vector<pid_t> result;
  for (const auto& [pid, parent] : parents) {
    pid_t ancestor = parent;
    // The table is not a consistent snapshot: the depth is bounded in case reused pids form a
    // cycle.
    for (size_t depth = 0; ancestor > 1 && ancestor != getpid() && depth < parents.size();
         ++depth) {
      const auto next = parents.find(ancestor);
      ancestor = next == parents.end() ? 0 : next->second;
    }
    if (ancestor == getpid()) result.push_back(pid);
  }
  return result;
}

}  // namespace sft::shim
