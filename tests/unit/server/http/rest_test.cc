// The REST API, the feed and the page's files, over HTTP to a whole server.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/http/feed.h"
#include "tests/unit/server/http/rest_client.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

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

TEST_F(RestTest, AListHasNoOtherFieldsThanItIsAskedFor) {
  const std::string name = SubmitOne();
  const json listed =
      JsonIn(Call("JobService/ListJobs", "{\"fields\": [\"state\", \"group\", \"create_time\"]}"));
  ASSERT_EQ(listed["jobs"].size(), 1u);
  const json& job = listed["jobs"][0];
  EXPECT_EQ(job.size(), 3u) << job.dump();
  EXPECT_EQ(job["name"], name);
  EXPECT_EQ(job["state"], "PENDING");
  EXPECT_TRUE(job.contains("create_time"));
  const std::string refused = Call("JobService/ListJobs", "{\"fields\": [\"stat\"]}");
  EXPECT_EQ(StatusOf(refused), 400);
  EXPECT_THAT(refused, HasSubstr("has no \\\"stat\\\"; there are name, kind, state"));
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
        "WorkerService/SendFile"}) {
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
  std::set<std::string> of_users, uploads;
  for (const auto& [name, method] : server_->methods().all()) {
    const bool is_upload = RestApi::ServesUpload(method);
    if (!RestApi::Serves(method) && !is_upload) continue;
    std::string path = "/api/v1/" + name;
    path[path.find('.')] = '/';
    of_users.insert(path);
    if (is_upload) uploads.insert(path);
  }
  EXPECT_EQ(paths, of_users);
  EXPECT_EQ(uploads, std::set<std::string>{"/api/v1/DataService/UploadBlob"});
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
    const io::UniqueFd fd = Dial(PortOf(*server_));
    Send(fd, PostText(path, "{}"));
    // What follows something has no end.
    const std::string answer = ReadUntil(fd, [](const std::string& so_far) {
      return so_far.find("text/event-stream") != so_far.npos;
    });
    if (uploads.contains(path)) {
      EXPECT_EQ(StatusOf(answer), 415) << path << answer;  // JSON is no data set
      continue;
    }
    EXPECT_THAT(StatusOf(answer), testing::AnyOf(200, 400, 404, 503)) << path << answer;
    EXPECT_THAT(answer, Not(HasSubstr("there is no /api"))) << path;
  }
}

// Links, pictures and reloads send GETs, with cookies: no method is called by one, nor by anything
// but its own.
TEST_F(RestTest, OnlyTheMethodOfHttpThatChangesIsOneThatNoLinkSends) {
  const int port = PortOf(*server_);
  for (const auto& [name, method] : server_->methods().all()) {
    if (!RestApi::Serves(method) && !RestApi::ServesUpload(method)) continue;
    std::string path = "/api/v1/" + name;
    path[path.find('.')] = '/';
    for (const char* verb : {"GET", "HEAD", "DELETE", "PATCH", "OPTIONS", "post"}) {
      const std::string answer =
          Talk(port, fmt::format("{} {}?name=x HTTP/1.1\r\nHost: localhost\r\nConnection: "
                                 "close\r\nContent-Type: application/json\r\n\r\n",
                                 verb, path));
      EXPECT_EQ(StatusOf(answer), 405) << verb << path << answer;
      EXPECT_THAT(answer, Not(HasSubstr("Access-Control"))) << verb << path;
    }
  }
}

TEST_F(RestTest, AZeroInAQueryIsRefused) {
  for (const char* query : {"job=a%00b", "jobs=1%00", "%00=1", "job=%0", "job=a&cursor=m%001"}) {
    EXPECT_EQ(StatusOf(GetPath(std::string("/api/v1/feed?") + query)), 400) << query;
  }
  const std::string upload = Talk(
      PortOf(*server_),
      "POST /api/v1/DataService/UploadBlob?purpose=DATASET&size=2&display_name=a%00b HTTP/1.1\r\n"
      "Host: localhost\r\nConnection: close\r\nContent-Type: application/octet-stream\r\n"
      "Content-Length: 2\r\n\r\n{}");
  EXPECT_EQ(StatusOf(upload), 400) << upload;
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

}  // namespace
}  // namespace sft::server
