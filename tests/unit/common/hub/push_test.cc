#include "common/hub/push.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/sha256.h"
#include "tests/unit/common/hub/fake_http.h"

namespace sft::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kParent(40, 'a'), kMade(40, 'b'), kSmall = "{}", kLarge = "0123456789";

class TextOfFile : public HttpSource {
 public:
  explicit TextOfFile(std::string text) : text_(std::move(text)) {}
  absl::StatusOr<size_t> Read(char* data, size_t size) override {
    const size_t count = text_.copy(data, std::min<size_t>(size, 3));
    text_.erase(0, count);
    return count;
  }

 private:
  std::string text_;
};

// A hub that takes everything, but for the answers that a test gives in place of its own.
class PushTest : public testing::Test {
 protected:
  PushTest() {
    texts_ = {{"config.json", kSmall}, {"model.safetensors", kLarge}};
    http_.answer = [this](const HttpRequest& request) -> absl::StatusOr<HttpResponse> {
      if (request.source != nullptr) {
        std::string bytes(request.source_bytes, '\0');
        for (size_t at = 0; at < bytes.size();) {
          const auto count = request.source->Read(bytes.data() + at, bytes.size() - at);
          if (!count.ok()) return count.status();
          at += *count;
        }
        sent_.push_back(bytes);
      }
      for (const auto& [part, answer] : answers_) {
        if (request.url.find(part) != std::string::npos) {
          return FakeHttp::Make(answer.first, answer.second, {{"etag", "\"e\""}});
        }
      }
      return FakeHttp::Make(200, Usual(request.url));
    };
  }

  std::string Usual(const std::string& url) const {
    if (url.ends_with("/revision/main")) return fmt::format(R"({{"sha": "{}"}})", kParent);
    if (url.find("/preupload/") != url.npos) {
      return R"({"files": [{"path": "config.json", "uploadMode": "regular", "shouldIgnore": false},
                 {"path": "model.safetensors", "uploadMode": "lfs", "shouldIgnore": false}]})";
    }
    if (url.ends_with("/batch")) return Batch(R"({"href": "https://store/whole?signature=x"})");
    if (url.find("/commit/") != url.npos) return fmt::format(R"({{"commitOid": "{}"}})", kMade);
    if (url.find("/tree/") != url.npos) {
      return fmt::format(
          R"([{{"type": "file", "path": "config.json", "size": 2, "oid": "{0}"}},
              {{"type": "file", "path": "model.safetensors", "size": 10, "oid": "{0}",
                "lfs": {{"oid": "{1}", "size": 10}}}}])",
          kParent, io::Sha256Hex(kLarge));
    }
    return R"({"name": "me", "private": true})";
  }

  static std::string Batch(const std::string& upload) {
    return fmt::format(
        R"({{"objects": [{{"oid": "{}", "size": 10, "actions": {{"upload": {}}}}}]}})",
        io::Sha256Hex(kLarge), upload);
  }

  absl::StatusOr<Pushed> Push(const std::string& endpoint = "https://hub") {
    HubPush push({.hub = {.endpoint = endpoint, .token = "secret"},
                  .open = [this](const PushFile& file,
                                 int64_t offset) -> absl::StatusOr<std::unique_ptr<HttpSource>> {
                    return std::make_unique<TextOfFile>(texts_.at(file.path).substr(offset));
                  }},
                 http_, clock_);
    return push.Run({{"config.json", 2, io::Sha256Hex(kSmall)},
                     {"model.safetensors", 10, io::Sha256Hex(kLarge)}},
                    {.name = {"org/mine", ""}, .message = "hello"}, {});
  }

  const HttpRequest* Asked(const std::string& part) const {
    const auto found = std::ranges::find_if(http_.requests, [&](const HttpRequest& request) {
      return request.url.find(part) != std::string::npos;
    });
    return found == http_.requests.end() ? nullptr : &*found;
  }

  FakeHttp http_;
  FakeClock clock_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::pair<int, std::string>> answers_;  // by a part of the address
  std::vector<std::string> sent_;
};

TEST_F(PushTest, SmallFilesGoWithTheCommitAndLargeOnesBeforeIt) {
  const auto pushed = Push();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(pushed->commit, kMade);
  EXPECT_EQ(pushed->url, "https://hub/org/mine");
  EXPECT_TRUE(pushed->is_private);
  EXPECT_FALSE(pushed->is_new);
  EXPECT_EQ(pushed->sent_bytes, 10);
  EXPECT_THAT(sent_, ElementsAre(kLarge));
  const HttpRequest& commit = *Asked("/commit/main");
  EXPECT_EQ(HeaderOf(commit, "Content-Type"), "application/x-ndjson");
  EXPECT_EQ(HeaderOf(commit, "Authorization"), "Bearer secret");
  const std::string& text = commit.body;
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  EXPECT_EQ(ParseJson(text.substr(0, first)),
            ParseJson(fmt::format(R"({{"key": "header", "value": {{"summary": "hello",
                "description": "", "parentCommit": "{}"}}}})",
                                  kParent)));
  EXPECT_EQ(ParseJson(text.substr(first + 1, second - first - 1)),
            ParseJson(R"({"key": "file", "value": {"path": "config.json", "content": "e30=",
                "encoding": "base64"}})"));
  EXPECT_EQ(ParseJson(text.substr(second + 1)),
            ParseJson(fmt::format(R"({{"key": "lfsFile", "value": {{"path": "model.safetensors",
                "algo": "sha256", "oid": "{}", "size": 10}}}})",
                                  io::Sha256Hex(kLarge))));
  EXPECT_EQ(HeaderOf(*Asked("store"), "Authorization"), "") << "the store gets no token";
}

TEST_F(PushTest, ALargeFileGoesInTheHubsPartsAndWhatTheHubHasDoesNotGo) {
  answers_["/batch"] = {200, Batch(R"({"href": "https://hub/complete", "header": {
      "chunk_size": "4", "2": "https://store/2", "01": "https://store/1", "3": "https://store/3"}})")};
  answers_["https://store"] = {200, ""};
  const auto pushed = Push();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_THAT(sent_, ElementsAre("0123", "4567", "89"));
  EXPECT_EQ(ParseJson(Asked("/complete")->body),
            ParseJson(fmt::format(R"({{"oid": "{}", "parts": [{{"partNumber": 1, "etag": "\"e\""}},
                {{"partNumber": 2, "etag": "\"e\""}}, {{"partNumber": 3, "etag": "\"e\""}}]}})",
                                  io::Sha256Hex(kLarge))));
  answers_["https://store"] = {500, ""};
  answers_["/batch"] = {
      200, fmt::format(R"({{"objects": [{{"oid": "{}", "size": 10}}]}})", io::Sha256Hex(kLarge))};
  EXPECT_EQ(Push()->sent_bytes, 0);
}

TEST_F(PushTest, BytesOfAnotherHashAreNeverCommitted) {
  for (const auto& [file, text] :
       {std::pair("config.json", "[]"), std::pair("model.safetensors", "012345678_")}) {
    const std::string right = std::exchange(texts_[file], text);
    http_.requests.clear();
    EXPECT_TRUE(absl::IsDataLoss(Push().status())) << file;
    EXPECT_EQ(Asked("/commit/"), nullptr);
    texts_[file] = right;
  }
  answers_["/tree/"] = {200, "[]"};
  EXPECT_TRUE(absl::IsDataLoss(Push().status())) << "the hub has other files than were sent";
}

TEST_F(PushTest, AnAnswerThatMakesNoSenseEndsThePushBeforeTheCommit) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/batch", "[]"},
      {"/batch", Batch("{}")},
      {"/batch", Batch(R"({"href": "ftp://store"})")},
      {"/batch", Batch(R"({"href": "http://store"})")},
      {"/batch", Batch(R"({"href": "https://me@store"})")},
      {"/batch",
       Batch(R"({"href": "https://hub/c", "header": {"chunk_size": 4, "1": "https://s"}})")},
      {"/batch", Batch(R"({"href": "https://hub/c", "header": {"chunk_size": "x"}})")},
      {"/batch", R"({"objects": [{"oid": "other", "size": 10}]})"},
      {"/batch", R"({"objects": [{"error": {"code": 422, "message": "too large"}}]})"},
      {"/preupload/", R"({"files": []})"},
      {"/preupload/", "no JSON"}};
  for (const auto& [url, answer] : cases) {
    answers_ = {{url, {200, answer}}};
    http_.requests.clear();
    const absl::Status status = Push().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << answer << status;
    EXPECT_EQ(Asked("/commit/"), nullptr);
    EXPECT_THAT(std::string(Message(status)), ::testing::Not(HasSubstr("secret")));
  }
}

TEST_F(PushTest, EachRefusalOfTheHubHasItsOwnError) {
  const std::vector<std::tuple<int, absl::StatusCode, std::string>> cases = {
      {401, absl::StatusCode::kPermissionDenied, "refuses the token"},
      {403, absl::StatusCode::kPermissionDenied, "may not write"},
      {404, absl::StatusCode::kNotFound, "has no model org/mine"},
      {307, absl::StatusCode::kFailedPrecondition, "renamed"},
      {413, absl::StatusCode::kFailedPrecondition, "413: too much"},
      {429, absl::StatusCode::kUnavailable, "429"},
      {500, absl::StatusCode::kUnavailable, "500"}};
  for (const auto& [status, code, said] : cases) {
    answers_["/commit/"] = {status, R"({"error": "too much"})"};
    const absl::Status refused = Push().status();
    EXPECT_EQ(refused.code(), code) << status;
    EXPECT_THAT(std::string(Message(refused)), HasSubstr(said));
  }
  // The commit that came first is what was pushed: its answer was lost.
  answers_["/commit/"] = {412, ""};
  EXPECT_THAT(std::string(Message(Push().status())), HasSubstr("another commit"));
  bool moved = false;
  const FakeHttp::Answer usual = http_.answer;
  http_.answer = [&](const HttpRequest& request) -> absl::StatusOr<HttpResponse> {
    moved |= request.url.find("/commit/") != std::string::npos;
    if (moved && request.url.find("/revision/") != std::string::npos) {
      return FakeHttp::Make(200, fmt::format(R"({{"sha": "{}"}})", kMade));
    }
    return usual(request);
  };
  EXPECT_EQ(Push()->commit, kMade);
}

}  // namespace
}  // namespace sft::hub
