#include "worker/base/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>

#include "common/base/clock.h"
#include "common/io/file.h"
#include "worker/base/child_environment.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;

// Exit code of a child that could not execute its program; not shown.
constexpr int kNotStarted = 127;
constexpr size_t kMaxOutputBytes = 1 << 20;
// How long to wait for a closed or killed child to end.
constexpr milliseconds kReapPatience{1000};

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Data for the child between fork and exec, all prepared before the fork.
struct Start {
  char** argv;
  char** env;
  int output;
  int failure;  // receives the errno of a failure; closed by exec
  const std::optional<RankUser>& user;
};

[[noreturn]] void RunProgram(const Start& start) {
  setpgid(0, 0);
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(input, STDIN_FILENO);
  dup2(start.output, STDOUT_FILENO);
  dup2(start.output, STDERR_FILENO);
  if (start.user) {
    // Root pins memory without limit, and RDMA needs that. If the limit cannot be raised it stays.
    const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &unlimited);
  }
  int error = start.user ? BecomeRankUser(*start.user) : 0;
  if (error == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvpe(start.argv[0], start.argv, start.env);
    error = errno;
  }
  [[maybe_unused]] const ssize_t told = write(start.failure, &error, sizeof(error));
  _exit(kNotStarted);
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv,
                            const std::vector<std::string>& added_env, int output,
                            const std::optional<RankUser>& user) {
  std::vector<std::string> arguments = argv;
  std::vector<std::string> added = added_env;
  if (user) std::ranges::copy(user->Environment(), std::back_inserter(added));
  std::vector<std::string> env = ChildEnvironment(added);
  const std::string what =
      user ? fmt::format("cannot run {} as user {}", argv[0], user->name) : "cannot run " + argv[0];
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  const io::UniqueFd read_end(ends[0]);
  io::UniqueFd write_end(ends[1]);
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> env_pointers = Pointers(env);
  // This process's signal handlers must not run in the child.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    RunProgram({argument_pointers.data(), env_pointers.data(), output, write_end.get(), user});
  }
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return ErrnoStatus(what, fork_error);
  write_end = io::UniqueFd();
  int error = 0;
  ssize_t got = 0;
  do got = read(read_end.get(), &error, sizeof(error));
  while (got < 0 && errno == EINTR);
  if (got != sizeof(error)) return pid;
  waitpid(pid, nullptr, 0);
  return ErrnoStatus(what, error);
}

// Reads to the end of file; false when the deadline passed first.
bool ReadOutput(int fd, MonoTime deadline, std::string& output) {
  char buffer[65536];
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::Real().Mono());
    if (left.count() <= 0) return false;
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    output.append(buffer,
                  std::min<size_t>(static_cast<size_t>(got), kMaxOutputBytes - output.size()));
  }
}

bool Reap(pid_t pid, MonoTime deadline, int& status) {
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::Real().Mono() >= deadline) return false;
    Clock::Real().Sleep(milliseconds(2));
  }
  return true;
}

}  // namespace

absl::StatusOr<ChildResult> RunChild(const std::vector<std::string>& argv,
                                     const std::vector<std::string>& added_env,
                                     milliseconds deadline, const std::optional<RankUser>& user) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  const io::UniqueFd read_end(ends[0]);
  io::UniqueFd write_end(ends[1]);
  const MonoTime end = Clock::Real().Mono() + deadline;
  SFT_ASSIGN_OR_RETURN(const pid_t pid, Spawn(argv, added_env, write_end.get(), user));
  write_end = io::UniqueFd();
  ChildResult result;
  int status = 0;
  if (ReadOutput(read_end.get(), end, result.output) && Reap(pid, end, status)) {
    if (WIFSIGNALED(status)) {
      result.signal = WTERMSIG(status);
    } else {
      result.exit_code = WEXITSTATUS(status);
    }
    return result;
  }
  kill(-pid, SIGKILL);
  Reap(pid, Clock::Real().Mono() + kReapPatience, status);
  return DeadlineExceeded(fmt::format("{} did not end within {} ms", argv[0], deadline.count()));
}

}  // namespace sft::worker
