#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"
#include "server/http/http_request.h"

namespace sft::server {

// Takes over connections whose requests are no pages. Both are called by the server's one thread,
// and must not block it.
class HttpTaker {
 public:
  virtual ~HttpTaker() = default;
  virtual bool Takes(const HttpRequest& request) const = 0;
  // `begun`: what has come of the body.
  virtual void Take(HttpRequest request, io::UniqueFd connection, std::string begun) = 0;
};

// A small HTTP server on loopback. One thread serves all connections and never blocks on one of
// them; each page for GET requests is made on a thread of its own, once for all who wait for it, so
// that a slow page does not delay another. What is no page can be given away with its connection
// once its head is there (HttpTaker). The distribution ships
// cpp-httplib and prometheus-cpp as shared libraries only, and they bring a second OpenSSL into a
// process that links one statically; what is served here does not need them. No TLS.
class HttpServer {
 public:
  // Largest request head; a larger one is answered with 431.
  static constexpr size_t kMaxHead = 8192;

  struct Page {
    std::string path;
    std::function<HttpResponse()> make;
  };
  struct Options {
    // Simultaneous connections. One more ends the oldest that has not sent its request; if all
    // have, the oldest whose answer is not taken, then the oldest.
    size_t max_connections = 64;
    // From the connection to the end of the request's head.
    Nanos head_timeout = std::chrono::seconds(2);
    // A page that takes longer is answered with 503.
    Nanos page_timeout = std::chrono::seconds(5);
    // From the answer to its last byte.
    Nanos send_timeout = std::chrono::seconds(5);
    HttpTaker* taker = nullptr;  // borrowed; outlives the server
  };

  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const rpc::Endpoint& endpoint,
                                                           std::vector<Page> pages,
                                                           Options options);
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const rpc::Endpoint& endpoint,
                                                           std::vector<Page> pages) {
    return Start(endpoint, std::move(pages), Options());
  }
  ~HttpServer();
  int port() const { return port_; }

 private:
  enum class Stage { kHead, kPage, kAnswer };  // one that was given away has ended
  // A page and the thread that makes it. Versions of the page are numbered; a request gets the next
  // one to be begun. The server's mutex_ guards the numbers.
  struct Maker {
    Page page;
    uint64_t begun = 0, wanted = 0;
    CondVar asked;
    std::thread thread;
  };
  struct Connection {
    io::UniqueFd fd;
    MonoTime deadline{};
    Stage stage = Stage::kHead;
    std::string head;
    std::string begun;             // of the body, with the head
    const Maker* maker = nullptr;  // the page that it waits for,
    uint64_t number = 0;           // in this version or a later one
    std::string answer;
    size_t sent = 0;
    bool ended = false;
  };
  struct Made {
    const Maker* maker;
    uint64_t number;
    HttpResponse response;
  };

  HttpServer(io::UniqueFd listener, io::UniqueFd wake, rpc::Endpoint endpoint,
             std::vector<Page> pages, Options options);
  void Loop() SFT_EXCLUDES(mutex_);
  void Make(Maker& maker) SFT_EXCLUDES(mutex_);
  void Wake();
  // False when the server is to end.
  bool TakeMade() SFT_EXCLUDES(mutex_);
  void Accept();
  // Reads or writes as far as possible without blocking.
  void Move(Connection& connection);
  void ReadHead(Connection& connection);
  void Dispatch(Connection& connection);
  void MakePage(Connection& connection, const HttpRequest& request);
  void Answer(Connection& connection, const HttpResponse& response);
  void WriteAnswer(Connection& connection);
  void EndLate();
  // Ends one connection to admit a new one.
  void MakeRoom();
  int PollTimeoutMs() const;

  // Constant after construction.
  const io::UniqueFd listener_;
  const io::UniqueFd wake_;  // an eventfd
  const rpc::Endpoint endpoint_;
  const int port_;
  const Options options_;
  std::vector<std::unique_ptr<Maker>> makers_;

  // Used by thread_ only; the oldest first.
  std::list<Connection> connections_;
  MonoTime accepts_again_{};  // set after a failed accept

  Mutex mutex_;
  std::vector<Made> made_ SFT_GUARDED_BY(mutex_);
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
