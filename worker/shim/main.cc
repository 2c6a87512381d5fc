// sft-shim: parent of one attempt's processes on a node. It outlives the worker daemon, which talks
// to it over a Unix socket and finds it again by that socket. See worker/channel/launch.h.

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>

#include "common/base/version.h"
#include "common/io/file.h"
#include "worker/channel/claim.h"
#include "worker/shim/control_socket.h"
#include "worker/shim/supervisor.h"

namespace sft::shim {
namespace {

constexpr char kUsage[] = "usage: sft-shim --launch FILE | --version | --help";
constexpr char kHelp[] =
    "sft-shim: parent of the processes of one attempt on a node; sft-worker starts it.\n"
    "usage: sft-shim --launch FILE | --version | --help\n"
    "  --launch FILE   runs the attempt that FILE (shim.json) describes and goes to the "
    "background\n"
    "  --version       prints the version\n"
    "  --help          prints this";

// Marks the message of a daemon that found another one running.
constexpr char kAlreadyRuns = '=';

int Fail(const absl::Status& status, int code) {
  fprintf(stderr, "sft-shim: %s\n", std::string(Message(status)).c_str());
  return code;
}

// A signal that the worker ignores is left so, for ranks too: it tells the worker that its node
// goes back, and the worker sees to the rest.
bool IsIgnored(int number) {
  struct sigaction now {};
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

absl::StatusOr<io::UniqueFd> BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) {
    if (!IsIgnored(number)) sigaddset(&signals, number);
  }
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  io::UniqueFd fd(signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("cannot make a signalfd", errno);
  return fd;
}

void ReadSignals(int fd, Supervisor& supervisor) {
  signalfd_siginfo info;
  while (read(fd, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
      supervisor.Stop("signal", "a signal told the shim and its ranks to end");
    }
  }
  supervisor.Reap();
}

// Runs the attempt to its end. `ready` receives one byte when the socket answers and the first
// process was started.
absl::Status RunAttempt(const channel::ShimLaunch& launch, io::UniqueFd ready) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd lock,
                       channel::ClaimAttempt(launch.attempt_dir, launch.attempt_uid));
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd signals, BlockSignals());
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return ErrnoStatus("cannot become a subreaper", errno);
  ControlSocket control;
  SFT_RETURN_IF_ERROR(control.Listen(launch.socket_path));
  Supervisor supervisor(launch, Clock::Real());
  supervisor.Start();
  // The starter may have given up meanwhile; the attempt goes on all the same.
  (void)io::WriteAll(ready.get(), "+", "ready pipe");
  ready = io::UniqueFd();
  while (!supervisor.Finished()) {
    std::vector<pollfd> fds{{signals.get(), POLLIN, 0}};
    control.AddTo(fds);
    poll(fds.data(), fds.size(), static_cast<int>(supervisor.NextWake().count()));
    ReadSignals(signals.get(), supervisor);
    control.Serve(fds, [&](const channel::Command& command) { return supervisor.Handle(command); });
    supervisor.Tick();
  }
  return absl::OkStatus();
}

// Runs in the daemon: starts a session of its own, closes the starter's files, and redirects
// messages to <attempt>/shim.log.
absl::Status Detach(const channel::ShimLaunch& launch) {
  const std::string path = launch.attempt_dir + "/shim.log";
  io::UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!log.valid()) return ErrnoStatus("cannot open " + path, errno);
  const io::UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  dup2(null.get(), STDIN_FILENO);
  dup2(log.get(), STDOUT_FILENO);
  dup2(log.get(), STDERR_FILENO);
  return absl::OkStatus();
}

// Starts the daemon and waits until it is ready; reports what it could not do.
int Daemonise(const channel::ShimLaunch& launch) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Fail(ErrnoStatus("pipe", errno), channel::kExitInfrastructure);
  io::UniqueFd read_end(ends[0]);
  io::UniqueFd write_end(ends[1]);
  const pid_t first = fork();
  if (first < 0) return Fail(ErrnoStatus("fork", errno), channel::kExitInfrastructure);
  if (first == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    read_end = io::UniqueFd();
    const int report = fcntl(write_end.get(), F_DUPFD_CLOEXEC, 3);
    absl::Status status = Detach(launch);
    if (status.ok()) status = RunAttempt(launch, std::move(write_end));
    if (status.ok()) return channel::kExitOk;
    // The starter reads it only while it waits; shim.log has the message in any case.
    const std::string mark(absl::IsAlreadyExists(status) ? 1 : 0, kAlreadyRuns);
    dprintf(report, "%s%s", mark.c_str(), std::string(Message(status)).c_str());
    return Fail(status, channel::kExitInfrastructure);
  }
  write_end = io::UniqueFd();
  waitpid(first, nullptr, 0);
  std::string text(4096, '\0');
  size_t size = 0;
  ssize_t got = 0;
  while (size < text.size() && (got = read(ends[0], text.data() + size, text.size() - size)) > 0) {
    size += static_cast<size_t>(got);
    if (text[0] == '+') return channel::kExitOk;
  }
  text.resize(size);
  if (text.starts_with(kAlreadyRuns)) {
    return Fail(AlreadyExists(text.substr(1)), channel::kExitAlreadyRuns);
  }
  return Fail(Unavailable(text.empty() ? "the daemon died before it was ready" : text),
              channel::kExitInfrastructure);
}

int Main(int argc, char** argv) {
  std::string path;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--version") {
      printf("sft-shim %s\n", kVersion);
      return channel::kExitOk;
    }
    if (arg == "--help" || arg == "-h") {
      printf("%s\n", kHelp);
      return channel::kExitOk;
    }
    if (arg == "--launch" && i + 1 < argc) {
      path = argv[++i];
    } else {
      return Fail(InvalidArgument("unknown argument " + arg + "; " + kUsage), channel::kExitUsage);
    }
  }
  if (path.empty()) return Fail(InvalidArgument("--launch FILE is missing"), channel::kExitUsage);
  close_range(3, ~0U, 0);  // files that the worker daemon had open are not ours
  const absl::StatusOr<std::string> text = io::ReadFile(path);
  if (!text.ok()) return Fail(text.status(), channel::kExitUsage);
  const absl::StatusOr<channel::ShimLaunch> launch = channel::ParseShimLaunch(*text);
  if (!launch.ok()) return Fail(Annotate(launch.status(), path), channel::kExitUsage);
  if (chdir(launch->attempt_dir.c_str()) != 0) {
    return Fail(ErrnoStatus("cannot enter " + launch->attempt_dir, errno), channel::kExitUsage);
  }
  return Daemonise(*launch);
}

}  // namespace
}  // namespace sft::shim

int main(int argc, char** argv) { return sft::shim::Main(argc, argv); }
