#include "worker/attempt/shim_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "common/base/clock.h"
#include "common/io/file.h"
#include "common/io/proc.h"
#include "worker/base/child_process.h"

namespace sft::worker {
namespace {

// The shim answers within its event loop's turn.
constexpr std::chrono::milliseconds kAnswerTimeout{2000};
constexpr size_t kMaxAnswerBytes = 1 << 20;

}  // namespace

absl::Status ShimProcesses::Start(const std::string& shim_json) {
  const absl::StatusOr<ChildResult> result =
      RunChild({shim_binary_, "--launch", shim_json}, {}, start_deadline_, rank_user_);
  // What waits for the daemon was ended, by its deadline or by somebody. The daemon was not: with a
  // slow disk it starts ranks later.
  if (absl::IsDeadlineExceeded(result.status()))
    return absl::UnknownError(result.status().message());
  SFT_RETURN_IF_ERROR(result.status());
  if (result->ok()) return absl::OkStatus();
  const std::string text = fmt::format("{} ended with exit code {}, signal {}: {}", shim_binary_,
                                       result->exit_code, result->signal, result->output);
  if (result->signal != 0) return absl::UnknownError(text);
  if (result->exit_code == channel::kExitAlreadyRuns) return AlreadyExists(result->output);
  return Unavailable(text);
}

absl::StatusOr<channel::Answer> ShimProcesses::Ask(const std::string& socket_path,
                                                   const channel::Command& command) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path))
    return InvalidArgument("socket path too long");
  memcpy(address.sun_path, socket_path.data(), socket_path.size());
  const io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus("cannot make a socket", errno);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return Unavailable(fmt::format("no shim at {}: {}", socket_path, strerror(errno)));
  }
  const std::string line = ToLine(command);
  if (send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) {
    return Unavailable("the shim takes no commands at " + socket_path);
  }
  // Of the whole answer: ranks may have put a program of theirs behind the socket.
  const MonoTime end = Clock::Real().Mono() + kAnswerTimeout;
  std::string answer;
  while (answer.find('\n') == std::string::npos && answer.size() < kMaxAnswerBytes) {
    pollfd entry{fd.get(), POLLIN, 0};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - Clock::Real().Mono()).count();
    if (left <= 0 || poll(&entry, 1, static_cast<int>(left)) <= 0)
      return Unavailable("the shim does not answer at " + socket_path);
    char buffer[4096];
    const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return Unavailable("the shim closed the connection at " + socket_path);
    answer.append(buffer, static_cast<size_t>(got));
  }
  return channel::ParseAnswer(std::string_view(answer).substr(0, answer.find('\n')));
}

bool ShimProcesses::Alive(const channel::ShimStatus& status) {
  const auto stat = io::ReadProcessStat(status.shim_pid);
  return stat && stat->state != 'Z' && stat->state != 'X' &&
         stat->start_ticks == status.shim_start_ticks;
}

}  // namespace sft::worker
