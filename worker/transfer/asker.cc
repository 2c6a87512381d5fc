#include "worker/transfer/asker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "common/base/ids.h"
#include "common/io/file.h"
#include "worker/base/serve_sockets.h"

namespace sft::worker {
namespace {

// The process says something every few seconds, if only that it is there.
constexpr int kPatienceMs = 60'000;
constexpr size_t kMaxLineBytes = 1 << 20;

// An id is a part of a path.
bool IsAttempt(const std::string& uid) {
  const std::vector<std::string> ids = IdsInPath("attempt", uid);
  return ids.size() == 1 && ids[0] == uid;
}

}  // namespace

// A connection to a process of an attempt.
class Asker::Connection {
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
    path_ = path;
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

  // Empty: none is open.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  io::UniqueFd fd_;
  std::string read_;
};

void Asker::Ask(const v1::Ask& ask) {
  // One more may say that there are too many.
  threads_.Start(kMostAtOnce,
                 [this, ask](size_t others) { Answer(ask, /*refused=*/others >= kMostAtOnce); });
}

std::string Asker::TakeLeast(std::vector<std::string>& sockets) {
  const MutexLock lock(mutex_);
  auto least = sockets.begin();
  for (auto each = sockets.begin(); each != sockets.end(); ++each) {
    if (asked_[*each] < asked_[*least]) least = each;
  }
  std::string socket = *least;
  sockets.erase(least);
  ++asked_[socket];
  return socket;
}

absl::Status Asker::Open(const std::string& attempt_uid, Connection& connection) {
  std::vector<std::string> sockets = ServeSocketsThere(setup_, attempt_uid);
  absl::Status opened = Unavailable("its model is not loaded yet");
  while (!opened.ok() && !sockets.empty()) {
    const std::string path = TakeLeast(sockets);
    opened = connection.Open(path, setup_.rank_user);
    if (!opened.ok()) Close(path);
  }
  return opened;
}

void Asker::Close(const std::string& socket) {
  const MutexLock lock(mutex_);
  if (const auto found = asked_.find(socket); found != asked_.end()) --found->second;
  std::erase_if(asked_, [](const auto& each) { return each.second == 0; });
}

void Asker::Answer(const v1::Ask& ask, bool refused) {
  Connection connection;
  absl::Status ready = absl::OkStatus();
  if (refused) ready = ResourceExhausted("it answers as many questions as it can: try again later");
  if (ready.ok() && !IsAttempt(ask.attempt_uid())) ready = InvalidArgument("no attempt");
  if (ready.ok()) ready = Open(ask.attempt_uid(), connection);
  if (ready.ok()) ready = connection.Send(ask.question() + "\n");
  bool heard = false;
  (void)server_.SendLines(ask.request(), [&]() -> absl::StatusOr<std::string> {
    if (!ready.ok()) return ready;
    SFT_ASSIGN_OR_RETURN(std::string line, connection.Line());
    // The server learns from the first line whose end this is.
    if (line.empty() && !heard) return Unavailable("the job's process ended before its answer");
    heard = true;
    return line;
  });
  Close(connection.path());
}

}  // namespace sft::worker
