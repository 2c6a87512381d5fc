#include "worker/rank/command_input.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace sft::rank {
namespace {

// A command is short; more without an end of line is noise.
constexpr size_t kMaxLine = 64 * 1024;

bool IsChannel(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
}

}  // namespace

CommandInput::CommandInput(int fd) : fd_(fd), open_(IsChannel(fd)) {}

void CommandInput::Poll() {
  while (open_) {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 0) <= 0) return;
    char buffer[4096];
    const ssize_t got = read(fd_, buffer, sizeof buffer);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
      open_ = false;
      if (stop_reason_.empty()) stop_reason_ = "the shim of this attempt has ended";
      return;
    }
    pending_.append(buffer, static_cast<size_t>(got));
    for (size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      Handle(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
    if (pending_.size() > kMaxLine) pending_.clear();
  }
}

void CommandInput::Handle(const std::string& line) {
  const auto command = channel::ParseCommand(line);
  if (!command.ok()) {
    fmt::print(stderr, "a line on the standard input is no command: {}\n",
               Message(command.status()));
    return;
  }
  if (command->command == "stop") {
    stop_reason_ = command->reason.empty() ? "stop requested" : command->reason;
  } else if (command->command == "checkpoint") {
    checkpoint_ = true;
  } else if (command->command == "profile") {
    profile_ = *command;
  } else {
    fmt::print(stderr, "unknown command \"{}\" was skipped\n", command->command);
  }
}

}  // namespace sft::rank
