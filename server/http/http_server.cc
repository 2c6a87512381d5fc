#include "server/http/http_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/obs/log.h"
#include "common/rpc/listen.h"

namespace sft::server {
namespace {

constexpr int kBacklog = 128;
// Pause after an accept that failed for lack of descriptors or memory.
constexpr std::chrono::milliseconds kAcceptPause{100};

MonoTime Now() { return Clock::Real().Mono(); }

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const rpc::Endpoint& endpoint,
                                                              std::vector<Page> pages,
                                                              Options options) {
  if (!rpc::IsLoopback(endpoint.host)) {
    return PermissionDenied(
        fmt::format("--http {}: only loopback addresses are served until TLS and tokens exist",
                    endpoint.ToString()));
  }
  auto listening = rpc::Listen(endpoint);
  if (!listening.ok()) {
    return Annotate(listening.status(),
                    fmt::format("cannot listen for HTTP on {} (give another --http HOST:PORT, or "
                                "--http off)",
                                endpoint.ToString()));
  }
  io::UniqueFd listener = std::move(listening->front());
  io::UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus("cannot create an eventfd", errno);
  std::unique_ptr<HttpServer> server(new HttpServer(
      std::move(listener), std::move(wake), rpc::Endpoint(endpoint), std::move(pages), options));
  return server;
}

HttpServer::HttpServer(io::UniqueFd listener, io::UniqueFd wake, rpc::Endpoint endpoint,
                       std::vector<Page> pages, Options options)
    : listener_(std::move(listener)),
      wake_(std::move(wake)),
      endpoint_(std::move(endpoint)),
      port_(rpc::PortOf(listener_.get())),
      options_(options) {
  for (Page& page : pages) {
    makers_.push_back(std::make_unique<Maker>());
    makers_.back()->page = std::move(page);
  }
  for (const auto& maker : makers_) {
    maker->thread = std::thread([this, &maker = *maker] { Make(maker); });
  }
  thread_ = std::thread([this] { Loop(); });
}

HttpServer::~HttpServer() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& maker : makers_) maker->asked.NotifyAll();
  }
  Wake();
  thread_.join();
  for (const auto& maker : makers_) maker->thread.join();
}

void HttpServer::Wake() {
  const uint64_t one = 1;
  // A full counter wakes as well.
  if (::write(wake_.get(), &one, sizeof(one)) < 0 && errno != EAGAIN) {
    spdlog::error("{}", Message(ErrnoStatus("cannot wake the HTTP thread", errno)));
  }
}

void HttpServer::Make(Maker& maker) {
  obs::NameThread("http page");
  uint64_t number = 0;
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (maker.wanted == maker.begun && !stopping_) maker.asked.Wait(mutex_);
      if (stopping_) return;
      number = ++maker.begun;
    }
    HttpResponse response = maker.page.make();
    {
      const MutexLock lock(mutex_);
      made_.push_back({&maker, number, std::move(response)});
    }
    Wake();
  }
}

void HttpServer::Loop() {
  obs::NameThread("http");
  std::vector<pollfd> waiting;
  while (true) {
    waiting.clear();
    waiting.push_back({wake_.get(), POLLIN, 0});
    waiting.push_back(
        {listener_.get(), static_cast<int16_t>(Now() >= accepts_again_ ? POLLIN : 0), 0});
    for (const Connection& connection : connections_) {
      // With no events requested, poll still reports a client that has gone.
      const int16_t wanted = connection.stage == Stage::kHead     ? POLLIN
                             : connection.stage == Stage::kAnswer ? POLLOUT
                                                                  : 0;
      waiting.push_back({connection.fd.get(), wanted, 0});
    }
    if (::poll(waiting.data(), waiting.size(), PollTimeoutMs()) < 0 && errno != EINTR) {
      spdlog::error("{}", Message(ErrnoStatus("the HTTP pages end: poll", errno)));
      return;
    }
    if (waiting[0].revents != 0 && !TakeMade()) return;
    size_t i = 2;
    for (Connection& connection : connections_) {
      if (waiting[i++].revents != 0 && !connection.ended) Move(connection);
    }
    EndLate();
    // Last, so that a connection whose request has arrived is not ended for a new one.
    if ((waiting[1].revents & POLLIN) != 0) Accept();
  }
}

int HttpServer::PollTimeoutMs() const {
  MonoTime next = MonoTime::max();
  if (Now() < accepts_again_) next = accepts_again_;
  for (const Connection& connection : connections_) next = std::min(next, connection.deadline);
  if (next == MonoTime::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

bool HttpServer::TakeMade() {
  uint64_t count = 0;
  if (::read(wake_.get(), &count, sizeof(count)) < 0 && errno != EAGAIN) return false;
  std::vector<Made> made;
  {
    const MutexLock lock(mutex_);
    if (stopping_) return false;
    made.swap(made_);
  }
  for (const Made& page : made) {
    for (Connection& connection : connections_) {
      if (connection.stage == Stage::kPage && connection.maker == page.maker &&
          connection.number <= page.number) {
        Answer(connection, page.response);
      }
    }
  }
  return true;
}

void HttpServer::Accept() {
  // Bounded, so that a flood of new connections does not delay the others.
  for (int i = 0; i < kBacklog; ++i) {
    io::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        // The listener stays readable; making room may help when descriptors ran out.
        MakeRoom();
        accepts_again_ = Now() + kAcceptPause;
      }
      return;
    }
    if (connections_.size() >= options_.max_connections) MakeRoom();
    Connection& connection = connections_.emplace_back();
    connection.fd = std::move(fd);
    connection.deadline = Now() + options_.head_timeout;
    Move(connection);
    if (connection.ended) connections_.pop_back();
  }
}

void HttpServer::MakeRoom() {
  for (const Stage stage : {Stage::kHead, Stage::kAnswer, Stage::kPage}) {
    const auto oldest =
        std::find_if(connections_.begin(), connections_.end(),
                     [&](const Connection& connection) { return connection.stage == stage; });
    if (oldest == connections_.end()) continue;
    connections_.erase(oldest);
    return;
  }
}

void HttpServer::EndLate() {
  const MonoTime now = Now();
  for (Connection& connection : connections_) {
    if (connection.ended || now < connection.deadline) continue;
    if (connection.stage == Stage::kPage) {
      Answer(connection, {503, HttpResponse().content_type,
                          "the page is not ready: the server's database is busy or hangs\n"});
    } else {
      connection.ended = true;
    }
  }
  connections_.remove_if([](const Connection& connection) { return connection.ended; });
}

void HttpServer::Move(Connection& connection) {
  switch (connection.stage) {
    case Stage::kHead:
      return ReadHead(connection);
    case Stage::kPage:
      connection.ended = true;  // here only an error or a hangup is reported
      return;
    case Stage::kAnswer:
      return WriteAnswer(connection);
  }
}

void HttpServer::ReadHead(Connection& connection) {
  char bytes[2048];
  std::string& head = connection.head;
  while (head.size() <= kMaxHead) {
    const ssize_t got = ::recv(connection.fd.get(), bytes, sizeof(bytes), 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      connection.ended = true;
      return;
    }
    // The empty line may have begun in the bytes before.
    const size_t from = head.size() < 3 ? 0 : head.size() - 3;
    head.append(bytes, static_cast<size_t>(got));
    const size_t end = head.find("\r\n\r\n", from);
    if (end == head.npos || end > kMaxHead) continue;
    connection.begun = head.substr(end + 4);
    head.resize(end + 2);
    return Dispatch(connection);
  }
  Answer(connection, {431, HttpResponse().content_type, "the request's head is too large\n"});
}

void HttpServer::Dispatch(Connection& connection) {
  HttpRequest request = ParseRequest(connection.head, endpoint_.host);
  if (request.refused.has_value()) return Answer(connection, *request.refused);
  if (options_.taker == nullptr || !options_.taker->Takes(request)) {
    return MakePage(connection, request);
  }
  connection.ended = true;
  options_.taker->Take(std::move(request), std::move(connection.fd), std::move(connection.begun));
}

void HttpServer::MakePage(Connection& connection, const HttpRequest& request) {
  if (request.method != "GET") {
    return Answer(connection, {405, HttpResponse().content_type, "only GET is served\n"});
  }
  std::vector<std::string> paths;
  for (const auto& maker : makers_) {
    paths.push_back(maker->page.path);
    if (maker->page.path != request.path) continue;
    connection.stage = Stage::kPage;
    connection.deadline = Now() + options_.page_timeout;
    const MutexLock lock(mutex_);
    connection.maker = maker.get();
    connection.number = maker->wanted = maker->begun + 1;
    maker->asked.NotifyOne();
    return;
  }
  if (options_.taker != nullptr) paths.emplace_back("/v1/models");
  Answer(connection, {404, HttpResponse().content_type,
                      fmt::format("there are {}\n", fmt::join(paths, " and "))});
}

void HttpServer::Answer(Connection& connection, const HttpResponse& response) {
  connection.stage = Stage::kAnswer;
  connection.deadline = Now() + options_.send_timeout;
  connection.answer = ToBytes(response);
  WriteAnswer(connection);
}

void HttpServer::WriteAnswer(Connection& connection) {
  const std::string& answer = connection.answer;
  while (connection.sent < answer.size()) {
    const ssize_t put = ::send(connection.fd.get(), answer.data() + connection.sent,
                               answer.size() - connection.sent, MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    connection.sent += static_cast<size_t>(put);
  }
  connection.ended = true;
}

}  // namespace sft::server
