#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/io/file.h"
#include "server/http/exposition.h"
#include "server/http/http_server.h"
#include "server/http/metrics_page.h"
#include "tests/unit/server/core/fleet_fixture.h"

namespace sft::server {
namespace {

// Sends `request` and reads the whole answer.
std::string Talk(int port, const std::string& request) {
  const io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_TRUE(io::WriteAll(fd.get(), request, "socket").ok());
  std::string answer;
  char bytes[4096];
  for (ssize_t got; (got = ::read(fd.get(), bytes, sizeof(bytes))) > 0;) {
    answer.append(bytes, static_cast<size_t>(got));
  }
  return answer;
}

class MetricsPageTest : public FleetTest {};

TEST_F(MetricsPageTest, SlotsOfANodeThatIsSilentAreNotFree) {
  Join("a", "CPU", 2);
  Tick();
  EXPECT_NE(ServePage("/metrics", *store_, *registry_)
                .body.find("sft_slots{gpu_type=\"CPU\",use=\"free\"} 2"),
            std::string::npos);
  clock_.Advance(std::chrono::hours(1));
  Tick();
  const std::string page = ServePage("/metrics", *store_, *registry_).body;
  EXPECT_EQ(page.find("use=\"free\""), std::string::npos) << page;
  EXPECT_NE(page.find("sft_slots{gpu_type=\"CPU\",use=\"silent\"} 2"), std::string::npos) << page;
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest()
      : server_(
            HttpServer::Start({"127.0.0.1", 0}, [](const std::string& path) {
              return HttpResponse{path == "/yes" ? 200 : 404, "text/plain", "path " + path + "\n"};
            }).value()) {}
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersAPageWithItsLength) {
  const std::string answer = Talk(server_->port(), "GET /yes?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(answer.find("HTTP/1.1 200 OK\r\n"), 0u) << answer;
  EXPECT_NE(answer.find("Content-Length: 10\r\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("\r\n\r\npath /yes\n"), std::string::npos) << answer;
}

TEST_F(HttpServerTest, SaysWhatItDoesNotServe) {
  EXPECT_EQ(Talk(server_->port(), "GET /no HTTP/1.1\r\n\r\n").find("HTTP/1.1 404"), 0u);
  EXPECT_EQ(Talk(server_->port(), "POST /yes HTTP/1.1\r\n\r\n").find("HTTP/1.1 405"), 0u);
  EXPECT_EQ(Talk(server_->port(), "rubbish\r\n\r\n").find("HTTP/1.1 400"), 0u);
}

TEST_F(HttpServerTest, AHeadWithoutEndIsCutOffAtTheLimit) {
  const std::string answer =
      Talk(server_->port(), "GET /" + std::string(HttpServer::kMaxHead + 4096, 'x'));
  // The rest of the request may reset the connection before the answer is read.
  EXPECT_TRUE(answer.empty() || answer.find("HTTP/1.1 431") == 0u) << answer;
  EXPECT_EQ(Talk(server_->port(), "GET /yes HTTP/1.1\r\n\r\n").find("HTTP/1.1 200"), 0u);
}

TEST(HttpListenTest, OnlyLoopbackIsServed) {
  EXPECT_TRUE(absl::IsPermissionDenied(HttpServer::Start({"0.0.0.0", 0}, {}).status()));
}

TEST(ExpositionTest, WritesTheTextFormat) {
  Exposition page;
  page.Metric("sft_jobs", "gauge", "Jobs by state.");
  page.Sample({{"state", "RUNNING"}, {"note", "a\"b\\c\nd"}}, 3);
  page.Sample({}, 0.5);
  EXPECT_EQ(page.text(),
            "# HELP sft_jobs Jobs by state.\n# TYPE sft_jobs gauge\n"
            "sft_jobs{state=\"RUNNING\",note=\"a\\\"b\\\\c\\nd\"} 3\nsft_jobs 0.5\n");
}

}  // namespace
}  // namespace sft::server
