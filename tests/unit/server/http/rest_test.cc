// The REST API, sessions, the feed and the page's files, over HTTP to a whole server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "server/http/feed.h"
#include "tests/unit/server/http/http_client.h"
#include "tests/unit/server/services/secure_server.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr char kAny[] = "127.0.0.1:0";

int PortOf(const Server& server) {
  const std::string address = server.http_address();
  return std::stoi(address.substr(address.rfind(':') + 1));
}

std::string PostText(const std::string& path, const std::string& body,
                     const std::string& more = "") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n" +
         more + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == answer.npos ? "" : answer.substr(end + 4);
}

json JsonIn(const std::string& answer) { return ParseJson(BodyOf(answer)); }

// The value of a field of an answer's head.
std::string FieldOf(const std::string& answer, const std::string& name) {
  const size_t at = answer.find("\r\n" + name + ": ");
  if (at == answer.npos || at > answer.find("\r\n\r\n")) return "";
  const size_t begin = at + name.size() + 4;
  return answer.substr(begin, answer.find("\r\n", begin) - begin);
}

std::string Bearer(const std::string& token) { return "Authorization: Bearer " + token + "\r\n"; }

// A server that asks nobody for a token.
class RestTest : public ServicesTest {
 protected:
  RestTest() : ServicesTest(kAny) {}
  std::string Call(const std::string& method, const std::string& body,
                   const std::string& more = "") {
    return Talk(PortOf(*server_), PostText("/api/v1/" + method, body, more));
  }
  std::string GetPath(const std::string& path, const std::string& more = "") {
    return Talk(PortOf(*server_), Get(path, more));
  }
  std::string SubmitOne() {
    v1::UploadBlobResponse uploaded;
    EXPECT_TRUE(Upload(kTwoRows, &uploaded).ok());
    v1::Job job;
    EXPECT_TRUE(Submit(kTwoRowJob, &job).ok());
    return job.name();
  }
};

TEST_F(RestTest, AnswersInProtobufsJson) {
  const std::string answer = Call("ClusterService/GetServerInfo", "{}");
  EXPECT_EQ(StatusOf(answer), 200) << answer;
  EXPECT_EQ(FieldOf(answer, "Content-Type"), "application/json");
  EXPECT_EQ(FieldOf(answer, "Cache-Control"), "no-store");
  EXPECT_TRUE(JsonIn(answer).contains("version")) << answer;
  const std::string name = SubmitOne();
  for (const char* field : {"page_size", "pageSize"}) {
    const json listed = JsonIn(Call("JobService/ListJobs", "{\"" + std::string(field) + "\": 10}"));
    EXPECT_EQ(listed["jobs"][0]["name"], name);
    EXPECT_EQ(listed["jobs"][0]["state"], "PENDING");
    EXPECT_EQ(listed["next_page_token"], "");  // of default value
  }
  EXPECT_EQ(JsonIn(Call("JobService/GetJob", "{\"name\": \"" + name + "\"}"))["name"], name);
}

TEST_F(RestTest, RefusesWithTheStatusesOfHttp) {
  const auto status = [&](const std::string& method, const std::string& body) {
    return StatusOf(Call(method, body));
  };
  EXPECT_EQ(status("JobService/GetJob", "{\"nonsense\": 1}"), 400);
  EXPECT_EQ(status("JobService/GetJob", "{"), 400);
  EXPECT_EQ(status("JobService/GetJob", "[]"), 400);
  EXPECT_EQ(status("JobService/GetJob", std::string(5000, '[')), 400);
  EXPECT_EQ(status("JobService/GetJob", "{\"name\": \"\xff\"}"), 400);
  EXPECT_EQ(status("JobService/GetJob", "{\"name\": \"job-none\"}"), 404);
  EXPECT_EQ(status("JobService/GetJob", std::string((1 << 20) + 1, ' ')), 413);
  for (const char* method :
       {"JobService/None", "JobService", "", "JobService/GetJob/x", "JobService.GetJob",
        "WorkerService/AppendLog", "WorkerService/Session", "AuthService/Join",
        "DataService/UploadBlob"}) {
    EXPECT_EQ(status(method, "{}"), 404) << method;
  }
  const std::string told = Call("JobService/GetJob", "{\"name\": \"job-none\"}");
  EXPECT_EQ(JsonIn(told)["code"], "NOT_FOUND");
  EXPECT_EQ(JsonIn(told)["details"], json::array());
  EXPECT_EQ(FieldOf(told, "x-should-retry"), "false");
  const std::string got = GetPath("/api/v1/JobService/GetJob");
  EXPECT_EQ(StatusOf(got), 405);
  EXPECT_EQ(FieldOf(got, "Allow"), "POST");
  EXPECT_EQ(StatusOf(GetPath("/api/nothing")), 404);
  const int port = PortOf(*server_);
  EXPECT_EQ(StatusOf(Talk(port,
                          "POST /api/v1/JobService/ListJobs HTTP/1.1\r\nHost: localhost\r\n"
                          "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}")),
            415);
  const json bad = JsonIn(Call("JobService/SubmitJob",
                               R"({"source_text": "[job]\nmodle = 1\n", "file_name": "j.toml"})"));
  EXPECT_EQ(bad["code"], "INVALID_ARGUMENT");
  ASSERT_FALSE(bad["details"].empty()) << bad;
  EXPECT_TRUE(bad["details"][0].contains("field") && bad["details"][0].contains("description"));
}

TEST_F(RestTest, MethodsThatSendSeveralMessagesAnswerWithEvents) {
  const std::string name = SubmitOne();
  const io::UniqueFd watch = Dial(PortOf(*server_));
  Send(watch, PostText("/api/v1/JobService/WatchJob", "{\"name\": \"" + name + "\"}"));
  EXPECT_THAT(ReadThrough(watch, "\"PENDING\""), HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_EQ(StatusOf(Call("JobService/CancelJob", "{\"name\": \"" + name + "\"}")), 200);
  EXPECT_THAT(ReadUntil(watch),
              testing::AllOf(HasSubstr("\"CANCELLED\""), HasSubstr("event: end\ndata: {}\n\n")));
  // One that begins with an error is answered with it.
  EXPECT_EQ(StatusOf(Call("JobService/WatchJob", "{\"name\": \"job-none\"}")), 404);
  EXPECT_EQ(StatusOf(Call("JobService/ReadTensorBoard", "{\"name\": \"job-none\"}")), 404);
  EXPECT_THAT(Call("JobService/ReadTensorBoard", "{\"name\": \"" + name + "\"}"),
              HasSubstr("event: end\ndata: {}\n\n"));
}

TEST_F(RestTest, PagesOfOtherSitesReachNothing) {
  for (const char* foreign :
       {"Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n", "Origin: null\r\n"}) {
    const std::string refused = Call("ClusterService/GetServerInfo", "{}", foreign);
    EXPECT_EQ(StatusOf(refused), 403) << foreign;
    EXPECT_THAT(refused, Not(HasSubstr("version")));
    EXPECT_EQ(StatusOf(GetPath("/api/v1/feed?jobs=1", foreign)), 403) << foreign;
  }
  const int port = PortOf(*server_);
  EXPECT_EQ(
      StatusOf(Talk(port, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")),
      421);
  EXPECT_EQ(StatusOf(Call("ClusterService/GetServerInfo", "{}", "Sec-Fetch-Site: same-origin\r\n")),
            200);
  EXPECT_THAT(Call("ClusterService/GetServerInfo", "{}"), Not(HasSubstr("Access-Control")));
}

TEST_F(RestTest, ThePageIsServedWithItsHeaders) {
  for (const char* path : {"/", "/jobs", "/jobs/job-x", "/fleet", "/jobs/job-x/log"}) {
    const std::string page =
        GetPath(path, "Sec-Fetch-Site: cross-site\r\n");  // from a link in a chat
    EXPECT_EQ(StatusOf(page), 200) << path;
    EXPECT_EQ(FieldOf(page, "Content-Type"), "text/html; charset=utf-8");
    EXPECT_EQ(FieldOf(page, "Cache-Control"), "no-cache");
    EXPECT_EQ(FieldOf(page, "Content-Security-Policy"),
              "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
              "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
              "require-trusted-types-for 'script'");
    EXPECT_EQ(FieldOf(page, "X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(FieldOf(page, "Referrer-Policy"), "no-referrer");
    EXPECT_EQ(FieldOf(page, "Cross-Origin-Opener-Policy"), "same-origin");
    EXPECT_EQ(FieldOf(page, "Strict-Transport-Security"), "");
  }
  const std::string page = GetPath("/");
  const size_t at = page.find("/assets/");
  ASSERT_NE(at, page.npos);
  const std::string asset = page.substr(at, page.find('"', at) - at);
  const std::string plain = GetPath(asset),
                    packed = GetPath(asset, "Accept-Encoding: br, gzip\r\n");
  EXPECT_EQ(FieldOf(plain, "Cache-Control"), "public, max-age=31536000, immutable") << asset;
  EXPECT_EQ(FieldOf(plain, "Content-Encoding"), "");
  EXPECT_EQ(FieldOf(packed, "Content-Encoding"), "gzip");
  EXPECT_EQ(BodyOf(packed).substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(StatusOf(GetPath("/assets/none.js")), 404);
  EXPECT_EQ(StatusOf(GetPath("/favicon.ico")), 200);
  EXPECT_EQ(StatusOf(Talk(PortOf(*server_), PostText("/", "{}"))), 405);
  const std::string head =
      Talk(PortOf(*server_), "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(StatusOf(head), 200);
  EXPECT_EQ(BodyOf(head), "");
}

TEST_F(RestTest, TheDescriptionNamesEachMethodAndEachCanBeCalled) {
  const json described = JsonIn(GetPath("/api/v1/openapi.json"));
  EXPECT_EQ(described["openapi"], "3.1.0");
  std::set<std::string> paths;
  for (const auto& [path, item] : described["paths"].items()) paths.insert(path);
  EXPECT_TRUE(paths.erase("/api/v1/feed"));
  std::set<std::string> of_users;
  for (const auto& [name, method] : server_->methods().all()) {
    if (!RestApi::Serves(method)) continue;
    std::string path = "/api/v1/" + name;
    path[path.find('.')] = '/';
    of_users.insert(path);
  }
  EXPECT_EQ(paths, of_users);
  // What a reference names is there.
  const std::function<void(const json&)> check = [&](const json& value) {
    if (value.is_object() && value.contains("$ref")) {
      const std::string name = value["$ref"].get<std::string>().substr(21);
      EXPECT_TRUE(described["components"]["schemas"].contains(name)) << name;
    }
    if (value.is_structured()) {
      for (const json& each : value) check(each);
    }
  };
  check(described);
  for (const std::string& path : paths) {
    const std::string answer = Talk(PortOf(*server_), PostText(path, "{}"));
    EXPECT_THAT(StatusOf(answer), testing::AnyOf(200, 400, 404, 503)) << path << answer;
    EXPECT_THAT(answer, Not(HasSubstr("there is no /api"))) << path;
  }
}

// Reads events of a feed until one of this name, and returns its data and id.
std::pair<json, std::string> NextEvent(const io::UniqueFd& feed, const std::string& name,
                                       std::string& so_far) {
  const std::string begin = "event: " + name + "\n";
  while (true) {
    const size_t at = so_far.find(begin);
    const size_t end = at == so_far.npos ? at : so_far.find("\n\n", at);
    if (end != so_far.npos) {
      const std::string event = so_far.substr(at, end - at);
      so_far.erase(0, end + 2);
      const size_t id = event.find("id: "), data = event.find("data: ");
      return {ParseJson(event.substr(data + 6)),
              id == event.npos ? "" : event.substr(id + 4, event.find('\n', id) - id - 4)};
    }
    char bytes[4096];
    const ssize_t got = ::read(feed.get(), bytes, sizeof(bytes));
    if (got <= 0) return {json(), "ended"};
    so_far.append(bytes, static_cast<size_t>(got));
  }
}

TEST_F(RestTest, TheFeedFollowsAJobToItsEnd) {
  const std::string name = SubmitOne();
  const io::UniqueFd feed = Dial(PortOf(*server_));
  Send(feed, Get("/api/v1/feed?job=" + name + "&metrics=0&log=0:0"));
  std::string so_far;
  EXPECT_EQ(NextEvent(feed, "job", so_far).first["state"], "PENDING");
  EXPECT_EQ(StatusOf(Call("JobService/CancelJob", "{\"name\": \"" + name + "\"}")), 200);
  const auto [job, id] = NextEvent(feed, "job", so_far);
  EXPECT_EQ(job["state"], "CANCELLED");
  EXPECT_THAT(id, HasSubstr("m0;l0:"));
  EXPECT_EQ(NextEvent(feed, "end", so_far).first, json::object());
  EXPECT_EQ(NextEvent(feed, "job", so_far).second, "ended");
  EXPECT_EQ(StatusOf(GetPath("/api/v1/feed?job=job-none")), 404);
  EXPECT_EQ(StatusOf(GetPath("/api/v1/feed?nonsense=1")), 400);
  const std::string twice = GetPath("/api/v1/feed?job=" + name + "&log=1:0&log=0:0&log=1:9");
  EXPECT_EQ(StatusOf(twice), 400);
  EXPECT_THAT(twice, HasSubstr("each rank is named once"));
}

TEST_F(RestTest, TheFeedTellsOfListsOnceASecond) {
  const io::UniqueFd feed = Dial(PortOf(*server_));
  Send(feed, Get("/api/v1/feed?jobs=1&nodes=1"));
  ReadThrough(feed, "\r\n\r\n");
  const std::string first = SubmitOne();
  std::string so_far;
  const auto [jobs, cursor] = NextEvent(feed, "jobs", so_far);
  const std::string id = first.substr(first.rfind('/') + 1);
  EXPECT_EQ(jobs["changed"], json::array({id}));
  // Who comes again with the cursor misses nothing that came since.
  const MonoTime before = Clock::Real().Mono();
  EXPECT_EQ(StatusOf(Call("JobService/CancelJob", "{\"name\": \"" + first + "\"}")), 200);
  const io::UniqueFd again = Dial(PortOf(*server_));
  Send(again, Get("/api/v1/feed?jobs=1&nodes=1", "Last-Event-ID: " + cursor + "\r\n"));
  std::string of_again;
  EXPECT_EQ(NextEvent(again, "jobs", of_again).first["changed"], json::array({id}));
  EXPECT_EQ(NextEvent(feed, "jobs", so_far).first["changed"], json::array({id}));
  EXPECT_GT(Clock::Real().Mono() - before, Feed::kListPause / 4);
  // After a restart nobody knows what has changed: everything may have.
  server_.reset();
  EXPECT_EQ(NextEvent(again, "jobs", of_again).second, "ended");
  Start();
  const io::UniqueFd later = Dial(PortOf(*server_));
  Send(later, Get("/api/v1/feed?jobs=1", "Last-Event-ID: " + cursor + "\r\n"));
  std::string of_later;
  EXPECT_EQ(NextEvent(later, "jobs", of_later).first["changed"], json::array());
}

TEST_F(RestTest, ManySilentFeedsHoldNoThreads) {
  std::vector<io::UniqueFd> feeds;
  for (int i = 0; i < 500; ++i) {
    feeds.push_back(Dial(PortOf(*server_)));
    Send(feeds.back(), Get("/api/v1/feed?jobs=1"));
  }
  for (const io::UniqueFd& feed : feeds) EXPECT_EQ(StatusOf(ReadThrough(feed, "\r\n\r\n")), 200);
  const std::string name = SubmitOne();
  for (const io::UniqueFd& feed : feeds) ReadThrough(feed, "\"changed\":");
  EXPECT_EQ(StatusOf(Call("ClusterService/GetServerInfo", "{}")), 200);
}

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
    const std::string content(kManyBytes, 'x');
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

TEST(SessionEndpointTest, OnlyTheEndOfASessionWakesWhoFollows) {
  FakeClock clock;
  const auto store = Store::Open({.path = ":memory:", .own_thread = false}).value();
  const auto access = Access::Load(*store, clock, std::nullopt).value();
  Gate gate(*access, *store, clock, /*open=*/false);
  WebSessions sessions(clock);
  ChangeHub hub;
  std::atomic<int> woken = 0;
  const auto subscription = hub.Subscribe({"job"}, [&] { ++woken; }).value();
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
  const std::string secret = sessions.Open("token");
  EXPECT_EQ(log_out(secret), 204);
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(log_out(secret), 204);
  EXPECT_EQ(woken, 1);
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
