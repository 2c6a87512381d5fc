// The HTTP server over real sockets, with handlers of the tests' own.

#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <openssl/ssl.h>
#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>
#include <tuple>

#include "common/tls/openssl.h"
#include "server/http/http_call.h"
#include "server/http/page_makers.h"
#include "tests/unit/server/http/http_client.h"

namespace sft::server {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Stream = std::shared_ptr<HttpStream>;

// Limits under which no connection is cut off for being slow.
HttpServer::Options Patient() {
  const Nanos hour = std::chrono::hours(1);
  HttpServer::Options options;
  options.limits = {.head = hour, .idle = hour, .body = hour, .send = hour, .silence = hour};
  return options;
}

HttpResponse Text(std::string text) { return {200, "text/plain", std::move(text), {}}; }

// Answers each path with itself, and a body with what it was.
void Echo(const Stream& stream) {
  if (stream->request().method != "POST") return stream->Respond(Text(stream->request().path));
  stream->ReadBody(10, [stream](absl::StatusOr<std::string> body) {
    stream->Respond(Text(body.ok() ? *body : body.status().ToString()));
  });
}

class HttpServerTest : public testing::Test {
 protected:
  void Serve(FakeHandler::Answer answer, const HttpServer::Options& options = Patient()) {
    handler_ = std::make_unique<FakeHandler>(std::move(answer));
    server_ = HttpServer::Start({"127.0.0.1", 0}, *handler_, options).value();
  }
  int port() const { return server_->port(); }

  std::unique_ptr<FakeHandler> handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersSeveralRequestsOfAConnection) {
  Serve(Echo);
  const io::UniqueFd fd = Dial(port());
  const std::string head = " HTTP/1.1\r\nHost: localhost\r\n";
  Send(fd, "GET /one" + head + "\r\n");
  EXPECT_THAT(ReadThrough(fd, "\r\n\r\n/one"), StartsWith("HTTP/1.1 200 OK\r\n"));
  // Two that come together are answered in their order.
  Send(fd, "POST /two" + head + "Content-Length: 5\r\n\r\nhelloGET /three" + head +
               "Connection: close\r\n\r\n");
  const std::string rest = ReadUntil(fd);
  EXPECT_THAT(rest, HasSubstr("\r\n\r\nhelloHTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(rest, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(rest, HasSubstr("\r\n\r\n/three"));
}

TEST_F(HttpServerTest, ARequestMayComeInAnyPieces) {
  Serve(Echo);
  const std::string request =
      "POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: "
      "close\r\n\r\n"
      "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
  for (size_t split = 1; split < request.size(); ++split) {
    const io::UniqueFd fd = Dial(port());
    Send(fd, request.substr(0, split));
    std::this_thread::yield();
    Send(fd, request.substr(split));
    EXPECT_THAT(ReadUntil(fd), HasSubstr("\r\n\r\nhello")) << split;
  }
}

TEST_F(HttpServerTest, RefusesBodiesWithAReason) {
  Serve(Echo);
  const auto post = [&](const std::string& fields, const std::string& body) {
    return Talk(port(), "POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + fields +
                            "\r\n" + body);
  };
  EXPECT_THAT(post("Content-Length: 0\r\n", ""), HasSubstr("\r\n\r\n"));
  EXPECT_THAT(post("", ""), HasSubstr("\r\n\r\n"));
  EXPECT_THAT(post("Content-Length: 11\r\n", "hello"), HasSubstr("at most 10"));
  EXPECT_THAT(post("Transfer-Encoding: chunked\r\n", "b\r\nhello world\r\n"), HasSubstr("10"));
  EXPECT_THAT(post("Transfer-Encoding: chunked\r\n", "hello"), HasSubstr("cannot be read"));
  EXPECT_EQ(StatusOf(post("Expect: magic\r\n", "")), 417);
}

TEST_F(HttpServerTest, WhoWaitsForLeaveToSendABodyGetsIt) {
  Serve(Echo);
  const io::UniqueFd fd = Dial(port());
  Send(fd,
       "POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\n"
       "Content-Length: 5\r\n\r\n");
  EXPECT_EQ(ReadThrough(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  Send(fd, "hello");
  EXPECT_THAT(ReadUntil(fd), HasSubstr("\r\n\r\nhello"));
}

TEST_F(HttpServerTest, ARefusedRequestEndsItsConnectionAlone) {
  Serve(Echo);
  EXPECT_EQ(StatusOf(Talk(port(), "rubbish\r\n\r\n")), 400);
  EXPECT_EQ(StatusOf(Talk(port(), "GET /" + std::string(20'000, 'x'))), 431);
  EXPECT_EQ(StatusOf(Talk(port(), Get("/yes"))), 200);
}

TEST_F(HttpServerTest, AHalfClosedConnectionIsStillAnswered) {
  Serve(Echo);
  const io::UniqueFd fd = Dial(port());
  Send(fd, "GET /yes HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ::shutdown(fd.get(), SHUT_WR);
  EXPECT_THAT(ReadUntil(fd), HasSubstr("\r\n\r\n/yes"));
}

TEST_F(HttpServerTest, AStreamIsSentInChunksAndToOldClientsWithout) {
  Serve([](const Stream& stream) {
    stream->Begin(Text(""));
    stream->Write("one");
    stream->Write("");
    stream->Write("twenty-four characters..");
    stream->End();
  });
  EXPECT_THAT(Talk(port(), Get("/")),
              HasSubstr("\r\n\r\n3\r\none\r\n18\r\ntwenty-four characters..\r\n0\r\n\r\n"));
  const std::string old = Talk(port(), "GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old, HasSubstr("\r\n\r\nonetwenty-four"));
  EXPECT_EQ(old.find("chunked"), old.npos);
}

TEST_F(HttpServerTest, ACutAnswerHasNoEnd) {
  Serve([](const Stream& stream) {
    stream->Begin(Text(""));
    stream->Write("one");
    stream->Cut();
  });
  const std::string answer = Talk(port(), Get("/"));
  EXPECT_THAT(answer, HasSubstr("3\r\none\r\n"));
  EXPECT_EQ(answer.find("0\r\n\r\n"), answer.npos);
}

// The server cuts off no slow client here: if it waited for any, it would wait for the first for
// ever.
TEST_F(HttpServerTest, SlowClientsDoNotDelayOthers) {
  Serve(Echo);
  std::vector<io::UniqueFd> silent, dripping;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(Dial(port()));
    dripping.push_back(Dial(port()));
  }
  const std::string request = Get("/yes");
  for (size_t turn = 0; turn < 20; ++turn) {
    for (const io::UniqueFd& fd : dripping) Send(fd, request.substr(turn, 1));
    EXPECT_EQ(StatusOf(Talk(port(), request)), 200) << turn;
  }
  EXPECT_TRUE(IsOpen(silent.back()));
  EXPECT_TRUE(IsOpen(dripping.back()));
}

TEST_F(HttpServerTest, WhoReadsNothingDelaysNobodyAndIsCutOff) {
  HttpServer::Options options = Patient();
  options.limits.send = std::chrono::milliseconds(100);
  Serve(
      [](const Stream& stream) {
        stream->Respond(
            Text(stream->request().path == "/large" ? std::string(64 << 20, 'x') : "ok"));
      },
      options);
  const io::UniqueFd fd = Dial(port());
  Send(fd, Get("/large"));
  EXPECT_EQ(StatusOf(Talk(port(), Get("/yes"))), 200);
  ReadThrough(fd, "HTTP/1.1 200");
  Clock::Real().Sleep(std::chrono::milliseconds(400));
  EXPECT_LT(ReadUntil(fd).size(), size_t{64} << 20);
}

// A caller who takes some again and again, of whom more is asked.
TEST_F(HttpServerTest, WhoReadsTooSlowlyIsCutOff) {
  HttpServer::Options options = Patient();
  options.limits.send = std::chrono::seconds(1);
  options.limits.least_sent = 32 << 20;
  Serve([](const Stream& stream) { stream->Respond(Text(std::string(64 << 20, 'x'))); }, options);
  const io::UniqueFd fd = Dial(port());
  Send(fd, Get("/"));
  std::string bytes(256 << 10, '\0');
  size_t received = 0;
  // In no second a third of what is asked.
  for (ssize_t got = 0; (got = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_WAITALL)) > 0;) {
    received += static_cast<size_t>(got);
    Clock::Real().Sleep(std::chrono::milliseconds(25));
  }
  EXPECT_LT(received, size_t{64} << 20);
}

TEST_F(HttpServerTest, SlowHeadsAreToldSoAndIdleConnectionsClosed) {
  HttpServer::Options options = Patient();
  options.limits.head = options.limits.idle = std::chrono::milliseconds(50);
  Serve(Echo, options);
  EXPECT_EQ(ReadUntil(Dial(port())), "");
  const io::UniqueFd slow = Dial(port());
  Send(slow, "GET / HT");
  EXPECT_EQ(StatusOf(ReadUntil(slow)), 408);
  const io::UniqueFd idle = Dial(port());
  Send(idle, "GET /yes HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(ReadUntil(idle), testing::EndsWith("\r\n\r\n/yes"));
}

TEST_F(HttpServerTest, ABodyThatComesTooSlowlyIsToldSo) {
  HttpServer::Options options = Patient();
  options.limits.body = std::chrono::milliseconds(50);
  Serve(Echo, options);
  EXPECT_THAT(Talk(port(), "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhel"),
              HasSubstr("DEADLINE_EXCEEDED"));
}

// A body in pieces, by a handler's thread that says how many bytes it was given.
void CountPieces(const Stream& stream, std::atomic<size_t>& taken, std::atomic<bool>& goes_on) {
  HttpCall::Shared shared;
  HttpCall call(stream, shared);
  while (true) {
    while (!goes_on) std::this_thread::yield();
    const auto piece = call.ReadSome();
    if (!piece.ok()) return (void)call.Respond(Text(piece.status().ToString()));
    if (piece->empty()) return (void)call.Respond(Text(std::to_string(taken)));
    taken += piece->size();
  }
}

TEST_F(HttpServerTest, ABodyInPiecesMayBeOfAnySizeAndWaitsForWhoTakesIt) {
  std::deque<std::thread> threads;
  std::atomic<size_t> taken = 0;
  std::atomic<bool> goes_on = false;
  HttpServer::Options options = Patient();
  options.limits.bodies = 1 << 20;
  Serve(
      [&](const Stream& stream) {
        threads.emplace_back([&, stream] { CountPieces(stream, taken, goes_on); });
      },
      options);
  constexpr size_t kBytes = size_t{64} << 20;
  const std::string head = "POST / HTTP/1.1\r\nHost: localhost\r\n";
  const io::UniqueFd fd = Dial(port());
  Send(fd, head + "Content-Length: " + std::to_string(kBytes) + "\r\n\r\n");
  std::atomic<bool> sent = false;
  std::thread sender([&] {
    Send(fd, std::string(kBytes, 'x'));
    sent = true;
  });
  goes_on = true;
  while (taken == 0) std::this_thread::yield();
  goes_on = false;
  Clock::Real().Sleep(std::chrono::milliseconds(200));
  EXPECT_FALSE(sent);  // it waits for who takes it
  goes_on = true;
  EXPECT_THAT(ReadThrough(fd, std::to_string(kBytes)), StartsWith("HTTP/1.1 200 OK\r\n"));
  sender.join();
  // The connection serves another, in chunks and in any pieces; one that is refused ends it.
  taken = 0;
  Send(fd, head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhe");
  Send(fd, "llo\r\n0\r");
  Send(fd, "\n\r\n");
  EXPECT_THAT(ReadThrough(fd, "\r\n\r\n5"), StartsWith("HTTP/1.1 200 OK\r\n"));
  taken = 0;
  Send(fd, head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nz\r\n");
  EXPECT_THAT(ReadUntil(fd), HasSubstr("INVALID_ARGUMENT"));
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HttpServerTest, APieceThatDoesNotComeIsWaitedForNoLongerThanABody) {
  HttpServer::Options options = Patient();
  options.limits.body = std::chrono::milliseconds(100);
  std::deque<std::thread> threads;
  std::atomic<size_t> taken = 0;
  std::atomic<bool> goes_on = true;
  Serve(
      [&](const Stream& stream) {
        threads.emplace_back([&, stream] { CountPieces(stream, taken, goes_on); });
      },
      options);
  // It has sent enough for a minute.
  EXPECT_THAT(Talk(port(), "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" +
                               std::string(61440, 'x')),
              HasSubstr("DEADLINE_EXCEEDED"));
  for (std::thread& thread : threads) thread.join();
}

TEST_F(HttpServerTest, TooManyBytesOfBodiesAreRefused) {
  HttpServer::Options options = Patient();
  options.limits.bodies = 4;
  Serve(Echo, options);
  const std::string head =
      "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 9\r\n\r\n";
  EXPECT_THAT(Talk(port(), head + "hello"), HasSubstr("RESOURCE_EXHAUSTED"));
  // What was refused is not held any more.
  const io::UniqueFd fd = Dial(port());
  Send(fd, head + "hel");
  Send(fd, "lo all");
  EXPECT_THAT(ReadUntil(fd),
              testing::AnyOf(HasSubstr("hello all"), HasSubstr("RESOURCE_EXHAUSTED")));
  EXPECT_THAT(Talk(port(), head + "hello all"), HasSubstr("\r\n\r\nhello all"));
}

TEST_F(HttpServerTest, WhenFullTheOldestIdleConnectionIsClosed) {
  HttpServer::Options options = Patient();
  options.max_connections = 2;
  Serve(Echo, options);
  const io::UniqueFd first = Dial(port());
  const io::UniqueFd second = Dial(port());
  EXPECT_EQ(StatusOf(Talk(port(), Get("/yes"))), 200);
  EXPECT_EQ(ReadUntil(first), "");
  EXPECT_TRUE(IsOpen(second));
}

TEST_F(HttpServerTest, WhenFullWhoSendsNoBodyKeepsNobodyOut) {
  HttpServer::Options options = Patient();
  options.max_connections = 2;
  Serve(Echo, options);
  std::vector<io::UniqueFd> waited_for;
  for (int i = 0; i < 2; ++i) {
    waited_for.push_back(Dial(port()));
    Send(waited_for.back(),
         "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
         "5\r\n\r\n");
    ReadThrough(waited_for.back(), "100 Continue\r\n\r\n");
  }
  EXPECT_EQ(StatusOf(Talk(port(), Get("/yes"))), 200);
  EXPECT_EQ(ReadUntil(waited_for.front()), "");
  EXPECT_TRUE(IsOpen(waited_for.back()));
}

// An address of this machine that is not loopback; empty: it has none.
std::string OwnAddress() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN] = {};
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text));
    if (!rpc::IsLoopback(text)) found = text;
  }
  ::freeifaddrs(all);
  return found;
}

TEST_F(HttpServerTest, OneAddressHasSoManyConnectionsAndKeepsNobodyElseOut) {
  const std::string own = OwnAddress();
  if (own.empty()) GTEST_SKIP() << "this machine has no address but loopback's";
  HttpServer::Options options = Patient();
  options.max_of_one = 2;
  handler_ = std::make_unique<FakeHandler>(Echo);
  server_ = HttpServer::Start({"0.0.0.0", 0}, *handler_, options).value();
  const auto dial_own = [&] {
    sockaddr_in address = LoopbackAddress(port());
    EXPECT_EQ(::inet_pton(AF_INET, own.c_str(), &address.sin_addr), 1);
    io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  };
  io::UniqueFd first = dial_own();
  const io::UniqueFd second = dial_own();
  EXPECT_EQ(ReadUntil(dial_own()), "") << "one more is closed";
  EXPECT_TRUE(IsOpen(first));
  EXPECT_TRUE(IsOpen(second));
  std::vector<io::UniqueFd> others;
  for (int i = 0; i < 3; ++i) others.push_back(Dial(port()));
  EXPECT_EQ(StatusOf(Talk(port(), Get("/yes"))), 200);
  for (const io::UniqueFd& each : others) EXPECT_TRUE(IsOpen(each));
  // Whoever has ended one may have another.
  Send(first, Get("/yes"));
  EXPECT_EQ(StatusOf(ReadUntil(first)), 200);
  first = io::UniqueFd();
  EXPECT_EQ(StatusOf([&] {
              const io::UniqueFd third = dial_own();
              Send(third, Get("/yes"));
              return ReadUntil(third);
            }()),
            200);
}

TEST_F(HttpServerTest, AnswersAreCountedOnceWithTheServersOwnTime) {
  HttpTimes times;
  HttpServer::Options options = Patient();
  options.times = &times;
  Serve(Echo, options);
  EXPECT_EQ(StatusOf(Talk(port(), Get("/api/v1/x"))), 200);
  EXPECT_EQ(StatusOf(Talk(port(), "rubbish\r\n\r\n")), 400);
  const io::UniqueFd slow = Dial(port());
  const MonoTime begun = Clock::Real().Mono();
  Send(slow,
       "POST /api/v1/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
       "2\r\n\r\na");
  Clock::Real().Sleep(std::chrono::milliseconds(300));
  Send(slow, "b");
  EXPECT_EQ(StatusOf(ReadUntil(slow)), 200);
  const double took = std::chrono::duration<double>(Clock::Real().Mono() - begun).count();
  std::map<std::string, int64_t> counts;
  times.Each(
      [&](std::string_view route, std::string_view status, const obs::Histogram::Counts& each) {
        counts[std::string(route) + " " + std::string(status)] = each.cumulative.back();
        EXPECT_GE(each.sum, 0);
        EXPECT_LE(each.sum, took - 0.25) << "the caller's time is not the server's";
      });
  EXPECT_THAT(counts,
              testing::ElementsAre(testing::Pair("api 2xx", 2), testing::Pair("unread 4xx", 1)));
}

// The time that this process has computed.
std::chrono::microseconds Computed() {
  rusage used{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &used), 0);
  const auto micros = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return micros(used.ru_utime) + micros(used.ru_stime);
}

TEST_F(HttpServerTest, WhileDescriptorsAreOutItWaits) {
  Serve(Echo);
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // The lowest number that was free is the last one that may be used.
  const rlimit few{static_cast<rlim_t>(fd.get()) + 1, files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  Connect(fd, port());
  Send(fd, Get("/yes"));
  const std::chrono::microseconds before = Computed();
  Clock::Real().Sleep(std::chrono::milliseconds(500));
  EXPECT_LT(Computed() - before, std::chrono::milliseconds(250));
  EXPECT_TRUE(IsOpen(fd));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(StatusOf(ReadUntil(fd)), 200);
}

TEST_F(HttpServerTest, WhoHangsUpIsGone) {
  std::mutex mutex;
  std::condition_variable changed;
  Stream held;
  bool gone = false;
  Serve([&](const Stream& stream) {
    stream->WhenMoved([&] {
      const std::lock_guard<std::mutex> lock(mutex);
      gone = held != nullptr && held->Gone();
      changed.notify_all();
    });
    const std::lock_guard<std::mutex> lock(mutex);
    held = stream;
    changed.notify_all();
  });
  {
    const io::UniqueFd fd = Dial(port());
    Send(fd, Get("/"));
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return held != nullptr; });
    EXPECT_FALSE(held->Gone());
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return gone; });
  lock.unlock();
  // Nothing comes of what it is still given.
  held->Respond(Text("too late"));
  held->WhenMoved(nullptr);
}

TEST_F(HttpServerTest, StreamsOutliveTheServer) {
  std::mutex mutex;
  std::condition_variable changed;
  Stream held;
  Serve([&](const Stream& stream) {
    const std::lock_guard<std::mutex> lock(mutex);
    held = stream;
    changed.notify_all();
  });
  const io::UniqueFd fd = Dial(port());
  Send(fd, Get("/"));
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return held != nullptr; });
  }
  server_.reset();
  EXPECT_TRUE(held->Gone());
  held->Respond(Text("too late"));
  EXPECT_EQ(ReadUntil(fd), "");
}

TEST_F(HttpServerTest, FiveHundredSilentStreamsCostNothingAndGetTheirPing) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  HttpServer::Options options = Patient();
  options.limits.silence = std::chrono::milliseconds(200);
  std::mutex mutex;
  std::deque<Stream> streams;
  Serve(
      [&](const Stream& stream) {
        if (stream->request().path == "/yes") return stream->Respond(Text("ok"));
        stream->Begin({200, "text/event-stream", "", {}}, /*events=*/true);
        const std::lock_guard<std::mutex> lock(mutex);
        streams.push_back(stream);
      },
      options);
  std::vector<io::UniqueFd> clients;
  for (int i = 0; i < 500; ++i) {
    clients.push_back(Dial(port()));
    Send(clients.back(), Get("/events"));
  }
  for (const io::UniqueFd& client : clients) ReadThrough(client, ": ping");
  EXPECT_EQ(StatusOf(Talk(port(), Get("/yes"))), 200);
  const std::lock_guard<std::mutex> lock(mutex);
  EXPECT_EQ(streams.size(), 500u);
  streams.front()->Write("data: news\n\n");
  ReadThrough(clients.front(), "data: news");
}

// A stream whose caller has stopped reading waits for him, and its thread for both.
TEST_F(HttpServerTest, AStreamThatIsNotReadCostsNoTime) {
  HttpServer::Options options = Patient();
  options.limits.silence = std::chrono::milliseconds(1);
  Serve(
      [](const Stream& stream) {
        stream->Begin({200, "text/event-stream", "", {}}, /*events=*/true);
        stream->Write(std::string(64 << 20, 'x'));
      },
      options);
  const io::UniqueFd fd = Dial(port());
  Send(fd, Get("/"));
  ReadThrough(fd, "HTTP/1.1 200");
  const std::chrono::microseconds before = Computed();
  Clock::Real().Sleep(std::chrono::milliseconds(500));
  EXPECT_LT(Computed() - before, std::chrono::milliseconds(250));
}

// A handler's thread that waits, as the OpenAI-compatible endpoint's do.
TEST_F(HttpServerTest, ACallMayWaitForItsBodyAndItsReader) {
  std::deque<std::thread> threads;
  std::atomic<bool> all_written = false;
  Serve([&](const Stream& stream) {
    threads.emplace_back([&all_written, stream] {
      HttpCall::Shared shared;
      HttpCall call(stream, shared);
      const auto body = call.ReadBody(10);
      if (!body.ok()) {
        (void)call.Respond(Text(body.status().ToString()));
        return;
      }
      bool good = call.Begin(Text(""));
      for (int i = 0; i < 64 && good; ++i) good = call.Write(std::string(1 << 20, 'x'));
      all_written = good;
      (void)call.End();
    });
  });
  const std::string head =
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
  const io::UniqueFd fd = Dial(port());
  Send(fd, head + "hel");
  Send(fd, "lo");
  ReadThrough(fd, "HTTP/1.1 200");
  EXPECT_FALSE(all_written);  // it waits for who reads
  EXPECT_GT(ReadUntil(fd).size(), size_t{63} << 20);
  EXPECT_THAT(Talk(port(), "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"),
              HasSubstr("at most 10"));
  for (std::thread& thread : threads) thread.join();
}

// A client of TLS that trusts everybody.
std::string TalkTls(int port, const std::string& request, int version) {
  const io::UniqueFd fd = Dial(port);
  const tls::SslContext context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_min_proto_version(context.get(), version);
  SSL_CTX_set_max_proto_version(context.get(), version);
  const tls::Ssl ssl(SSL_new(context.get()));
  SSL_set_fd(ssl.get(), fd.get());
  if (SSL_connect(ssl.get()) != 1) return "";
  SSL_write(ssl.get(), request.data(), static_cast<int>(request.size()));
  std::string answer;
  char bytes[4096];
  for (int got = 0; (got = SSL_read(ssl.get(), bytes, sizeof(bytes))) > 0;) {
    answer.append(bytes, static_cast<size_t>(got));
  }
  return answer;
}

TEST_F(HttpServerTest, SpeaksTls) {
  std::signal(SIGPIPE, SIG_IGN);
  const WallTime now = Clock::Real().Wall();
  const tls::Validity validity{now - std::chrono::hours(1), now + std::chrono::hours(1)};
  tls::Identity authority = tls::MakeAuthority("test", validity).value();
  tls::Identity identity;
  identity.key_pem = tls::MakeKey().value();
  identity.certificate_pem =
      tls::SignServer(authority, identity.key_pem, {"127.0.0.1"}, validity).value() +
      authority.certificate_pem;
  const auto context = tls::ServerContext::Make(identity, "http/1.1").value();
  HttpServer::Options options = Patient();
  options.tls = context.get();
  Serve([](const Stream& stream) { stream->Respond(Text(std::string(1 << 20, 'x'))); }, options);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const std::string answer = TalkTls(port(), Get("/"), version);
    EXPECT_EQ(StatusOf(answer), 200) << version;
    EXPECT_GT(answer.size(), size_t{1} << 20) << version;
  }
  EXPECT_EQ(TalkTls(port(), Get("/"), TLS1_1_VERSION), "");
  // Who speaks no TLS is not answered, and holds up nobody.
  const io::UniqueFd silent = Dial(port());
  EXPECT_EQ(StatusOf(Talk(port(), Get("/"))), 0);
  EXPECT_EQ(StatusOf(TalkTls(port(), Get("/"), TLS1_3_VERSION)), 200);
  identity.key_pem = tls::MakeKey().value();
  EXPECT_TRUE(absl::IsInvalidArgument(tls::ServerContext::Make(identity, "http/1.1").status()));
}

// A page that is not ready until the test allows it.
class SlowPageTest : public testing::Test {
 protected:
  ~SlowPageTest() override { Release(); }
  void Serve(Nanos patience) {
    pages_ =
        std::make_unique<PageMakers>(std::vector<HttpPage>{{"/slow", [this] { return Make(); }},
                                                           {"/yes", [] { return Text("yes\n"); }}},
                                     patience);
    handler_ =
        std::make_unique<FakeHandler>([this](Stream stream) { pages_->Answer(std::move(stream)); });
    server_ = HttpServer::Start({"127.0.0.1", 0}, *handler_, Patient()).value();
  }
  HttpResponse Make() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++made_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
    return Text("at last\n");
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
  std::unique_ptr<PageMakers> pages_;
  std::unique_ptr<FakeHandler> handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(SlowPageTest, DoesNotBlockOthersAndIsMadeOnceForAllWaiters) {
  Serve(std::chrono::hours(1));
  const io::UniqueFd first = Dial(server_->port());
  Send(first, Get("/slow"));
  WaitUntilMade(1);
  std::vector<io::UniqueFd> more;
  for (int i = 0; i < 20; ++i) {
    more.push_back(Dial(server_->port()));
    Send(more.back(), Get("/slow"));
  }
  // Requested last, so that all others were read before it is answered.
  EXPECT_EQ(StatusOf(Talk(server_->port(), Get("/yes"))), 200);
  Release();
  EXPECT_THAT(ReadUntil(first), HasSubstr("at last"));
  for (const io::UniqueFd& fd : more) EXPECT_THAT(ReadUntil(fd), HasSubstr("at last"));
  EXPECT_EQ(made_, 2);
}

TEST_F(SlowPageTest, IsAnsweredWithoutItWhenItTakesTooLong) {
  Serve(std::chrono::milliseconds(1));
  EXPECT_EQ(StatusOf(Talk(server_->port(), Get("/slow"))), 503);
  Release();
}

}  // namespace
}  // namespace sft::server
