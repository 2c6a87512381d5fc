#include "server/http/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "common/obs/log.h"
#include "common/rpc/listen.h"

namespace sft::server {
namespace {

constexpr int kMostAccepts = 128, kMostEvents = 256;
// Pause after an accept that failed for lack of descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause{100};
// What epoll reports of a connection is its number; of what is none, one of these.
constexpr uint64_t kWakeId = 0, kFirstListener = 1, kFirstConnection = 1000;
// The end of the server, told as of a connection.
constexpr uint64_t kStop = 0;

MonoTime Now() { return Clock::Real().Mono(); }

absl::Status Control(int poll, int operation, int fd, uint32_t events, uint64_t id) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(poll, operation, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus("cannot watch a connection", errno);
}

std::string LinesOf(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string lines;
  for (const auto& [name, value] : fields) lines += fmt::format("{}: {}\r\n", name, value);
  return lines;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const rpc::Endpoint& endpoint,
                                                              HttpHandler& handler,
                                                              const Options& options) {
  auto listeners = rpc::Listen(endpoint);
  if (!listeners.ok()) {
    return Annotate(listeners.status(),
                    fmt::format("cannot listen for HTTP on {} (give another --http HOST:PORT, or "
                                "--http off)",
                                endpoint.ToString()));
  }
  io::UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus("cannot create an eventfd", errno);
  io::UniqueFd poll(::epoll_create1(EPOLL_CLOEXEC));
  if (!poll.valid()) return ErrnoStatus("cannot create an epoll", errno);
  Opened opened{*std::move(listeners), std::move(poll), std::move(wake)};
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(opened), handler, options));
  SFT_RETURN_IF_ERROR(server->Watch());
  server->thread_ = std::thread([&server = *server] { server.Loop(); });
  return server;
}

HttpServer::HttpServer(Opened opened, HttpHandler& handler, const Options& options)
    : listeners_(std::move(opened.listeners)),
      poll_(std::move(opened.poll)),
      port_(rpc::PortOf(listeners_.front().get())),
      options_(options),
      shared_{handler, options_.limits,
              std::make_shared<HttpWake>(std::move(opened.wake), LinesOf(options_.fields)),
              options_.times},
      next_(kFirstConnection) {}

absl::Status HttpServer::Watch() {
  SFT_RETURN_IF_ERROR(Control(poll_.get(), EPOLL_CTL_ADD, shared_.wake->fd(), EPOLLIN, kWakeId));
  for (size_t i = 0; i < listeners_.size(); ++i) {
    SFT_RETURN_IF_ERROR(
        Control(poll_.get(), EPOLL_CTL_ADD, listeners_[i].get(), EPOLLIN, kFirstListener + i));
  }
  return absl::OkStatus();
}

HttpServer::~HttpServer() {
  if (!thread_.joinable()) return;
  shared_.wake->Tell(kStop);
  thread_.join();
}

void HttpServer::Loop() {
  obs::NameThread("http");
  epoll_event events[kMostEvents];
  while (accepts_) {
    const int count = ::epoll_wait(poll_.get(), events, kMostEvents, WaitMs(Now()));
    if (count < 0 && errno != EINTR) {
      spdlog::error("{}", Message(ErrnoStatus("HTTP ends: epoll_wait", errno)));
      break;
    }
    const MonoTime now = Now();
    std::vector<int> ready;  // last, so that a connection whose request has arrived is not ended
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kWakeId) {
        TakeTold(now);
      } else if (id < kFirstConnection) {
        ready.push_back(listeners_[id - kFirstListener].get());
      } else if (const auto found = connections_.find(id); found != connections_.end()) {
        const uint32_t happened = events[i].events;
        const bool broken = (happened & (EPOLLERR | EPOLLHUP)) != 0;
        found->second.connection->Move((happened & EPOLLIN) != 0 || broken,
                                       (happened & EPOLLOUT) != 0, now);
        if (broken) found->second.connection->End();
        Settle(id, found->second);
      }
    }
    PassTime(now);
    for (const int listener : ready) Accept(listener, now);
    if (now < accepts_again_) continue;
    accepts_again_ = MonoTime::max();
    Listen(true);
  }
  connections_.clear();
}

int HttpServer::WaitMs(MonoTime now) const {
  const MonoTime next = std::min(next_time_, accepts_again_);
  if (next == MonoTime::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void HttpServer::TakeTold(MonoTime now) {
  for (const uint64_t id : shared_.wake->Take()) {
    if (id == kStop) accepts_ = false;
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    found->second.connection->Move(false, false, now);
    Settle(id, found->second);
  }
}

void HttpServer::Listen(bool listens) {
  for (size_t i = 0; i < listeners_.size(); ++i) {
    const absl::Status watched = Control(poll_.get(), EPOLL_CTL_MOD, listeners_[i].get(),
                                         listens ? EPOLLIN : 0u, kFirstListener + i);
    if (!watched.ok()) spdlog::error("{}", Message(watched));
  }
}

void HttpServer::Accept(int listener, MonoTime now) {
  // Bounded, so that a flood of new connections does not delay the others.
  for (int i = 0; i < kMostAccepts; ++i) {
    io::UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        // The listener would stay readable; making room may help when descriptors ran out.
        (void)MakeRoom();
        accepts_again_ = now + kAcceptPause;
        Listen(false);
      }
      return;
    }
    HttpSocket socket(std::move(fd), options_.tls);
    if (!Admit(socket)) continue;
    const uint64_t id = next_++;
    const int number = socket.fd();
    if (!socket.subscriber().empty()) ++of_one_[socket.subscriber()];
    Entry& entry = connections_[id];
    entry.connection = std::make_unique<HttpConnection>(shared_, id, std::move(socket), now);
    entry.watched = EPOLLIN;
    const absl::Status watched = Control(poll_.get(), EPOLL_CTL_ADD, number, entry.watched, id);
    if (!watched.ok()) {
      spdlog::warn("{}", Message(watched));
      entry.connection->End();
    }
    Settle(id, entry);
  }
}

bool HttpServer::Admit(const HttpSocket& socket) {
  const auto found = of_one_.find(socket.subscriber());
  if (found != of_one_.end() && found->second >= options_.max_of_one) return false;
  return connections_.size() < options_.max_connections || MakeRoom();
}

bool HttpServer::MakeRoom() {
  auto oldest = connections_.end();
  for (auto each = connections_.begin(); each != connections_.end(); ++each) {
    const HttpConnection& connection = *each->second.connection;
    if (!connection.idle()) continue;
    if (oldest == connections_.end() || connection.since() < oldest->second.connection->since()) {
      oldest = each;
    }
  }
  if (oldest == connections_.end()) return false;
  oldest->second.connection->End();
  Settle(oldest->first, oldest->second);
  return true;
}

void HttpServer::PassTime(MonoTime now) {
  if (now < next_time_) return;
  next_time_ = MonoTime::max();
  for (auto each = connections_.begin(); each != connections_.end();) {
    const auto current = each++;  // Settle may remove it
    current->second.connection->PassTime(now);
    Settle(current->first, current->second);
  }
}

void HttpServer::Settle(uint64_t id, Entry& entry) {
  HttpConnection& connection = *entry.connection;
  if (connection.over()) {
    const auto found = of_one_.find(connection.socket().subscriber());
    if (found != of_one_.end() && --found->second == 0) of_one_.erase(found);
    connections_.erase(id);
    return;
  }
  const uint32_t wanted =
      (connection.wants_read() ? EPOLLIN : 0u) | (connection.wants_write() ? EPOLLOUT : 0u);
  if (wanted != entry.watched &&
      Control(poll_.get(), EPOLL_CTL_MOD, connection.fd(), wanted, id).ok()) {
    entry.watched = wanted;
  }
  next_time_ = std::min(next_time_, connection.wakes_at());
}

}  // namespace sft::server
