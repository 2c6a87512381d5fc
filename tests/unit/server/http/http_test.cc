#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <tuple>

#include "common/io/file.h"
#include "server/http/http_call.h"
#include "server/http/http_server.h"
#include "server/http/metrics_page.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

io::UniqueFd Dial(int port) {
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Reads until the other side closes the connection.
std::string ReadAll(int fd) {
  std::string answer;
  char bytes[4096];
  for (ssize_t got; (got = ::read(fd, bytes, sizeof(bytes))) > 0;) {
    answer.append(bytes, static_cast<size_t>(got));
  }
  return answer;
}

// Sends `request` and reads the whole answer.
std::string Talk(int port, const std::string& request) {
  const io::UniqueFd fd = Dial(port);
  EXPECT_TRUE(io::WriteAll(fd.get(), request, "socket").ok());
  return ReadAll(fd.get());
}

std::string Get(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
}

// A client whose request was sent, and whether the server still holds it.
bool IsOpen(int fd) {
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

class HealthPageTest : public FleetTest {};

TEST_F(HealthPageTest, ItSaysThatTheDatabaseAnswers) {
  EXPECT_EQ(HealthPage(*store_).status, 200);
  EXPECT_EQ(HealthPage(*store_).body, "ok\n");
}

// Options under which no connection is cut off for being slow.
HttpServer::Options Patient() {
  return {.head_timeout = std::chrono::hours(1),
          .page_timeout = std::chrono::hours(1),
          .send_timeout = std::chrono::hours(1)};
}

std::unique_ptr<HttpServer> Serve(std::vector<HttpServer::Page> pages,
                                  const HttpServer::Options& options) {
  return HttpServer::Start({"127.0.0.1", 0}, std::move(pages), options).value();
}

HttpServer::Page Yes() {
  return {"/yes", [] { return HttpResponse{200, "text/plain", "page yes\n"}; }};
}

class HttpServerTest : public testing::Test {
 protected:
  std::unique_ptr<HttpServer> server_ = Serve({Yes()}, Patient());
};

TEST_F(HttpServerTest, AnswersAPageWithItsLength) {
  const std::string answer = Talk(server_->port(), Get("/yes?x=1"));
  EXPECT_EQ(answer.find("HTTP/1.1 200 OK\r\n"), 0u) << answer;
  EXPECT_NE(answer.find("Content-Length: 9\r\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("\r\n\r\npage yes\n"), std::string::npos) << answer;
}

TEST_F(HttpServerTest, RefusesEverythingElseWithAReason) {
  EXPECT_EQ(Talk(server_->port(), Get("/no")).find("HTTP/1.1 404"), 0u);
  EXPECT_EQ(
      Talk(server_->port(), "POST /yes HTTP/1.1\r\nHost: localhost\r\n\r\n").find("HTTP/1.1 405"),
      0u);
  EXPECT_EQ(Talk(server_->port(), "rubbish\r\n\r\n").find("HTTP/1.1 400"), 0u);
}

// Takes all below /taken, and answers with what it got.
class Taker final : public HttpTaker {
 public:
  bool Takes(const HttpRequest& request) const override {
    return request.path.starts_with("/taken");
  }
  void Take(HttpRequest request, io::UniqueFd connection, std::string begun) override {
    std::thread([request = std::move(request), fd = std::move(connection),
                 begun = std::move(begun)]() mutable {
      HttpCall::Shared shared;
      HttpCall call(std::move(request), std::move(fd), std::move(begun), shared);
      const auto body = call.ReadBody(10);
      (void)call.Respond({200, "text/plain", body.ok() ? *body : body.status().ToString(), {}});
    }).detach();
  }
};

TEST(HttpTakerTest, AConnectionIsGivenAwayWithWhatHasComeOfItsBody) {
  Taker taker;
  HttpServer::Options options = Patient();
  options.taker = &taker;
  const auto server = Serve({Yes()}, options);
  const auto post = [&](const std::string& fields, const std::string& body) {
    return Talk(server->port(),
                "POST /taken/x?y HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n" + body);
  };
  EXPECT_NE(post("Content-Length: 5\r\n", "hello").find("\r\n\r\nhello"), std::string::npos);
  EXPECT_NE(post("CONTENT-LENGTH: 0\r\n", "").find("\r\n\r\n"), std::string::npos);
  for (const auto& [fields, body, why] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"", "", "no Content-Length"},
           {"Content-Length: five\r\n", "hello", "no number"},
           {"Content-Length: -5\r\n", "hello", "no number"},
           {"Content-Length: 99999999999999999999999\r\n", "hello", "no number"},
           {"Content-Length: 5\r\nContent-Length: 6\r\n", "hello", "no number"},
           {"Content-Length: 11\r\n", "hello", "at most 10"},
           {"Content-Length: 2\r\n", "hello", "longer"},
           {"Transfer-Encoding: chunked\r\n", "5\r\nhello", "in chunks"}}) {
    EXPECT_NE(post(fields, body).find(why), std::string::npos) << fields;
  }
  // The pages are there as before.
  EXPECT_EQ(Talk(server->port(), Get("/yes")).find("HTTP/1.1 200"), 0u);
  EXPECT_EQ(Talk(server->port(), Get("/no")).find("HTTP/1.1 404"), 0u);
}

TEST_F(HttpServerTest, AHeadMayComeInPieces) {
  const io::UniqueFd fd = Dial(server_->port());
  for (const char byte : Get("/yes")) {
    ASSERT_TRUE(io::WriteAll(fd.get(), std::string(1, byte), "socket").ok());
  }
  EXPECT_EQ(ReadAll(fd.get()).find("HTTP/1.1 200"), 0u);
}

TEST_F(HttpServerTest, AHeadWithoutEndIsCutOffAtTheLimit) {
  const std::string answer =
      Talk(server_->port(), "GET /" + std::string(HttpServer::kMaxHead + 4096, 'x'));
  // Unread bytes of the request may reset the connection before the answer is read.
  EXPECT_TRUE(answer.empty() || answer.find("HTTP/1.1 431") == 0u) << answer;
  EXPECT_EQ(Talk(server_->port(), Get("/yes")).find("HTTP/1.1 200"), 0u);
}

// The server cuts off no slow client here: if it waited for any, it would wait for the first for
// ever.
TEST_F(HttpServerTest, SlowClientsDoNotDelayOthers) {
  std::vector<io::UniqueFd> silent, dripping;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(Dial(server_->port()));
    dripping.push_back(Dial(server_->port()));
  }
  const std::string request = Get("/yes");
  for (size_t turn = 0; turn < 20; ++turn) {
    for (const io::UniqueFd& fd : dripping) {
      (void)::send(fd.get(), &request[turn], 1, MSG_NOSIGNAL);
    }
    EXPECT_EQ(Talk(server_->port(), request).find("HTTP/1.1 200"), 0u) << turn;
  }
  EXPECT_TRUE(IsOpen(silent.back().get()));
  EXPECT_TRUE(IsOpen(dripping.back().get()));
}

TEST(HttpRoomTest, WhenFullTheOldestIdleConnectionIsClosed) {
  HttpServer::Options options = Patient();
  options.max_connections = 2;
  const std::unique_ptr<HttpServer> server = Serve({Yes()}, options);
  const io::UniqueFd first = Dial(server->port());
  const io::UniqueFd second = Dial(server->port());
  EXPECT_EQ(Talk(server->port(), Get("/yes")).find("HTTP/1.1 200"), 0u);
  EXPECT_EQ(ReadAll(first.get()), "");
  EXPECT_TRUE(IsOpen(second.get()));
}

TEST(HttpRoomTest, SlowConnectionsAreClosed) {
  HttpServer::Options options = Patient();
  options.head_timeout = std::chrono::milliseconds(1);
  const std::unique_ptr<HttpServer> server = Serve({Yes()}, options);
  EXPECT_EQ(ReadAll(Dial(server->port()).get()), "");
}

// A page that is not ready until the test allows it.
class SlowPageTest : public testing::Test {
 protected:
  ~SlowPageTest() override { Release(); }
  HttpServer::Page Slow() {
    return {"/slow", [this] {
              std::unique_lock<std::mutex> lock(mutex_);
              ++made_;
              changed_.notify_all();
              changed_.wait(lock, [this] { return released_; });
              return HttpResponse{200, "text/plain", "at last\n"};
            }};
  }
  void Release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  void WaitUntilMade(int times) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return made_ >= times; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  int made_ = 0;
};

TEST_F(SlowPageTest, DoesNotBlockOthersAndIsMadeOnceForAllWaiters) {
  const std::unique_ptr<HttpServer> server = Serve({Slow(), Yes()}, Patient());
  const io::UniqueFd first = Dial(server->port());
  ASSERT_TRUE(io::WriteAll(first.get(), Get("/slow"), "socket").ok());
  WaitUntilMade(1);
  std::vector<io::UniqueFd> more;
  for (int i = 0; i < 20; ++i) {
    more.push_back(Dial(server->port()));
    ASSERT_TRUE(io::WriteAll(more.back().get(), Get("/slow"), "socket").ok());
  }
  // Requested last, so that all others were read before it is answered.
  EXPECT_EQ(Talk(server->port(), Get("/yes")).find("HTTP/1.1 200"), 0u);
  Release();
  EXPECT_NE(ReadAll(first.get()).find("at last"), std::string::npos);
  for (const io::UniqueFd& fd : more) {
    EXPECT_NE(ReadAll(fd.get()).find("at last"), std::string::npos);
  }
  EXPECT_EQ(made_, 2);
}

TEST_F(SlowPageTest, IsAnsweredWithoutItWhenItTakesTooLong) {
  HttpServer::Options options = Patient();
  options.page_timeout = std::chrono::milliseconds(1);
  const std::unique_ptr<HttpServer> server = Serve({Slow()}, options);
  EXPECT_EQ(Talk(server->port(), Get("/slow")).find("HTTP/1.1 503"), 0u);
  Release();
}

TEST(HttpRequestTest, OnlyNamesOfThisMachineAreServed) {
  const auto status = [](const std::string& fields, const std::string& version = "HTTP/1.1") {
    const HttpRequest request = ParseRequest("GET /x " + version + "\r\n" + fields, "localhost");
    return request.refused.has_value() ? request.refused->status : 200;
  };
  for (const char* host : {"127.0.0.1:7071", "127.0.0.1", "localhost:1", "LocalHost", "[::1]:7071",
                           "[::1]", "127.0.0.2"}) {
    EXPECT_EQ(status(std::string("hOST:\t") + host + " \r\n"), 200) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:7071", "10.0.0.1", "localhost.evil.example",
        "127.0.0.1.evil.example", "", "[::2]:7071", "[::1", "user@localhost"}) {
    EXPECT_EQ(status(std::string("Host: ") + host + "\r\n"), 421) << host;
  }
  EXPECT_EQ(status(""), 400);
  EXPECT_EQ(status("", "HTTP/1.0"), 200);
  EXPECT_EQ(status("Host: evil.example\r\n", "HTTP/1.0"), 421);
  EXPECT_EQ(status("Host: localhost\r\nHost: evil.example\r\n"), 400);
  EXPECT_EQ(status("Host\r\n"), 400);
}

TEST(HttpRequestTest, APathBeginsWithASlash) {
  const std::string host = "\r\nHost: localhost\r\n";
  EXPECT_EQ(
      ParseRequest("GET http://evil.example/healthz HTTP/1.1" + host, "localhost").refused->status,
      400);
  EXPECT_EQ(ParseRequest("GET /healthz?a=b HTTP/1.1" + host, "localhost").path, "/healthz");
}

TEST(HttpListenTest, OnlyLoopbackIsServed) {
  EXPECT_TRUE(absl::IsPermissionDenied(HttpServer::Start({"0.0.0.0", 0}, {}).status()));
}

}  // namespace
}  // namespace sft::server
