#include "worker/daemon/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "common/base/clock.h"
#include "common/io/file.h"
#include "worker/daemon/child_environment.h"

namespace sft::worker {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxOutputBytes = 1 << 20;
// How long the end of a closed or killed child is waited for.
constexpr milliseconds kReapPatience{1000};

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv,
                            const std::vector<std::string>& added_env, int output) {
  std::vector<std::string> arguments = argv;
  std::vector<std::string> env = ChildEnvironment(added_env);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0].c_str(), &actions, &attributes,
                                 Pointers(arguments).data(), Pointers(env).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus("cannot run " + argv[0], error);
  return pid;
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
                                     milliseconds deadline) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  const io::UniqueFd read_end(ends[0]);
  io::UniqueFd write_end(ends[1]);
  const MonoTime end = Clock::Real().Mono() + deadline;
  SFT_ASSIGN_OR_RETURN(const pid_t pid, Spawn(argv, added_env, write_end.get()));
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
