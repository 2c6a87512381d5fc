#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"
#include "common/tls/server_session.h"
#include "server/http/http_connection.h"

namespace sft::server {

// An HTTP/1.1 server. One thread serves all connections and never blocks on one of them: it reads
// requests, gives them to the handler, and sends what others write (HttpStream).
class HttpServer {
 public:
  struct Options {
    // Simultaneous connections: one more ends the oldest that asks nothing. All streams that there
    // may be (Gate::kMaxStreams) leave room for calls. Those of one subscriber (SubscriberOf) that
    // is not loopback.
    size_t max_connections = 2000, max_of_one = 100;
    HttpLimits limits;
    // Null: without TLS. Borrowed, and outlives the server.
    const tls::ServerContext* tls = nullptr;
    // More of the head of each answer.
    std::vector<std::pair<std::string, std::string>> fields = {};
    // Counts answers. Null: nobody does. Borrowed, and outlives the server.
    HttpTimes* times = nullptr;
  };

  // The handler is borrowed, and outlives the server. UNAVAILABLE when the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const rpc::Endpoint& endpoint,
                                                           HttpHandler& handler,
                                                           const Options& options);
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const rpc::Endpoint& endpoint,
                                                           HttpHandler& handler) {
    return Start(endpoint, handler, Options());
  }
  // Closes all connections: their streams are gone.
  ~HttpServer();
  int port() const { return port_; }

 private:
  struct Entry {
    std::unique_ptr<HttpConnection> connection;
    uint32_t watched = 0;  // what epoll is to report of it
  };

  struct Opened {
    std::vector<io::UniqueFd> listeners;
    io::UniqueFd poll, wake;  // an epoll, an eventfd
  };
  HttpServer(Opened opened, HttpHandler& handler, const Options& options);
  absl::Status Watch();
  void Loop();
  void TakeTold(MonoTime now);
  // Whether epoll is to report who wants to connect.
  void Listen(bool listens);
  void Accept(int listener, MonoTime now);
  // Whether one more may come from there.
  bool Admit(const HttpSocket& socket);
  // Ends the oldest connection that asks nothing. False: there is none.
  bool MakeRoom();
  void PassTime(MonoTime now);
  // After something happened to it.
  void Settle(uint64_t id, Entry& entry);
  int WaitMs(MonoTime now) const;

  // Constant after construction.
  const std::vector<io::UniqueFd> listeners_;
  const io::UniqueFd poll_;  // an epoll
  const int port_;
  const Options options_;
  HttpConnection::Shared shared_;

  // Used by thread_ only, after Start.
  std::map<uint64_t, Entry> connections_;
  std::map<std::string, size_t> of_one_;  // by subscriber; none at 0, none of loopback
  uint64_t next_ = 0;
  MonoTime next_time_ = MonoTime::max();      // no connection asks for an earlier one
  MonoTime accepts_again_ = MonoTime::max();  // after a failed accept; until then nobody listens
  bool accepts_ = true;
  std::thread thread_;
};

}  // namespace sft::server
