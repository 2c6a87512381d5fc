// Who may do what over HTTP: tokens, sessions, names by which a server is reached.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/http/rest_api.h"
#include "server/http/session_endpoint.h"
#include "tests/unit/server/http/rest_client.h"
#include "tests/unit/server/services/secure_server.h"

namespace sft::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// A server that asks for tokens.
class SecureRestTest : public SecureServerTest {
 protected:
  SecureRestTest() : SecureServerTest(kAny) {}
  std::string Call(const std::string& method, const std::string& body, const std::string& more) {
    return Talk(PortOf(*server_), PostText("/api/v1/" + method, body, more));
  }
  std::string Session(const std::string& body) {
    return Talk(PortOf(*server_), PostText("/session", body));
  }
  // "Cookie: __Host-sft=..." of an answer that sets it.
  static std::string CookieOf(const std::string& answer) {
    const std::string set = FieldOf(answer, "Set-Cookie");
    EXPECT_THAT(set, HasSubstr("; Path=/; Secure; HttpOnly; SameSite=Strict"));
    return "Cookie: " + set.substr(0, set.find(';')) + "\r\n";
  }
  std::string WhoAmI(const std::string& more) { return Call("AuthService/WhoAmI", "{}", more); }
};

TEST_F(SecureRestTest, RightsAreThoseOfEveryTransport) {
  const std::string ann = UserToken("ann", "alpha", v1::SUBMITTER);
  const std::string vic = UserToken("vic", "alpha", v1::VIEWER);
  const std::string bob = UserToken("bob", "beta", v1::SUBMITTER);
  v1::Job job;
  WatchOfNewJob(With(ann), &job);
  const std::string named = "{\"name\": \"" + job.name() + "\"}";
  for (const char* method :
       {"JobService/GetJob", "JobService/WatchJob", "JobService/ReadTensorBoard"}) {
    EXPECT_EQ(StatusOf(Call(method, named, "")), 401) << method;
    EXPECT_EQ(StatusOf(Call(method, named, Bearer(bob))), 404) << method;
  }
  EXPECT_EQ(StatusOf(Talk(PortOf(*server_), Get("/api/v1/feed?job=" + job.name(), Bearer(bob)))),
            404);
  EXPECT_EQ(StatusOf(Talk(PortOf(*server_), Get("/api/v1/feed?jobs=1"))), 401);
  EXPECT_EQ(StatusOf(Talk(PortOf(*server_), Get("/api/v1/openapi.json"))), 200);  // no data
  EXPECT_EQ(StatusOf(Call("JobService/GetJob", named, Bearer(vic))), 200);
  EXPECT_EQ(StatusOf(Call("JobService/CancelJob", named, Bearer(vic))), 403);
  EXPECT_EQ(StatusOf(Call("AuthService/ListUsers", "{}", Bearer(ann))), 403);
  EXPECT_EQ(FieldOf(Call("JobService/GetJob", named, ""), "WWW-Authenticate"), "Bearer");
  EXPECT_EQ(StatusOf(Call("JobService/CancelJob", named, Bearer(ann))), 200);
  const std::vector<v1::AuditRecord> audit = Audit();
  const auto cancelled = std::ranges::find_if(audit, [](const v1::AuditRecord& record) {
    return record.method() == "JobService.CancelJob" && record.outcome() == "OK";
  });
  ASSERT_NE(cancelled, audit.end());
  EXPECT_EQ(cancelled->principal(), "ann");
  EXPECT_THAT(cancelled->peer(), testing::StartsWith("ipv4:127.0.0.1:"));
}

TEST_F(SecureRestTest, NothingIsReadOfWhoIsNobody) {
  const io::UniqueFd fd = Dial(PortOf(*server_));
  Send(fd,
       "POST /api/v1/JobService/ListJobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
       "application/json\r\n"
       "Content-Length: 1000000\r\n\r\n");
  EXPECT_EQ(StatusOf(ReadUntil(fd)), 401);
}

TEST_F(SecureRestTest, ASessionStandsForItsToken) {
  const std::string ann = UserToken("ann", "alpha", v1::SUBMITTER);
  EXPECT_EQ(StatusOf(WhoAmI("")), 401);
  EXPECT_EQ(StatusOf(Session("{\"token\": \"sft_none_none\"}")), 401);
  EXPECT_EQ(StatusOf(Session("{\"token\": \"" + join_token_ + "\"}")), 401);
  EXPECT_EQ(StatusOf(Session("{}")), 400);
  EXPECT_EQ(StatusOf(Session("rubbish")), 400);
  const std::string opened = Session("{\"token\": \"" + ann + "\"}");
  EXPECT_EQ(StatusOf(opened), 204);
  const std::string cookie = CookieOf(opened);
  EXPECT_EQ(cookie.find(ann), cookie.npos);
  EXPECT_EQ(JsonIn(WhoAmI(cookie))["user"]["name"], "ann");
  // A token that is shown counts, whatever cookie comes with it.
  EXPECT_EQ(JsonIn(WhoAmI(cookie + Bearer(admin_token_)))["user"]["name"], "admin");
  EXPECT_EQ(StatusOf(WhoAmI(cookie + Bearer("sft_none_none"))), 401);
  EXPECT_EQ(StatusOf(WhoAmI("Cookie: __Host-sft=none\r\n")), 401);
  // Its streams end with it.
  const io::UniqueFd feed = Dial(PortOf(*server_));
  Send(feed, Get("/api/v1/feed?jobs=1", cookie));
  EXPECT_EQ(StatusOf(ReadThrough(feed, "\r\n\r\n")), 200);
  const std::string ended = Talk(
      PortOf(*server_),
      "DELETE /session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + cookie + "\r\n");
  EXPECT_EQ(StatusOf(ended), 204);
  EXPECT_THAT(FieldOf(ended, "Set-Cookie"), HasSubstr("Max-Age=0"));
  EXPECT_THAT(ReadUntil(feed), Not(HasSubstr("event: end")));
  EXPECT_EQ(StatusOf(WhoAmI(cookie)), 401);
}

constexpr size_t kManyBytes = 24 << 20;  // more than sockets take of what nobody reads

// A download of alpha's large data set.
class DownloadTest : public SecureRestTest {
 protected:
  DownloadTest() {
    const auto stub = v1::DataService::NewStub(With(ann_));
    grpc::ClientContext context;
    v1::UploadBlobResponse response;
    const auto writer = stub->UploadBlob(&context, &response);
    std::string content;
    while (content.size() < kManyBytes) {
      content += "{\"text\":\"" + std::string((1 << 20) - 12, 'x') + "\"}\n";
    }
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(kManyBytes);
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    body_ = "{\"sha256\": \"" + message.sha256() + "\"}";
    for (size_t at = 0; at < kManyBytes; at += 1 << 20) {
      message.set_data(content.substr(at, 1 << 20));
      writer->Write(message);
      message.Clear();
    }
    writer->WritesDone();
    const grpc::Status uploaded = writer->Finish();
    EXPECT_TRUE(uploaded.ok()) << uploaded.error_message();
  }
  // One that has begun, of which no more is read than its head; and its status.
  std::pair<io::UniqueFd, int> Begin(const std::string& more) {
    io::UniqueFd fd = Dial(PortOf(*server_));
    Send(fd, PostText("/api/v1/DataService/DownloadBlob", body_, more));
    const int status = StatusOf(ReadThrough(fd, "\r\n\r\n"));
    return {std::move(fd), status};
  }

  const std::string ann_ = UserToken("ann", "alpha", v1::SUBMITTER);
  std::string body_;
};

TEST_F(DownloadTest, EndsWithItsSession) {
  const std::string cookie = CookieOf(Session("{\"token\": \"" + ann_ + "\"}"));
  const auto [whole, of_whole] = Begin(cookie);
  EXPECT_EQ(of_whole, 200);
  EXPECT_NE(ReadUntil(whole).find("event: end"), std::string::npos);
  const auto [download, status] = Begin(cookie);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(StatusOf(Talk(PortOf(*server_),
                          "DELETE /session HTTP/1.1\r\nHost: localhost\r\nConnection: "
                          "close\r\n" +
                              cookie + "\r\n")),
            204);
  const std::string rest = ReadUntil(download);
  EXPECT_THAT(rest.size(), testing::Lt(kManyBytes));
  EXPECT_EQ(rest.find("event: "), rest.npos);
}

TEST_F(DownloadTest, OfOneCallerLeaveThreadsToOthers) {
  const std::string bob = UserToken("bob", "alpha", v1::VIEWER);
  std::vector<io::UniqueFd> held;
  for (int i = 0; i < RestApi::kStreamThreadsOfOne; ++i) {
    auto [fd, status] = Begin(Bearer(ann_));
    EXPECT_EQ(status, 200) << i;
    held.push_back(std::move(fd));
  }
  EXPECT_EQ(Begin(Bearer(ann_)).second, 429);
  EXPECT_EQ(Begin(Bearer(bob)).second, 200);
  held.pop_back();
  while (Begin(Bearer(ann_)).second == 429) std::this_thread::yield();
}

// Behind a proxy, which has another name.
class ProxiedTest : public SecureServerTest {
 protected:
  ProxiedTest() : SecureServerTest(kAny, {"sft.example.org"}) {}
  int Metrics(const std::string& host, const std::string& more = "") {
    return StatusOf(Talk(PortOf(*server_), "GET /metrics HTTP/1.1\r\nHost: " + host +
                                               "\r\nConnection: close\r\n" + more + "\r\n"));
  }
};

TEST_F(ProxiedTest, FiguresOfAllProjectsAreForAdmins) {
  const std::string site = "sft.example.org";
  for (const char* own : {"127.0.0.1:7071", "localhost", "[::1]:7071"}) {
    EXPECT_EQ(Metrics(own), 200) << own;
  }
  EXPECT_EQ(Metrics(site), 401);
  EXPECT_EQ(StatusOf(Talk(PortOf(*server_), "GET /metrics HTTP/1.0\r\n\r\n")), 401);
  EXPECT_EQ(Metrics(site, Bearer(UserToken("ann", "alpha", v1::SUBMITTER))), 403);
  EXPECT_EQ(Metrics(site, Bearer(UserToken("eve", "", v1::VIEWER))), 403);
  EXPECT_EQ(Metrics(site, Bearer(join_token_)), 403);
  EXPECT_EQ(Metrics(site, Bearer(admin_token_)), 200);
  const std::vector<v1::AuditRecord> audit = Audit();
  EXPECT_TRUE(std::ranges::any_of(audit, [](const v1::AuditRecord& record) {
    return record.method() == "metrics" && record.principal() == "ann";
  }));
}

TEST_F(SecureRestTest, ARevokedTokenEndsItsSessions) {
  const std::string ann = UserToken("ann", "alpha", v1::SUBMITTER);
  const std::string cookie = CookieOf(Session("{\"token\": \"" + ann + "\"}"));
  const io::UniqueFd feed = Dial(PortOf(*server_));
  Send(feed, Get("/api/v1/feed?jobs=1", cookie));
  EXPECT_EQ(StatusOf(ReadThrough(feed, "\r\n\r\n")), 200);
  EXPECT_EQ(StatusOf(Call("AuthService/RevokeToken",
                          "{\"id\": \"" + last_token_.token().id() + "\"}", Bearer(admin_token_))),
            200);
  EXPECT_THAT(ReadUntil(feed), HasSubstr("UNAUTHENTICATED"));
  EXPECT_EQ(StatusOf(WhoAmI(cookie)), 401);
}

TEST_F(SecureRestTest, ACodeOpensASessionOnce) {
  const json made =
      JsonIn(Call("WebService/CreateCode", "{}", Bearer(UserToken("ann", "alpha", v1::VIEWER))));
  EXPECT_EQ(made["url"], "http://" + server_->http_address());
  const std::string body = "{\"code\": \"" + made["code"].get<std::string>() + "\"}";
  const std::string opened = Session(body);
  EXPECT_EQ(StatusOf(opened), 204);
  EXPECT_EQ(JsonIn(WhoAmI(CookieOf(opened)))["user"]["name"], "ann");
  EXPECT_EQ(StatusOf(Session(body)), 401);
  EXPECT_EQ(StatusOf(Session("{\"code\": \"x\", \"token\": \"y\"}")), 400);
  // Another site's page opens none.
  EXPECT_EQ(StatusOf(Talk(PortOf(*server_),
                          PostText("/session", body, "Sec-Fetch-Site: cross-site\r\n"))),
            403);
}

TEST(WebSessionsTest, EndWhenIdleAndCodesInAMinute) {
  FakeClock clock;
  WebSessions sessions(clock);
  const std::string secret = sessions.Open("token");
  clock.Advance(WebSessions::kIdle - std::chrono::seconds(1));
  EXPECT_EQ(sessions.TokenOf(secret), "token");
  clock.Advance(WebSessions::kIdle - std::chrono::seconds(1));
  EXPECT_TRUE(sessions.Has(secret));
  EXPECT_EQ(sessions.TokenOf("another"), "");
  clock.Advance(std::chrono::seconds(1));
  EXPECT_FALSE(sessions.Has(secret));
  EXPECT_EQ(sessions.TokenOf(secret), "");
  const std::string code = sessions.MakeCode("token"), late = sessions.MakeCode("token");
  EXPECT_EQ(sessions.TakeCode(code), "token");
  EXPECT_EQ(sessions.TakeCode(code), std::nullopt);
  clock.Advance(WebSessions::kCodeLife);
  EXPECT_EQ(sessions.TakeCode(late), std::nullopt);
}

TEST(WebSessionsTest, WhoOpensManyEndsHisOwn) {
  FakeClock clock;
  WebSessions sessions(clock);
  const std::string of_ann = sessions.Open("ann"), code_of_ann = sessions.MakeCode("ann");
  const std::string first = sessions.Open("bob"), used = sessions.Open("bob");
  const std::string first_code = sessions.MakeCode("bob");
  for (size_t i = 1; i < WebSessions::kMost; ++i) {
    EXPECT_EQ(sessions.TokenOf(used), "bob");
    sessions.Open("bob");
    sessions.MakeCode("bob");
  }
  EXPECT_TRUE(sessions.Has(of_ann));
  EXPECT_FALSE(sessions.Has(first));
  EXPECT_TRUE(sessions.Has(used));
  EXPECT_EQ(sessions.TakeCode(first_code), std::nullopt);
  EXPECT_EQ(sessions.TakeCode(code_of_ann), "ann");
}

TEST(SessionEndpointTest, OnlyTheEndOfASessionWakesItsUsersFollowers) {
  FakeClock clock;
  const auto store = Store::Open({.path = ":memory:", .own_thread = false}).value();
  const auto access = Access::Load(*store, clock, std::nullopt).value();
  ASSERT_TRUE(access->PutUser({"ann", false, {}}).ok());
  TokenRecord token;
  token.user = "ann";
  ASSERT_TRUE(access->CreateToken(token).ok());
  Gate gate(*access, *store, clock, /*open=*/false);
  WebSessions sessions(clock);
  ChangeHub hub;
  std::atomic<int> woken = 0, of_others = 0;
  const auto hers = hub.Subscribe({"job", ChangeHub::UserKey("ann")}, [&] { ++woken; }).value();
  const auto bobs = hub.Subscribe({"job", ChangeHub::UserKey("bob")}, [&] { ++of_others; }).value();
  SessionEndpoint endpoint(gate, sessions, hub);
  FakeHandler handler([&](std::shared_ptr<HttpStream> stream) { endpoint.Handle(stream); });
  const auto server = HttpServer::Start({"127.0.0.1", 0}, handler).value();
  const auto log_out = [&](const std::string& secret) {
    return StatusOf(Talk(server->port(),
                         "DELETE /session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                         "Cookie: __Host-sft=" +
                             secret + "\r\n\r\n"));
  };
  EXPECT_EQ(log_out("none"), 204);
  EXPECT_EQ(woken, 0);
  const std::string secret = sessions.Open(token.id);
  EXPECT_EQ(log_out(secret), 204);
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(log_out(secret), 204);
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(of_others, 0);
}

TEST_F(SecureRestTest, WithoutThePageThereIsOnlyWhatThereWas) {
  const std::string dir = io::MakeTempDir("rest-test").value();
  Server::Settings settings;
  settings.data_dir = dir;
  settings.listen = {"127.0.0.1", 0};
  settings.http = kAny;
  const auto server = Server::Start(settings, Clock::Real()).value();
  EXPECT_EQ(server->web_url(), "");
  EXPECT_EQ(StatusOf(Talk(PortOf(*server), Get("/healthz"))), 200);
  for (const char* path : {"/", "/api/v1/openapi.json", "/session", "/assets/icon.svg"}) {
    EXPECT_EQ(StatusOf(Talk(PortOf(*server), Get(path))), 404) << path;
  }
  // Of an open server others on the network get nothing.
  settings.http = "0.0.0.0:0";
  settings.data_dir = io::MakeTempDir("rest-test").value();
  EXPECT_TRUE(absl::IsPermissionDenied(Server::Start(settings, Clock::Real()).status()));
  // Nor by the name of a proxy.
  settings.http = kAny;
  settings.web.names = {"sft.example.org"};
  const absl::Status published = Server::Start(settings, Clock::Real()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(published)) << published;
  EXPECT_THAT(std::string(Message(published)), HasSubstr("sft.example.org"));
  settings.web.names = {"localhost"};
  EXPECT_TRUE(Server::Start(settings, Clock::Real()).ok());
  (void)io::RemoveAll(dir);
  (void)io::RemoveAll(settings.data_dir);
}

}  // namespace
}  // namespace sft::server
