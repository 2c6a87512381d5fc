#include "worker/grading/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "common/base/clock.h"
#include "common/base/plain_text.h"
#include "common/io/file.h"
#include "worker/grading/confine.h"

namespace sft::grading {
namespace {

using std::chrono::milliseconds;

constexpr int kNotStarted = 127;
constexpr int kNobody = 65534;
constexpr int kFolderFiles = 100'000;
constexpr size_t kErrorBytes = 4096;
constexpr milliseconds kLook{50}, kReapPatience{2000};
// What programs and interpreters need of the system. Single entries of /etc alone: tokens and
// passwords of other services lie there.
constexpr const char* kSystemPaths[] = {"/usr",
                                        "/bin",
                                        "/lib",
                                        "/lib64",
                                        "/opt",
                                        "/etc/ld.so.cache",
                                        "/etc/ld.so.conf",
                                        "/etc/ld.so.conf.d",
                                        "/etc/alternatives",
                                        "/etc/passwd",
                                        "/etc/group",
                                        "/etc/nsswitch.conf",
                                        "/etc/localtime",
                                        "/etc/ssl/certs"};
// Beginnings of names in /etc where interpreters keep what they start with.
constexpr std::string_view kInterpreters[] = {"python3", "perl", "java-"};

// How far a child came that starts no program: each says what the kernel did not do.
enum class Step { kBegin, kUser, kMount, kLimits, kFiles, kCalls, kProgram };

const char* WhatFailed(Step step) {
  switch (step) {
    case Step::kBegin:
      return "cannot be prepared";
    case Step::kUser:
      return "gets no user of its own namespace";
    case Step::kMount:
      return "gets no file systems of its own, read-only but for its folder";
    case Step::kLimits:
      return "gets no limits of memory and processes";
    case Step::kFiles:
      return "cannot be kept to its own files (Landlock)";
    case Step::kCalls:
      return "cannot be kept from sockets (seccomp)";
    case Step::kProgram:
      return "cannot be started";
  }
  return "";
}

struct Failure {
  Step step = Step::kBegin;
  int error = 0;
};

// What the child needs between clone and exec, all made before: there is no heap then.
struct ChildPlan {
  char** argv = nullptr;
  char** env = nullptr;
  Sight sight;
  Limits limits;
  int input = -1, output = -1, error = -1;
  int failure = -1;  // receives a Failure; closed by exec
};

[[noreturn]] void Fail(const ChildPlan& plan, Step step) {
  const Failure failure{step, errno};
  [[maybe_unused]] const ssize_t told = write(plan.failure, &failure, sizeof(failure));
  _exit(kNotStarted);
}

// Closes all files from `first` on, but one.
void CloseFrom(int first, int but) {
  const auto from = static_cast<unsigned>(first);
  if (but > first) syscall(__NR_close_range, from, static_cast<unsigned>(but - 1), 0u);
  syscall(__NR_close_range, but < first ? from : static_cast<unsigned>(but + 1), ~0u, 0u);
}

[[noreturn]] void RunChildPlan(const ChildPlan& plan) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (dup2(plan.input, STDIN_FILENO) < 0 || dup2(plan.output, STDOUT_FILENO) < 0 ||
      dup2(plan.error, STDERR_FILENO) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      !OfferToOomKiller()) {
    Fail(plan, Step::kBegin);
  }
  if (!TakeUser(plan.sight)) Fail(plan, Step::kUser);
  if (!MountFolder(plan.sight)) Fail(plan, Step::kMount);
  if (!LimitResources(plan.limits)) Fail(plan, Step::kLimits);
  if (!RestrictFiles(plan.sight)) Fail(plan, Step::kFiles);
  if (!RestrictCalls()) Fail(plan, Step::kCalls);
  umask(077);
  CloseFrom(STDERR_FILENO + 1, plan.failure);
  sigset_t all_signals;
  sigemptyset(&all_signals);
  sigprocmask(SIG_SETMASK, &all_signals, nullptr);
  execve(plan.argv[0], plan.argv, plan.env);
  Fail(plan, Step::kProgram);
}

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// A file without a name, read from its beginning.
absl::StatusOr<io::UniqueFd> FileWith(std::string_view input) {
  io::UniqueFd fd(memfd_create("input", MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("cannot make a file for a program's input", errno);
  for (size_t written = 0; written < input.size();) {
    const ssize_t got = write(fd.get(), input.data() + written, input.size() - written);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("cannot write a program's input", errno);
    written += static_cast<size_t>(got);
  }
  lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

struct Ends {
  io::UniqueFd read, write;
};

absl::StatusOr<Ends> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("cannot make a pipe", errno);
  return Ends{io::UniqueFd(ends[0]), io::UniqueFd(ends[1])};
}

// Reads what is there; false at the end of the file.
bool ReadSome(int fd, size_t most, std::string& text) {
  char buffer[16384];
  const ssize_t got = read(fd, buffer, sizeof(buffer));
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (got == 0) return false;
  text.append(buffer, std::min<size_t>(static_cast<size_t>(got),
                                       most + 1 - std::min(most + 1, text.size())));
  return true;
}

// A process of this program's, and what it writes.
struct Watched {
  pid_t pid = 0;
  io::UniqueFd output, error;
  std::string output_text, error_text;
};

void Kill(const Watched& child) {
  kill(-child.pid, SIGKILL);
  kill(child.pid, SIGKILL);
}

// Waits for its end; false when it does not come, or `stop` does.
bool Reap(const Watched& child, MonoTime deadline, const std::atomic<bool>& stop, int& status) {
  while (waitpid(child.pid, &status, WNOHANG) == 0) {
    if (stop || Clock::Real().Mono() >= deadline) return false;
    Clock::Real().Sleep(milliseconds(2));
  }
  return true;
}

// Why it has to be killed; empty: it has closed what it writes to.
std::string Watch(Watched& child, const Confinement& confinement, MonoTime deadline,
                  const std::atomic<bool>& stop) {
  bool output = true, error = true;
  while (output || error) {
    if (stop) return "stopped";
    const MonoTime now = Clock::Real().Mono();
    if (now >= deadline) {
      return fmt::format("took longer than {:.3g} s",
                         static_cast<double>(confinement.deadline.count()) / 1e3);
    }
    pollfd entries[2] = {{output ? child.output.get() : -1, POLLIN, 0},
                         {error ? child.error.get() : -1, POLLIN, 0}};
    const auto left = std::min(kLook, std::chrono::ceil<milliseconds>(deadline - now));
    if (poll(entries, 2, static_cast<int>(left.count())) <= 0) continue;
    if (entries[0].revents != 0) {
      output = ReadSome(child.output.get(), confinement.output_bytes, child.output_text);
    }
    if (entries[1].revents != 0) error = ReadSome(child.error.get(), kErrorBytes, child.error_text);
    if (child.output_text.size() > confinement.output_bytes) {
      return fmt::format("wrote more than {} bytes", confinement.output_bytes);
    }
  }
  return "";
}

std::string LastLine(const std::string& text) {
  // That of an exception of Python's says what it was.
  std::string_view rest = text;
  while (rest.ends_with('\n')) rest.remove_suffix(1);
  const size_t line = rest.rfind('\n');
  if (line != rest.npos) rest.remove_prefix(line + 1);
  return rest.empty() ? "" : ": " + Plain(std::string(rest), 300);
}

absl::Status Ended(const Watched& child, int status) {
  if (WIFSIGNALED(status)) {
    return InvalidArgument(fmt::format("was ended by signal {} ({}){}", WTERMSIG(status),
                                       strsignal(WTERMSIG(status)), LastLine(child.error_text)));
  }
  if (WEXITSTATUS(status) != 0) {
    return InvalidArgument(
        fmt::format("ended with exit code {}{}", WEXITSTATUS(status), LastLine(child.error_text)));
  }
  return absl::OkStatus();
}

rlimit Both(int64_t value) {
  const auto limit = static_cast<rlim_t>(value);
  return {limit, limit};
}

// A copy of this process that runs the plan, the first process of its namespaces.
pid_t CloneInto(const ChildPlan& plan) {
  // This process's signal handlers must not run in the child.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // As fork does, into new namespaces.
  const auto pid =
      static_cast<pid_t>(syscall(SYS_clone, kNamespaces | SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (pid == 0) RunChildPlan(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

std::vector<std::string> ReadablePaths(const std::vector<std::string>& roots) {
  std::vector<std::string> paths(std::begin(kSystemPaths), std::end(kSystemPaths));
  for (const std::string& name : io::ListDir("/etc").value_or(std::vector<std::string>())) {
    const auto begins = [&](std::string_view with) { return name.starts_with(with); };
    if (std::any_of(std::begin(kInterpreters), std::end(kInterpreters), begins)) {
      paths.push_back("/etc/" + name);
    }
  }
  paths.insert(paths.end(), roots.begin(), roots.end());
  return paths;
}

}  // namespace

absl::Status CheckConfinement() {
  if (LandlockVersion() < 1) {
    return FailedPrecondition(
        "the kernel has no Landlock, which keeps programs to their own files (Linux 5.13, "
        "\"landlock\" among the security modules)");
  }
  Confinement confinement;
  confinement.folder = "/tmp";
  const std::atomic<bool> goes_on = false;
  const absl::Status ran = RunConfined({"/bin/sh", "-c", ":"}, "", confinement, goes_on).status();
  return ran.ok() ? ran : FailedPrecondition(fmt::format("/bin/sh {}", Message(ran)));
}

absl::StatusOr<std::string> RunConfined(const std::vector<std::string>& argv,
                                        std::string_view input, const Confinement& confinement,
                                        const std::atomic<bool>& stop) {
  std::vector<std::string> arguments = argv;
  std::vector<std::string> env = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8",
                                  "HOME=" + confinement.folder, "TMPDIR=" + confinement.folder};
  std::vector<char*> argument_pointers = PointersTo(arguments), env_pointers = PointersTo(env);
  const std::vector<std::string> readable = ReadablePaths(confinement.roots);
  std::vector<const char*> readable_pointers;
  for (const std::string& path : readable) readable_pointers.push_back(path.c_str());
  const std::string user_map = fmt::format("{} {} 1", kNobody, geteuid()),
                    group_map = fmt::format("{} {} 1", kNobody, getegid()),
                    folder_options = fmt::format("size={},nr_inodes={},mode=0700",
                                                 confinement.folder_bytes, kFolderFiles);
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd input_file, FileWith(input));
  SFT_ASSIGN_OR_RETURN(Ends output, MakePipe());
  SFT_ASSIGN_OR_RETURN(Ends error, MakePipe());
  SFT_ASSIGN_OR_RETURN(Ends failure, MakePipe());
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(confinement.deadline).count() + 1;
  const ChildPlan plan{.argv = argument_pointers.data(),
                       .env = env_pointers.data(),
                       .sight = {.folder = confinement.folder.c_str(),
                                 .folder_options = folder_options.c_str(),
                                 .readable = readable_pointers.data(),
                                 .readable_count = readable_pointers.size(),
                                 .user_map = user_map.c_str(),
                                 .group_map = group_map.c_str()},
                       .limits = {.memory = Both(confinement.memory_bytes),
                                  .processes = Both(confinement.processes),
                                  .file = Both(confinement.file_bytes),
                                  .cpu = Both(seconds)},
                       .input = input_file.get(),
                       .output = output.write.get(),
                       .error = error.write.get(),
                       .failure = failure.write.get()};
  const MonoTime deadline = Clock::Real().Mono() + confinement.deadline;
  Watched child{.pid = CloneInto(plan)};
  if (child.pid < 0) {
    return ErrnoStatus("cannot be started in namespaces of its own (of users above all)", errno);
  }
  for (Ends* ends : {&output, &error, &failure}) ends->write = io::UniqueFd();
  child.output = std::move(output.read);
  child.error = std::move(error.read);
  Failure not_started;
  ssize_t got = 0;
  do got = read(failure.read.get(), &not_started, sizeof(not_started));
  while (got < 0 && errno == EINTR);
  const std::string why =
      got == sizeof(not_started) ? "" : Watch(child, confinement, deadline, stop);
  // What it has started and left behind goes with it: the first process of its namespace.
  if (!why.empty()) Kill(child);
  int status = 0;
  const std::atomic<bool> goes_on = false;
  const MonoTime last = why.empty() ? deadline : Clock::Real().Mono() + kReapPatience;
  const bool reaped = Reap(child, last, why.empty() ? stop : goes_on, status);
  if (!reaped) {
    Kill(child);
    (void)Reap(child, Clock::Real().Mono() + kReapPatience, goes_on, status);
  }
  if (got == sizeof(not_started)) {
    return ErrnoStatus(WhatFailed(not_started.step), not_started.error);
  }
  if (stop) return absl::AbortedError("stopped");
  if (!why.empty()) return InvalidArgument(why);
  if (!reaped) {
    return InvalidArgument(fmt::format("took longer than {:.3g} s",
                                       static_cast<double>(confinement.deadline.count()) / 1e3));
  }
  SFT_RETURN_IF_ERROR(Ended(child, status));
  return std::move(child.output_text);
}

}  // namespace sft::grading
