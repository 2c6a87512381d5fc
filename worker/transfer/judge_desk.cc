#include "worker/transfer/judge_desk.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/json.h"
#include "common/obs/log.h"

namespace sft::worker {
namespace {

constexpr int kLookMs = 200, kBacklog = 128;
constexpr size_t kMaxQuestionBytes = size_t{4} << 20;
constexpr int kQuestionMs = 10'000;  // a question comes at once
constexpr int kTakeMs = 10'000;      // and a rank takes its answer at once

absl::StatusOr<io::UniqueFd> ListenOn(const std::string& path,
                                      const std::optional<RankUser>& rank_user) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(path + " is too long for a socket");
  }
  memcpy(address.sun_path, path.data(), path.size());
  // Also made with the folders of an attempt's ranks, which may come later.
  SFT_RETURN_IF_ERROR(LetRanksWrite(path.substr(0, path.rfind('/')), rank_user));
  io::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The file is the ranks', who have to be able to connect.
  const RankRights rights(rank_user);
  unlink(path.c_str());
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoStatus("cannot listen on " + path, errno);
  }
  return fd;
}

// What the rank sent up to its newline; empty where that does not come.
std::string ReadLine(int fd, const std::atomic<bool>& stop) {
  std::string read;
  for (int waited = 0; !stop && waited < kQuestionMs && read.size() < kMaxQuestionBytes;) {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, kLookMs) <= 0) {
      waited += kLookMs;
      continue;
    }
    char buffer[65536];
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) return "";
    read.append(buffer, static_cast<size_t>(got));
    if (const size_t end = read.find('\n'); end != read.npos) return read.substr(0, end);
  }
  return "";
}

// Gives up where the rank takes nothing for kTakeMs.
void SendAnswer(int fd, std::string_view line, const std::atomic<bool>& stop) {
  for (int waited = 0; !line.empty() && !stop && waited < kTakeMs;) {
    const ssize_t sent = send(fd, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      line.remove_prefix(static_cast<size_t>(sent));
      waited = 0;
      continue;
    }
    if (sent == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return;
    pollfd entry{fd, POLLOUT, 0};
    if (poll(&entry, 1, kLookMs) <= 0) waited += kLookMs;
  }
}

std::string LineOf(const absl::StatusOr<v1::AskJudgeResponse>& response) {
  nlohmann::json line;
  if (!response.ok()) {
    const absl::Status& status = response.status();
    // The server is away or has too much to do: that is no answer of the judge.
    const bool busy = absl::IsResourceExhausted(status);
    const bool away = busy || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                      absl::IsAborted(status);
    line = {{"error", std::string(Message(status))}, {"away", away}, {"busy", busy}};
  } else if (!response->error().empty()) {
    line = {{"error", response->error()},
            {"again", response->again()},
            {"after", response->after_seconds()}};
  } else {
    line = {{"text", response->text()}};
  }
  return DumpJson(line) + "\n";
}

}  // namespace

JudgeDesk::JudgeDesk(const NodeSetup& setup, ServerApi& server, std::string uid, int64_t epoch)
    : setup_(setup), server_(server), uid_(std::move(uid)), epoch_(epoch), listener_([this] {
        obs::NameThread("judges");
        Listen();
      }) {}

JudgeDesk::~JudgeDesk() {
  stop_ = true;
  listener_.join();
  std::list<Running> running;
  {
    const MutexLock lock(mutex_);
    running.swap(running_);
  }
  for (Running& each : running) each.thread.join();
}

int JudgeDesk::Reap() {
  const MutexLock lock(mutex_);
  for (auto each = running_.begin(); each != running_.end();) {
    if (!each->done) {
      ++each;
      continue;
    }
    each->thread.join();
    each = running_.erase(each);
  }
  return static_cast<int>(running_.size());
}

void JudgeDesk::Listen() {
  const std::string path = setup_.JudgeSocket(uid_);
  const absl::StatusOr<io::UniqueFd> listener = ListenOn(path, setup_.rank_user);
  if (!listener.ok()) {
    spdlog::error("attempt {}: no judge can be asked: {}", uid_, Message(listener.status()));
    return;
  }
  while (!stop_) {
    pollfd entry{listener->get(), POLLIN, 0};
    const bool full = Reap() >= kMostAtOnce;
    if (poll(&entry, full ? 0 : 1, kLookMs) <= 0) continue;
    io::UniqueFd fd(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) Take(std::move(fd));
  }
  unlink(path.c_str());
}

void JudgeDesk::Take(io::UniqueFd fd) {
  const MutexLock lock(mutex_);
  Running& running = running_.emplace_back();
  running.thread = std::thread([this, fd = std::move(fd), &running] {
    obs::NameThread("judge");
    Answer(fd.get());
    const MutexLock done(mutex_);
    running.done = true;
  });
}

void JudgeDesk::Answer(int fd) {
  const nlohmann::json question = ParseJson(ReadLine(fd, stop_));
  const auto text = [&](const char* key) {
    return question.is_object() && question.contains(key) && question[key].is_string()
               ? question[key].get<std::string>()
               : std::string();
  };
  v1::AskJudgeRequest request;
  request.set_attempt_uid(uid_);
  request.set_epoch(epoch_);
  request.set_node(setup_.node);
  request.set_grader(text("grader"));
  request.set_prompt(text("prompt"));
  if (request.grader().empty()) return;
  // A rank that is gone takes its question with it.
  const auto gone = [&] {
    pollfd entry{fd, POLLRDHUP, 0};
    return stop_ || (poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLRDHUP)) != 0);
  };
  SendAnswer(fd, LineOf(server_.AskJudge(request, gone)), stop_);
}

}  // namespace sft::worker
