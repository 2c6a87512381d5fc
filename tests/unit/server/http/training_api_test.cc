// Uploads over REST, and OpenAI's files and fine-tuning jobs, over HTTP to a whole server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/blob/metric_log.h"
#include "server/http/files_call.h"
#include "tests/unit/server/http/rest_client.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TrainingApiTest : public ServicesTest {
 protected:
  TrainingApiTest() : ServicesTest(kAny) {}
  int port() const { return PortOf(*server_); }
  std::string Ask(const std::string& method, const std::string& path,
                  const std::string& more = "") {
    return Talk(port(), method + " " + path +
                            " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + more +
                            "\r\n");
  }
  std::string Post(const std::string& path, const std::string& body, const std::string& more = "") {
    return Talk(port(), PostText(path, body, more));
  }
  std::string Send(const std::string& query, const std::string& body,
                   const std::string& more = "") {
    return Talk(port(), "POST /api/v1/DataService/UploadBlob?" + query +
                            " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                            "Content-Type: application/octet-stream\r\n" +
                            more + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                            body);
  }
  std::string PostForm(const std::string& body, const std::string& more = "") {
    return Talk(port(),
                "POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                "Content-Type: multipart/form-data; boundary=b\r\n" +
                    more + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  static std::string Part(const std::string& name, const std::string& content) {
    return "--b\r\nContent-Disposition: form-data; name=" + name + "\r\n\r\n" + content + "\r\n";
  }
  static std::string Form(const std::string& rows, const std::string& name = "rows.jsonl") {
    return Part("purpose", "fine-tune") + Part("file; filename=\"" + name + "\"", rows) + "--b--";
  }
  std::string UploadFile(const std::string& rows = kTwoRows, const std::string& more = "") {
    const std::string answer = PostForm(Form(rows), more);
    EXPECT_EQ(StatusOf(answer), 200) << answer;
    return JsonIn(answer).value("id", "");
  }
  json Job(const std::string& file, const json& changes = json::object()) {
    json job = {
        {"model", "/models/tiny"}, {"training_file", file}, {"sft", {{"variant", "CPU-1x"}}}};
    job.update(changes);
    return job;
  }
  std::string Create(const json& job, const std::string& more = "") {
    return Post("/v1/fine_tuning/jobs", job.dump(), more);
  }
  int Jobs() {
    v1::ListJobsRequest request;
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(jobs_->ListJobs(&context, request, &response).ok());
    return response.jobs_size();
  }
  static std::string ParamIn(const std::string& answer) {
    const json param = JsonIn(answer)["error"]["param"];
    return param.is_string() ? param.get<std::string>() : "";
  }
};

TEST_F(TrainingApiTest, ARawBodyIsUploadedAndResumed) {
  const std::string rows = kTwoRows, hash = io::Sha256Hex(rows);
  const std::string size = std::to_string(rows.size());
  const std::string query = "purpose=DATASET&display_name=rows.jsonl&sha256=" + hash;
  // What came before its connection broke is kept.
  {
    const io::UniqueFd fd = Dial(port());
    server::Send(fd,
                 "PUT /api/v1/DataService/UploadBlob?" + query +
                     " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
                     "Content-Length: " +
                     size + "\r\n\r\n" + rows.substr(0, 5));
    const std::string stat = R"({"purpose": "DATASET", "sha256": ")" + hash + "\"}";
    while (JsonIn(Post("/api/v1/DataService/StatBlob", stat))["received"] != "5") {
      Clock::Real().Sleep(std::chrono::milliseconds(5));
    }
  }
  std::string answer;
  // Until the server has seen that it has gone.
  do {
    answer = Send(query + "&offset=5&size=" + size, rows.substr(5));
  } while (StatusOf(answer) == 409 && JsonIn(answer)["code"] == "ABORTED");
  EXPECT_EQ(StatusOf(answer), 200) << answer;
  EXPECT_EQ(JsonIn(answer)["blob"]["sha256"], hash);
  EXPECT_EQ(JsonIn(answer)["rows"], "2");
  // One whose name the server finds.
  const std::string other = Send("purpose=DATASET", "{\"text\": \"c\"}\n");
  EXPECT_EQ(JsonIn(other)["blob"]["sha256"], io::Sha256Hex("{\"text\": \"c\"}\n")) << other;
  // In chunks, of which only the query tells how many bytes come.
  const std::string chunked =
      " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/octet-stream"
      "\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"text\":\"d\"}\n\r\n0\r\n\r\n";
  const std::string path = "POST /api/v1/DataService/UploadBlob?purpose=DATASET";
  EXPECT_EQ(StatusOf(Talk(port(), path + chunked)), 400);
  EXPECT_EQ(StatusOf(Talk(port(), path + "&size=100" + chunked)), 200);
}

TEST_F(TrainingApiTest, AnUploadThatIsNoneIsRefused) {
  const std::string rows = kTwoRows, hash = io::Sha256Hex(rows);
  const std::string query = "purpose=DATASET&sha256=" + hash;
  for (const auto& [wrong, status] :
       std::map<std::string, int>{{"purpose=ARTIFACT&size=3", 400},
                                  {"purpose=NONSENSE", 400},
                                  {"size=3", 400},
                                  {"purpose=DATASET&nonsense=1", 400},
                                  {"purpose=DATASET&data=x", 400},
                                  {"purpose=DATASET&size=x", 400},
                                  {"purpose=DATASET&size=-1", 400},
                                  {"purpose=DATASET&purpose=DATASET", 400},
                                  {"purpose=DATASET&offset=3", 400},
                                  {"purpose=DATASET&sha256=abc", 400},
                                  {"purpose=DATASET&size=3", 400},
                                  {query + "&offset=3", 409},
                                  {query + "&size=1000", 409},
                                  {"purpose=DATASET&sha256=" + std::string(64, '0'), 400},
                                  {"%", 400}}) {
    const std::string answer = Send(wrong, rows);
    EXPECT_EQ(StatusOf(answer), status) << wrong << answer;
    EXPECT_TRUE(JsonIn(answer).contains("code")) << answer;
  }
  EXPECT_EQ(StatusOf(Send("purpose=DATASET", "not json\n")), 400);
  EXPECT_EQ(StatusOf(Send("purpose=DATASET", "")), 400);
  EXPECT_EQ(StatusOf(Post("/api/v1/DataService/UploadBlob?" + query, rows)), 415);
  EXPECT_EQ(StatusOf(Ask("GET", "/api/v1/DataService/UploadBlob?" + query)), 405);
  EXPECT_EQ(StatusOf(Send(query, rows, "Origin: http://evil.example\r\n")), 403);
  // More than there is room for is refused before a byte of it is read.
  const std::string huge =
      Talk(port(),
           "POST /api/v1/DataService/UploadBlob?purpose=DATASET HTTP/1.1\r\nHost: 127.0.0.1\r\n"
           "Content-Type: application/octet-stream\r\nContent-Length: 1000000000000000\r\n\r\n");
  EXPECT_EQ(StatusOf(huge), 429) << huge;
  EXPECT_EQ(FieldOf(huge, "x-should-retry"), "false");
  // What has a name is kept for who sends the rest, nothing else is.
  EXPECT_THAT(io::ListDir(dir_ + "/blobs/uploads").value(),
              testing::ElementsAre(hash + ".default.part"));
}

TEST_F(TrainingApiTest, TheDescriptionHasTheUpload) {
  const json paths = JsonIn(Ask("GET", "/api/v1/openapi.json"))["paths"];
  const json post = paths["/api/v1/DataService/UploadBlob"]["post"];
  EXPECT_TRUE(post["requestBody"]["content"].contains("application/octet-stream")) << post;
  std::set<std::string> names;
  for (const json& each : post["parameters"]) names.insert(each["name"]);
  EXPECT_TRUE(names.contains("sha256") && names.contains("offset") && !names.contains("data"));
}

TEST_F(TrainingApiTest, AFileLivesFromItsUploadToItsEnd) {
  const std::string id = UploadFile();
  EXPECT_TRUE(id.starts_with("file-")) << id;
  const json got = JsonIn(Ask("GET", "/v1/files/" + id));
  EXPECT_EQ(got["filename"], "rows.jsonl");
  EXPECT_EQ(got["bytes"], std::string(kTwoRows).size());
  EXPECT_EQ(got["purpose"], "fine-tune");
  EXPECT_EQ(got["status"], "processed");
  const std::string content = Ask("GET", "/v1/files/" + id + "/content");
  EXPECT_THAT(content, AllOf(HasSubstr("Content-Disposition: attachment\r\n"),
                             HasSubstr("{\"text\":\"a\"}\n{\"text\":\"b\"}\n")));
  // The same bytes are another file, and one more where the client has not heard.
  const std::string second = UploadFile();
  EXPECT_NE(second, id);
  EXPECT_EQ(UploadFile(kTwoRows, "x-stainless-retry-count: 1\r\n"), second);
  const std::string third = UploadFile("{\"text\": \"c\"}\n", "x-stainless-retry-count: 1\r\n");
  const auto ids = [&](const std::string& query) {
    std::vector<std::string> found;
    const json list = JsonIn(Ask("GET", "/v1/files" + query));
    for (const json& each : list["data"]) found.push_back(each["id"]);
    if (list["has_more"].get<bool>()) found.push_back("more");
    return found;
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(ids(""), (Ids{third, second, id}));
  EXPECT_EQ(ids("?order=asc"), (Ids{id, second, third}));
  EXPECT_EQ(ids("?limit=2"), (Ids{third, second, "more"}));
  EXPECT_EQ(ids("?limit=2&after=" + second), (Ids{id}));
  EXPECT_EQ(ids("?order=asc&limit=1&after=" + id), (Ids{second, "more"}));
  EXPECT_EQ(ids("?purpose=fine-tune"), (Ids{third, second, id}));
  EXPECT_EQ(ids("?purpose=assistants"), Ids{});
  EXPECT_EQ(ids("?purpose=fine-tune-results"), Ids{});
  for (const auto& [query, param] :
       std::map<std::string, std::string>{{"?limit=0", "limit"},
                                          {"?limit=10001", "limit"},
                                          {"?limit=x", "limit"},
                                          {"?order=up", "order"},
                                          {"?nonsense=1", "nonsense"},
                                          {"?after=file-none", "after"}}) {
    const std::string refused = Ask("GET", "/v1/files" + query);
    EXPECT_EQ(ParamIn(refused), param) << refused;
  }
  const json deleted = JsonIn(Ask("DELETE", "/v1/files/" + id));
  EXPECT_EQ(deleted,
            json::parse("{\"id\": \"" + id + "\", \"object\": \"file\", \"deleted\": true}"));
  for (const std::string& path : {"/v1/files/" + id, "/v1/files/" + id + "/content"}) {
    const std::string gone = Ask("GET", path);
    EXPECT_EQ(StatusOf(gone), 404) << gone;
    EXPECT_EQ(ParamIn(gone), "file_id");
  }
  EXPECT_EQ(StatusOf(Ask("DELETE", "/v1/files/" + id)), 404);
  // The bytes go with the last of them.
  EXPECT_EQ(StatusOf(Ask("DELETE", "/v1/files/" + second)), 200);
  const std::string stat =
      R"({"purpose": "DATASET", "sha256": ")" + io::Sha256Hex(kTwoRows) + "\"}";
  EXPECT_EQ(JsonIn(Post("/api/v1/DataService/StatBlob", stat))["complete"], false);
}

TEST_F(TrainingApiTest, AListOfCurvesReadsNone) {
  const std::string id = JsonIn(Create(Job(UploadFile())))["id"];
  server_.reset();
  {
    const auto store = Store::Open({.path = dir_ + "/server.db"}).value();
    const absl::Status ended = store->Write([&](Database& db) {
      return db.Execute(fmt::format("UPDATE jobs SET state = {}, ended_us = 1 WHERE id = '{}'",
                                    static_cast<int>(JobState::kSucceeded), id)
                            .c_str());
    });
    ASSERT_TRUE(ended.ok()) << ended;
    MetricLog metrics(dir_ + "/metrics");
    std::vector<MetricPoint> points(10);
    for (size_t i = 0; i < points.size(); ++i) points[i].step = static_cast<int64_t>(i) + 1;
    ASSERT_TRUE(metrics.Append(id, points).ok());
  }
  Start();
  const auto list = [&] { return Ask("GET", "/v1/files?purpose=fine-tune-results"); };
  const std::string file = "/v1/files/file-" + id;
  const json whole = JsonIn(Ask("GET", file));
  EXPECT_GT(whole["bytes"], 10 * 10);
  json listed = whole;
  listed["bytes"] = nullptr;
  EXPECT_EQ(JsonIn(list())["data"], json::array({listed}));
  // Whoever reads it now fails.
  server_.reset();
  const std::string folder = dir_ + "/metrics/" + id;
  const std::string path = folder + "/" + io::ListDir(folder).value().at(0);
  std::string spoilt = io::ReadFile(path).value();
  spoilt.replace(0, MetricLog::kRecordBytes, std::string(MetricLog::kRecordBytes, 'x'));
  ASSERT_TRUE(io::WriteFileAtomic(path, spoilt).ok());
  Start();
  EXPECT_GE(StatusOf(Ask("GET", file)), 500);
  EXPECT_GE(StatusOf(Ask("GET", file + "/content")), 500);
  EXPECT_EQ(JsonIn(list())["data"], json::array({listed}));
}

TEST_F(TrainingApiTest, WhatIsNoUploadOfAFileIsRefused) {
  const std::string file = Part("file; filename=a.jsonl", kTwoRows), end = "--b--";
  const std::string purpose = Part("purpose", "fine-tune");
  struct Case {
    std::string body, param;
  };
  for (const Case& each :
       {Case{purpose + end, "file"},
        Case{file + end, "purpose"},
        Case{Part("purpose", "assistants") + file + end, "purpose"},
        Case{Part("purpose", "fine-tune-results") + file + end, "purpose"},
        Case{purpose + purpose + file + end, "purpose"},
        Case{purpose + file + file + end, "file"},
        Case{purpose + Part("file", kTwoRows) + end, "file"},
        Case{purpose + Part("expires_after[anchor]", "created_at") + file + end, "expires_after"},
        Case{purpose + Part("nonsense", "1") + file + end, "nonsense"},
        Case{purpose + Part("file; filename=a.jsonl", "not json") + end, "file"},
        Case{purpose + Part("file; filename=a.jsonl", "") + end, "file"},
        Case{purpose + Part("file; filename=\"\"", kTwoRows) + end, "file"},
        Case{purpose + Part("file; filename=\"..\"", kTwoRows) + end, "file"},
        Case{purpose + Part("file; filename=\"a\x1b[31m.jsonl\"", kTwoRows) + end, "file"},
        Case{purpose + Part("file; filename=\"a\xe2\x80\xae.jsonl\"", kTwoRows) + end, "file"},
        Case{purpose + Part("file; filename=\"a\xff.jsonl\"", kTwoRows) + end, "file"},
        Case{purpose + Part("file; filename=" + std::string(300, 'a'), kTwoRows) + end, "file"},
        Case{purpose + file, "file"},
        Case{"hello", ""},
        Case{"", ""}}) {
    const std::string answer = PostForm(each.body);
    EXPECT_EQ(StatusOf(answer), 400) << each.body << answer;
    EXPECT_EQ(ParamIn(answer), each.param) << each.body << answer;
  }
  const auto refused = [&](const std::string& head) {
    return StatusOf(Talk(port(), "POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + "\r\n"));
  };
  const std::string type = "Content-Type: multipart/form-data; boundary=b\r\n";
  EXPECT_EQ(refused(type + "Content-Length: 100000000000\r\n"), 413);
  EXPECT_EQ(refused(type + "Transfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(refused("Content-Type: text/plain\r\nContent-Length: 3\r\n"), 400);
  EXPECT_EQ(StatusOf(PostForm(Form(kTwoRows), "Sec-Fetch-Site: cross-site\r\n")), 403);
  EXPECT_EQ(StatusOf(Ask("PATCH", "/v1/files")), 405);
  EXPECT_EQ(StatusOf(Ask("PUT", "/v1/files/file-x")), 405);
  EXPECT_EQ(StatusOf(Ask("GET", "/v1/files/file-x/nothing")), 404);
  EXPECT_EQ(JsonIn(Ask("GET", "/v1/files"))["data"], json::array());
  EXPECT_TRUE(io::ListDir(dir_ + "/blobs/uploads").value().empty());
  // A path of another system is a name all the same.
  const std::string id = JsonIn(PostForm(Form(kTwoRows, "../../etc/C:\\\\x\\\\rows.jsonl")))["id"];
  EXPECT_EQ(JsonIn(Ask("GET", "/v1/files/" + id))["filename"], "rows.jsonl");
}

TEST_F(TrainingApiTest, AJobIsMadeOnceHoweverOftenItsClientAsks) {
  const std::string file = UploadFile();
  const std::string made = Create(Job(file, {{"suffix", "mine"}, {"seed", 5}}));
  ASSERT_EQ(StatusOf(made), 200) << made;
  const json job = JsonIn(made);
  EXPECT_EQ(job["status"], "queued");
  EXPECT_EQ(job["training_file"], file);
  EXPECT_EQ(job["model"], "/models/tiny");
  EXPECT_EQ(job["seed"], 5);
  EXPECT_EQ(job["hyperparameters"]["n_epochs"], 3);
  EXPECT_EQ(job["hyperparameters"]["learning_rate_multiplier"], 1);
  const std::string again = "x-stainless-retry-count: 1\r\n";
  const json same = Job(file, {{"suffix", "mine"}, {"seed", 5}});
  EXPECT_EQ(JsonIn(Create(same, again))["id"], job["id"]);
  EXPECT_EQ(Jobs(), 1);
  // One that is asked for anew is another, as is what differs.
  EXPECT_NE(JsonIn(Create(same))["id"], job["id"]);
  EXPECT_EQ(Jobs(), 2);
  EXPECT_EQ(StatusOf(Create(Job(file, {{"seed", 6}}), again)), 200);
  EXPECT_EQ(Jobs(), 3);
  const std::string key = "Idempotency-Key: one\r\n";
  const json first = JsonIn(Create(Job(file), key));
  EXPECT_EQ(JsonIn(Create(Job(file), key))["id"], first["id"]);
  EXPECT_EQ(Jobs(), 4);
  const std::string other = Create(Job(file, {{"seed", 9}}), key);
  EXPECT_EQ(StatusOf(other), 409) << other;
  EXPECT_EQ(FieldOf(other, "x-should-retry"), "false");
  EXPECT_EQ(StatusOf(Create(Job(file), "Idempotency-Key: " + std::string(200, 'x') + "\r\n")), 400);
}

TEST_F(TrainingApiTest, JobsArePagedAndFoundByTheirMetadata) {
  const std::string file = UploadFile();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    const json metadata =
        i == 0 ? json(nullptr) : json{{"run", std::to_string(i % 2)}, {"a b", "c"}};
    const std::string made = Create(Job(file, {{"seed", i}, {"metadata", metadata}}));
    ids.insert(ids.begin(), JsonIn(made).value("id", made));
  }
  const auto list = [&](const std::string& query) {
    std::vector<std::string> found;
    const std::string answer = Ask("GET", "/v1/fine_tuning/jobs" + query);
    EXPECT_EQ(StatusOf(answer), 200) << answer;
    const json page = JsonIn(answer);
    for (const json& each : page["data"]) found.push_back(each["id"]);
    if (page["has_more"].get<bool>()) found.push_back("more");
    return found;
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(list(""), ids);
  EXPECT_EQ(list("?limit=2"), (Ids{ids[0], ids[1], "more"}));
  EXPECT_EQ(list("?limit=2&after=" + ids[1]), (Ids{ids[2], ids[3], "more"}));
  EXPECT_EQ(list("?limit=2&after=ftjob-" + ids[3].substr(4)), (Ids{ids[4]}));
  EXPECT_EQ(list("?metadata%5Brun%5D=1"), (Ids{ids[1], ids[3]}));
  EXPECT_EQ(list("?metadata%5Brun%5D=1&metadata%5Ba%20b%5D=c&limit=1"), (Ids{ids[1], "more"}));
  EXPECT_EQ(list("?metadata%5Brun%5D=7"), Ids{});
  EXPECT_EQ(list("?metadata=null"), (Ids{ids[4]}));
  for (const auto& [query, param] : std::map<std::string, std::string>{{"?limit=101", "limit"},
                                                                       {"?after=job-none", "after"},
                                                                       {"?after=..", "after"},
                                                                       {"?metadata=x", "metadata"},
                                                                       {"?state=x", "state"}}) {
    EXPECT_EQ(ParamIn(Ask("GET", "/v1/fine_tuning/jobs" + query)), param) << query;
  }
  EXPECT_EQ(JsonIn(Ask("GET", "/v1/fine_tuning/jobs/" + ids[1]))["metadata"]["run"], "1");
}

TEST_F(TrainingApiTest, AJobIsPausedResumedCancelledAndTellsWhatHappened) {
  const std::string file = UploadFile();
  const std::string id = JsonIn(Create(Job(file)))["id"];
  const std::string path = "/v1/fine_tuning/jobs/" + id;
  EXPECT_EQ(JsonIn(Post(path + "/pause", ""))["status"], "paused");
  EXPECT_EQ(JsonIn(Post("/v1/fine_tuning/jobs/ftjob-" + id.substr(4) + "/resume", ""))["status"],
            "queued");
  EXPECT_EQ(StatusOf(Post(path + "/cancel", "{\"why\": 1}")), 400);
  // Its file is needed.
  const std::string needed = Ask("DELETE", "/v1/files/" + file);
  EXPECT_EQ(StatusOf(needed), 409) << needed;
  EXPECT_EQ(FieldOf(needed, "x-should-retry"), "false");
  EXPECT_EQ(JsonIn(Post(path + "/cancel", "{}"))["status"], "cancelled");
  EXPECT_EQ(JsonIn(Post(path + "/cancel", ""))["status"], "cancelled");
  const std::string ended = Post(path + "/pause", "");
  EXPECT_EQ(StatusOf(ended), 409) << ended;
  EXPECT_EQ(StatusOf(Ask("DELETE", "/v1/files/" + file)), 200);
  std::vector<std::string> messages;
  std::string after;
  for (bool more = true; more;) {
    const json page = JsonIn(Ask("GET", path + "/events?limit=2" + after));
    for (const json& each : page["data"]) {
      messages.push_back(each["data"]["type"]);
      after = "&after=" + each["id"].get<std::string>();
    }
    more = page["has_more"];
  }
  EXPECT_THAT(messages, testing::Contains("held"));
  EXPECT_THAT(messages, testing::Contains("released"));
  EXPECT_EQ(messages.back(), "submitted");
  EXPECT_EQ(std::set<std::string>(messages.begin(), messages.end()).size() > 3, true);
  EXPECT_EQ(JsonIn(Ask("GET", path + "/checkpoints"))["data"], json::array());
  EXPECT_EQ(ParamIn(Ask("GET", path + "/checkpoints?after=x")), "after");
  EXPECT_EQ(ParamIn(Ask("GET", path + "/events?after=x")), "after");
  EXPECT_EQ(ParamIn(Ask("GET", path + "/events?limit=1000")), "limit");
  for (const std::string& none : {std::string("/v1/fine_tuning/jobs/job-none"), path + "/nothing",
                                  std::string("/v1/fine_tuning/nothing"),
                                  std::string("/v1/fine_tuning/checkpoints/x/permissions")}) {
    EXPECT_EQ(StatusOf(Ask("GET", none)), 404) << none;
  }
  EXPECT_EQ(StatusOf(Ask("GET", path + "/cancel")), 405);
  EXPECT_EQ(StatusOf(Post(path + "/events", "")), 405);
}

TEST_F(TrainingApiTest, WhatAJobCannotBeIsRefusedByItsParameter) {
  const std::string file = UploadFile();
  const auto refused = [&](const json& changes) {
    const std::string answer = Create(Job(file, changes));
    EXPECT_EQ(StatusOf(answer), 400) << answer;
    EXPECT_EQ(JsonIn(answer)["error"]["type"], "invalid_request_error");
    return ParamIn(answer);
  };
  EXPECT_EQ(refused({{"training_file", "file-none"}}), "training_file");
  EXPECT_EQ(refused({{"validation_file", "file-none"}}), "validation_file");
  EXPECT_EQ(refused({{"sft", {{"variant", "nonsense"}}}}), "sft.variant");
  EXPECT_EQ(refused({{"sft", {{"variant", "CPU-1x"}, {"set", {{"lora.rr", 1}}}}}}),
            "sft.set.lora.rr");
  EXPECT_EQ(refused({{"hyperparameters", {{"batch_size", 1000000}}}, {"integrations", {1}}}),
            "integrations");
  EXPECT_EQ(refused({{"metadata", {{std::string(65, 'k'), "v"}}}}), "metadata");
  EXPECT_EQ(refused({{"metadata", {{"k", std::string(513, 'v')}}}}), "metadata");
  // Rows of another form than the method learns from.
  EXPECT_EQ(refused({{"method", {{"type", "dpo"}}}}), "training_file");
  EXPECT_EQ(Jobs(), 0);
  EXPECT_EQ(StatusOf(Post("/v1/fine_tuning/jobs", "{", "")), 400);
  EXPECT_EQ(StatusOf(Talk(port(),
                          "POST /v1/fine_tuning/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                          "text/plain\r\nContent-Length: 2\r\n\r\n{}")),
            400);
}

TEST_F(TrainingApiTest, AMultiplierMultipliesTheRateThatTheJobWouldHave) {
  const std::string file = UploadFile();
  const std::string made = Create(
      Job(file, {{"hyperparameters", {{"learning_rate_multiplier", 2.5}, {"n_epochs", 1}}}}));
  ASSERT_EQ(StatusOf(made), 200) << made;
  EXPECT_EQ(JsonIn(made)["hyperparameters"]["learning_rate_multiplier"], 2.5);
  v1::GetJobRequest get;
  get.set_name(JsonIn(made)["id"]);
  v1::Job job;
  grpc::ClientContext context;
  ASSERT_TRUE(jobs_->GetJob(&context, get, &job).ok());
  const auto rate =
      std::ranges::find(job.resolved(), "hyperparameters.learning_rate", &v1::ResolvedValue::key);
  ASSERT_NE(rate, job.resolved().end());
  EXPECT_EQ(rate->value(), "5e-05");
}

}  // namespace
}  // namespace sft::server
