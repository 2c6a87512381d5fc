#include "worker/transfer/asker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "common/base/ids.h"
#include "common/io/file.h"

namespace sft::worker {
namespace {

// The process says something every few seconds, if only that it is there.
constexpr int kPatienceMs = 60'000;
constexpr size_t kMaxLineBytes = 1 << 20;

// A connection to the process of an attempt.
class Connection {
 public:
  absl::Status Open(const std::string& path, const std::optional<RankUser>& rank_user) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) return InvalidArgument("socket path too long");
    memcpy(address.sun_path, path.data(), path.size());
    fd_ = io::UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd_.valid()) return ErrnoStatus("cannot make a socket", errno);
    const RankRights rights(rank_user);
    if (connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return Unavailable("its model is not loaded yet");
    }
    return absl::OkStatus();
  }

  absl::Status Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return Unavailable("its process takes no question");
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return absl::OkStatus();
  }

  // With its newline; empty at the end.
  absl::StatusOr<std::string> Line() {
    size_t end = 0;
    while ((end = read_.find('\n')) == std::string::npos) {
      if (read_.size() > kMaxLineBytes) return Internal("its process sends lines without an end");
      pollfd entry{fd_.get(), POLLIN, 0};
      if (poll(&entry, 1, kPatienceMs) <= 0) return Unavailable("its process says nothing");
      char buffer[65536];
      const ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (got <= 0) return std::string();
      read_.append(buffer, static_cast<size_t>(got));
    }
    std::string line = read_.substr(0, end + 1);
    read_.erase(0, end + 1);
    return line;
  }

 private:
  io::UniqueFd fd_;
  std::string read_;
};

// An id is a part of a path.
bool IsAttempt(const std::string& uid) {
  const std::vector<std::string> ids = IdsInPath("attempt", uid);
  return ids.size() == 1 && ids[0] == uid;
}

}  // namespace

void Asker::Ask(const v1::Ask& ask) {
  // One more may say that there are too many.
  threads_.Start(kMostAtOnce,
                 [this, ask](size_t others) { Answer(ask, /*refused=*/others >= kMostAtOnce); });
}

void Asker::Answer(const v1::Ask& ask, bool refused) {
  Connection connection;
  absl::Status ready = absl::OkStatus();
  if (refused) ready = ResourceExhausted("it answers as many questions as it can: try again later");
  if (ready.ok() && !IsAttempt(ask.attempt_uid())) ready = InvalidArgument("no attempt");
  if (ready.ok()) {
    ready = connection.Open(setup_.ServeSocket(ask.attempt_uid()), setup_.rank_user);
  }
  if (ready.ok()) ready = connection.Send(ask.question() + "\n");
  (void)server_.SendLines(ask.request(), [&]() -> absl::StatusOr<std::string> {
    if (!ready.ok()) return ready;
    return connection.Line();
  });
}

}  // namespace sft::worker
