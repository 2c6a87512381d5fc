#include "worker/grading/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

namespace sft::grading {
namespace {

using std::chrono::milliseconds;

constexpr int kNotStarted = 127;
constexpr size_t kErrorBytes = 4096;
constexpr milliseconds kLook{50}, kReapPatience{2000};
constexpr int kNamespaces = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC;
// Rights of a later Landlock than the header may know.
constexpr uint64_t kTruncate = uint64_t{1} << 14;
constexpr int kTruncateSince = 3;
constexpr uint64_t kReads =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kWrites = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                             LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                             LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                             LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                             LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
// What programs and interpreters need of the system.
constexpr const char* kSystemFolders[] = {"/usr", "/bin", "/lib", "/lib64", "/etc", "/opt"};
constexpr const char* kSystemFiles[] = {"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"};

// The version of the kernel's Landlock; below 1: there is none.
int LandlockVersion() {
  return static_cast<int>(syscall(__NR_landlock_create_ruleset, nullptr, size_t{0},
                                  uint32_t{LANDLOCK_CREATE_RULESET_VERSION}));
}

// -1 with errno where there can be none.
int MakeRuleset(int version) {
  landlock_ruleset_attr rules{};
  rules.handled_access_fs = kReads | kWrites | (version >= kTruncateSince ? kTruncate : 0);
  return static_cast<int>(
      syscall(__NR_landlock_create_ruleset, &rules, sizeof(rules), uint32_t{0}));
}

// A path that is not there needs no rule.
bool Allow(int ruleset, const char* path, uint64_t rights) {
  const int fd = open(path, O_PATH | O_CLOEXEC);
  if (fd < 0) return true;
  landlock_path_beneath_attr rule{};
  rule.allowed_access = rights;
  rule.parent_fd = fd;
  const bool added =
      syscall(__NR_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
  close(fd);
  return added;
}

// What the child needs between fork and exec, all made before the fork: there is no heap then.
struct ChildPlan {
  char** argv = nullptr;
  char** env = nullptr;
  const char* folder = nullptr;
  const char* const* roots = nullptr;
  size_t root_count = 0;
  int input = -1, output = -1, error = -1;
  int failure = -1;  // receives where it failed and errno; closed by exec
  rlimit memory{}, processes{}, file{}, cpu{};
};

bool ConfineFiles(const ChildPlan& plan) {
  const int version = LandlockVersion();
  const int ruleset = MakeRuleset(version);
  if (ruleset < 0) return false;
  const uint64_t own = kReads | kWrites | (version >= kTruncateSince ? kTruncate : 0);
  bool added = true;
  for (const char* path : kSystemFolders) added = added && Allow(ruleset, path, kReads);
  for (const char* path : kSystemFiles) {
    added =
        added && Allow(ruleset, path, LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE);
  }
  for (size_t i = 0; i < plan.root_count; ++i) {
    added = added && Allow(ruleset, plan.roots[i], kReads);
  }
  added = added && Allow(ruleset, plan.folder, own);
  const bool done = added && syscall(__NR_landlock_restrict_self, ruleset, 0) == 0;
  close(ruleset);
  return done;
}

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64, kFirstForeign = 0x40000000;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64, kFirstForeign = UINT32_MAX;
#else
#error "which calls programs that grade may make is not known for this architecture"
#endif

// Landlock keeps nobody from the Unix sockets of other processes, by which shims and jobs that
// serve are asked: no socket can be made, nor a ring by which the kernel would make one.
bool ConfineSockets() {
  const auto load = [](size_t offset) {
    return sock_filter(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  };
  const auto refuse_if = [](uint16_t how, uint32_t value) {
    return sock_filter(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | BPF_K | how), value, 0, 1));
  };
  const sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES);
  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_filter kill = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  sock_filter filter[] = {
      load(offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      kill,
      load(offsetof(seccomp_data, nr)),
      refuse_if(BPF_JGE, kFirstForeign),
      refuse,
      refuse_if(BPF_JEQ, __NR_socket),
      refuse,
      refuse_if(BPF_JEQ, __NR_io_uring_setup),
      refuse,
      allow,
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

[[noreturn]] void Fail(const ChildPlan& plan) {
  const int error = errno;
  [[maybe_unused]] const ssize_t told = write(plan.failure, &error, sizeof(error));
  _exit(kNotStarted);
}

// Closes all files from `first` on, but one (-1: none).
void CloseFrom(int first, int but) {
  const auto from = static_cast<unsigned>(first);
  if (but > first) syscall(__NR_close_range, from, static_cast<unsigned>(but - 1), 0u);
  syscall(__NR_close_range, but < first ? from : static_cast<unsigned>(but + 1), ~0u, 0u);
}

// In a namespace of processes the program is their first: when it ends, all others are killed. This
// process waits for it, so that its group and its end are seen outside.
void EnterNamespaces(const ChildPlan& plan) {
  if (unshare(kNamespaces) != 0) Fail(plan);
  const pid_t first = fork();
  if (first < 0) Fail(plan);
  if (first == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return;
  }
  // Other threads' pipes too, whose ends would not come before this process's.
  CloseFrom(STDIN_FILENO, -1);
  int status = 0;
  while (waitpid(first, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    signal(WTERMSIG(status), SIG_DFL);
    kill(getpid(), WTERMSIG(status));
    _exit(128 + WTERMSIG(status));
  }
  _exit(WEXITSTATUS(status));
}

[[noreturn]] void RunChildPlan(const ChildPlan& plan) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (dup2(plan.input, STDIN_FILENO) < 0 || dup2(plan.output, STDOUT_FILENO) < 0 ||
      dup2(plan.error, STDERR_FILENO) < 0) {
    Fail(plan);
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) Fail(plan);
  EnterNamespaces(plan);
  if (chdir(plan.folder) != 0) Fail(plan);
  const rlimit none{0, 0}, files{64, 64};
  if (setrlimit(RLIMIT_CORE, &none) != 0 || setrlimit(RLIMIT_NOFILE, &files) != 0 ||
      setrlimit(RLIMIT_AS, &plan.memory) != 0 || setrlimit(RLIMIT_FSIZE, &plan.file) != 0 ||
      setrlimit(RLIMIT_CPU, &plan.cpu) != 0 || setrlimit(RLIMIT_NPROC, &plan.processes) != 0) {
    Fail(plan);
  }
  if (!ConfineFiles(plan) || !ConfineSockets()) Fail(plan);
  umask(077);
  CloseFrom(STDERR_FILENO + 1, plan.failure);
  sigset_t all_signals;
  sigemptyset(&all_signals);
  sigprocmask(SIG_SETMASK, &all_signals, nullptr);
  execve(plan.argv[0], plan.argv, plan.env);
  Fail(plan);
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

pid_t ForkInto(const ChildPlan& plan) {
  // This process's signal handlers must not run in the child.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) RunChildPlan(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

}  // namespace

absl::Status CheckConfinement() {
  if (LandlockVersion() < 1) {
    return FailedPrecondition(
        "the kernel has no Landlock, which keeps programs to their own files (Linux 5.13, "
        "\"landlock\" "
        "among the security modules)");
  }
  const pid_t pid = fork();
  if (pid == 0) _exit(unshare(kNamespaces) == 0 ? 0 : errno);
  int status = 1;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
    return FailedPrecondition("a child process could not be made");
  }
  if (WEXITSTATUS(status) == 0) return absl::OkStatus();
  return FailedPrecondition(
      fmt::format("namespaces of users cannot be made, which keep programs off the network: {}",
                  strerror(WEXITSTATUS(status))));
}

absl::StatusOr<std::string> RunConfined(const std::vector<std::string>& argv,
                                        std::string_view input, const Confinement& confinement,
                                        const std::atomic<bool>& stop) {
  std::vector<std::string> arguments = argv;
  std::vector<std::string> env = {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8",
                                  "HOME=" + confinement.folder, "TMPDIR=" + confinement.folder};
  std::vector<char*> argument_pointers = PointersTo(arguments), env_pointers = PointersTo(env);
  std::vector<const char*> roots;
  for (const std::string& root : confinement.roots) roots.push_back(root.c_str());
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd input_file, FileWith(input));
  SFT_ASSIGN_OR_RETURN(Ends output, MakePipe());
  SFT_ASSIGN_OR_RETURN(Ends error, MakePipe());
  SFT_ASSIGN_OR_RETURN(Ends failure, MakePipe());
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(confinement.deadline).count() + 1;
  const ChildPlan plan{.argv = argument_pointers.data(),
                       .env = env_pointers.data(),
                       .folder = confinement.folder.c_str(),
                       .roots = roots.data(),
                       .root_count = roots.size(),
                       .input = input_file.get(),
                       .output = output.write.get(),
                       .error = error.write.get(),
                       .failure = failure.write.get(),
                       .memory = Both(confinement.memory_bytes),
                       .processes = Both(confinement.processes),
                       .file = Both(confinement.file_bytes),
                       .cpu = Both(seconds)};
  const MonoTime deadline = Clock::Real().Mono() + confinement.deadline;
  Watched child{.pid = ForkInto(plan)};
  if (child.pid < 0) return ErrnoStatus("cannot start " + argv[0], errno);
  for (Ends* ends : {&output, &error, &failure}) ends->write = io::UniqueFd();
  child.output = std::move(output.read);
  child.error = std::move(error.read);
  int start_error = 0;
  ssize_t got = 0;
  do got = read(failure.read.get(), &start_error, sizeof(start_error));
  while (got < 0 && errno == EINTR);
  const std::string why =
      got == sizeof(start_error) ? "" : Watch(child, confinement, deadline, stop);
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
  if (got == sizeof(start_error)) return ErrnoStatus("cannot start " + argv[0], start_error);
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
