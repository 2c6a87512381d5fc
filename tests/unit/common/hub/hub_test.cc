#include "common/hub/hub.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/common/hub/fake_http.h"

namespace sft::hub {
namespace {

using std::chrono::seconds;

const std::string kCommit(40, 'c');

class HubTest : public testing::Test {
 protected:
  Hub Make(const std::string& token = "") { return Hub({"https://hub", token}, http_, clock_); }
  // The same answer to everything.
  void Always(int status, const std::string& code = "") {
    http_.answer = [status, code](const HttpRequest&) {
      return FakeHttp::Make(status, "{}", {{"x-error-code", code}});
    };
  }
  double Waited(MonoTime begin) const {
    return std::chrono::duration<double>(clock_.Mono() - begin).count();
  }

  FakeHttp http_;
  FakeClock clock_;
};

TEST_F(HubTest, ARevisionIsTheCommitThatTheHubNames) {
  http_.answer = [](const HttpRequest&) {
    return FakeHttp::Make(200, fmt::format(R"({{"sha": "{}"}})", kCommit));
  };
  EXPECT_EQ(*Make().Resolve("org/name", "refs/pr/1", {}), kCommit);
  EXPECT_EQ(http_.requests[0].url, "https://hub/api/models/org/name/revision/refs%2Fpr%2F1");
  EXPECT_EQ(HeaderOf(http_.requests[0], "Accept-Encoding"), "identity");
  EXPECT_EQ(HeaderOf(http_.requests[0], "Authorization"), "");
  EXPECT_TRUE(Make("t").Resolve("org/name", "", {}).ok());
  EXPECT_EQ(http_.requests[1].url, "https://hub/api/models/org/name/revision/main");
  EXPECT_EQ(HeaderOf(http_.requests[1], "Authorization"), "Bearer t");
}

TEST_F(HubTest, AnAnswerWithoutACommitIsNoHubs) {
  for (const char* body : {"", "<html>", "[]", R"({"sha": 1})", R"({"sha": "../../etc"})"}) {
    http_.answer = [body](const HttpRequest&) { return FakeHttp::Make(200, body); };
    EXPECT_TRUE(absl::IsFailedPrecondition(Make().Resolve("o/n", "", {}).status())) << body;
  }
}

TEST_F(HubTest, TheListingIsReadPageByPage) {
  http_.answer = [](const HttpRequest& request) {
    if (request.url.find("cursor") == std::string::npos) {
      return FakeHttp::Make(200, R"([{"type": "directory", "path": "d"},
                    {"type": "file", "path": "config.json", "size": 2,
                     "oid": "00000000000000000000000000000000000000ab"}])",
                            {{"link", "<https://hub/next?cursor=2>; rel=\"next\""}});
    }
    return FakeHttp::Make(200, R"([{"type": "file", "path": "model.safetensors", "size": 130,
          "oid": "00000000000000000000000000000000000000cd", "xetHash": "ee", "lfs": {"oid":
          "ef00000000000000000000000000000000000000000000000000000000000000", "size": 1000,
          "pointerSize": 130}}])");
  };
  const auto files = Make().List("o/n", kCommit, {});
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2);
  EXPECT_EQ((*files)[0].etag(), std::string(38, '0') + "ab");
  EXPECT_EQ((*files)[1].etag(), "ef" + std::string(62, '0'));
  EXPECT_EQ((*files)[1].size, 1000);
  EXPECT_EQ((*files)[1].xet_hash, "ee");
}

TEST_F(HubTest, AListingWhosePathsHashesOrSizesCannotBeIsRefused) {
  const std::string oid(40, 'a'), sha256(64, 'b');
  const auto list = [&](const nlohmann::json& files) {
    http_.answer = [&](const HttpRequest&) { return FakeHttp::Make(200, files.dump()); };
    return Make().List("o/n", kCommit, {}).status();
  };
  const auto file = [](const nlohmann::json& path, const nlohmann::json& size,
                       const nlohmann::json& id) {
    return nlohmann::json{{"type", "file"}, {"path", path}, {"size", size}, {"oid", id}};
  };
  const auto lfs = [&](const nlohmann::json& id, const nlohmann::json& size) {
    nlohmann::json entry = file("f", 1, oid);
    entry["lfs"] = {{"oid", id}, {"size", size}};
    return entry;
  };
  ASSERT_TRUE(list({file("a/..b\\c", 1, oid), lfs(sha256, int64_t{1} << 49)}).ok());
  for (const nlohmann::json& each : {file("f", 1, "../../../victim"),
                                     file("f", 1, oid + "/x"),
                                     file("f", 1, std::string(40, 'A')),
                                     file("f", 1, ""),
                                     file("f", 1, std::string(39, 'a')),
                                     lfs("../../../../victim", 1),
                                     lfs(oid, 1),
                                     lfs("", 1),
                                     lfs(std::string(64, 'g'), 1),
                                     file("../f", 1, oid),
                                     file("/f", 1, oid),
                                     file("a//f", 1, oid),
                                     file("a/", 1, oid),
                                     file("./f", 1, oid),
                                     file("a/..", 1, oid),
                                     file("", 1, oid),
                                     file(std::string("a\0b", 3), 1, oid),
                                     file("f", -1, oid),
                                     file("f", 1e300, oid),
                                     file("f", UINT64_MAX, oid),
                                     lfs(sha256, -5),
                                     file("f", (int64_t{1} << 50) + 1, oid)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(list({each}))) << each;
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(
      list({file("a", int64_t{1} << 49, oid), file("b", (int64_t{1} << 49) + 1, oid)})));
}

TEST_F(HubTest, AListingThatGoesOnElsewhereOrIsNoneIsRefused) {
  http_.answer = [](const HttpRequest&) {
    return FakeHttp::Make(200, "[]", {{"link", "<https://elsewhere/x>; rel=\"next\""}});
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(Make("t").List("o/n", kCommit, {}).status()));
  for (const char* body : {"{}", "[", R"([{"type": "file", "path": "a", "size": "x", "oid": "b"}])",
                           R"([{"type": "file", "path": 3, "size": 1, "oid": "b"}])"}) {
    http_.answer = [body](const HttpRequest&) { return FakeHttp::Make(200, body); };
    EXPECT_TRUE(absl::IsFailedPrecondition(Make().List("o/n", kCommit, {}).status())) << body;
  }
}

TEST_F(HubTest, ATokenStaysWithTheFirstHost) {
  http_.answer = [](const HttpRequest& request) {
    if (request.url == "https://hub/o/n/resolve/" + kCommit + "/a%20b") {
      return FakeHttp::Make(302, "", {{"location", "https://hub/other"}});
    }
    if (request.url == "https://hub/other") {
      return FakeHttp::Make(307, "", {{"location", "https://store/x?signature=s"}});
    }
    return FakeHttp::Make(206, "bytes");
  };
  EXPECT_EQ(Make("t").Open("o/n", kCommit, "a b", 7, {})->status, 206);
  ASSERT_EQ(http_.requests.size(), 3);
  EXPECT_EQ(HeaderOf(http_.requests[1], "Authorization"), "Bearer t");
  EXPECT_EQ(HeaderOf(http_.requests[2], "Authorization"), "");
  EXPECT_EQ(HeaderOf(http_.requests[2], "Range"), "bytes=7-");
  // Addresses whose host is another for who asks than for who compares.
  for (const char* location :
       {R"(https://evil.example\@hub/x)", R"(//evil.example\@hub/x)", R"(/\evil.example/x)",
        "https://evil.example@hub/x", "https://hub@evil.example/x", "//u:p@hub/x",
        "https://evil @hub/x"}) {
    http_.requests.clear();
    http_.answer = [location](const HttpRequest&) {
      return FakeHttp::Make(302, "", {{"location", location}});
    };
    const absl::Status status = Make("t").Open("o/n", kCommit, "f", 0, {}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << location << status;
    EXPECT_FALSE(Make("t").Check("o/n", kCommit, "f", {}).ok()) << location;
    for (const HttpRequest& request : http_.requests) {
      EXPECT_EQ(request.url, "https://hub/o/n/resolve/" + kCommit + "/f");
    }
  }
}

TEST_F(HubTest, TlsIsNotLeftAndRedirectsEnd) {
  http_.answer = [](const HttpRequest&) {
    return FakeHttp::Make(302, "", {{"location", "http://store/x?signature=s"}});
  };
  const absl::Status plain = Make().Open("o/n", kCommit, "f", 0, {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(plain)) << plain;
  EXPECT_EQ(Message(plain).find("signature"), std::string::npos) << plain;
  http_.answer = [](const HttpRequest&) {
    return FakeHttp::Make(302, "", {{"location", "https://hub/again"}});
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(Make().Open("o/n", kCommit, "f", 0, {}).status()));
  EXPECT_LT(http_.requests.size(), 20);
}

TEST_F(HubTest, AnExpiredAddressIsAskedForAgain) {
  int stores = 0;
  http_.answer = [&](const HttpRequest& request) {
    if (request.url.starts_with("https://hub/")) {
      return FakeHttp::Make(302, "", {{"location", "https://store/x"}});
    }
    return FakeHttp::Make(++stores < 3 ? 403 : 200, "bytes");
  };
  EXPECT_EQ(Make().Open("o/n", kCommit, "f", 0, {})->status, 200);
  EXPECT_EQ(stores, 3);
}

TEST_F(HubTest, TooManyRequestsWaitAsLongAsTheHubAsks) {
  int left = 2;
  http_.answer = [&](const HttpRequest&) {
    if (left-- > 0) {
      return left == 1 ? FakeHttp::Make(429, "", {{"retry-after", "20"}})
                       : FakeHttp::Make(429, "", {{"ratelimit", "\"api\";r=0;t=30"}});
    }
    return FakeHttp::Make(200, fmt::format(R"({{"sha": "{}"}})", kCommit));
  };
  const MonoTime begin = clock_.Mono();
  std::vector<std::string> told;
  const Hub hub({.endpoint = "https://hub",
                 .on_wait = [&](const std::string& text) { told.push_back(text); }},
                http_, clock_);
  EXPECT_TRUE(hub.Resolve("o/n", "", {}).ok());
  ASSERT_EQ(told.size(), 2);
  EXPECT_NE(told[0].find("429 (too many requests from this address or token); asks again in 2"),
            std::string::npos)
      << told[0];
  EXPECT_GE(Waited(begin), 50);
  EXPECT_LE(Waited(begin), 66);
}

TEST_F(HubTest, PatienceEndsAndAStopEndsItAtOnce) {
  Always(503);
  const MonoTime begin = clock_.Mono();
  const absl::Status status = Make().Resolve("o/n", "", {}).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(Message(status).find("503"), std::string::npos) << status;
  EXPECT_GT(Waited(begin), 60);
  EXPECT_LE(Waited(begin), 120);
  int asked = 0;
  EXPECT_TRUE(absl::IsAborted(Make().Resolve("o/n", "", [&] { return ++asked > 3; }).status()));
  http_.answer = [](const HttpRequest&) { return Unavailable("no route"); };
  EXPECT_TRUE(absl::IsUnavailable(Make().Resolve("o/n", "", {}).status()));
  http_.answer = [](const HttpRequest&) { return FailedPrecondition("certificate"); };
  http_.requests.clear();
  EXPECT_TRUE(absl::IsFailedPrecondition(Make().Resolve("o/n", "", {}).status()));
  EXPECT_EQ(http_.requests.size(), 1);
}

TEST_F(HubTest, RefusalsSayWhatToDo) {
  struct Case {
    int status;
    const char* code;
    const char* token;
    absl::StatusCode wanted;
    const char* says;
  };
  for (const Case& each : {
           Case{401, "RepoNotFound", "", absl::StatusCode::kNotFound, "only with a token"},
           Case{404, "RepoNotFound", "t", absl::StatusCode::kNotFound, "owner of the token"},
           Case{401, "GatedRepo", "", absl::StatusCode::kPermissionDenied, "https://hub/o/n"},
           Case{403, "GatedRepo", "t", absl::StatusCode::kPermissionDenied, "accept its terms"},
           Case{404, "RevisionNotFound", "", absl::StatusCode::kNotFound, "revision \"v9\""},
           Case{403, "DisabledRepo", "", absl::StatusCode::kPermissionDenied, "disabled"},
           Case{404, "", "", absl::StatusCode::kNotFound, "no model o/n"},
           Case{400, "", "", absl::StatusCode::kFailedPrecondition, "400"},
       }) {
    http_.answer = [&](const HttpRequest& request) {
      if (request.url.ends_with("whoami-v2")) return FakeHttp::Make(200, "{}");
      return FakeHttp::Make(each.status, "{}", {{"x-error-code", each.code}});
    };
    const absl::Status status = Make(each.token).Resolve("o/n", "v9", {}).status();
    EXPECT_EQ(status.code(), each.wanted) << each.code << each.status;
    EXPECT_NE(Message(status).find(each.says), std::string::npos) << status;
  }
}

TEST_F(HubTest, AWrongTokenIsToldFromAMissingModel) {
  Always(401, "RepoNotFound");
  const absl::Status status = Make("secret-token").Resolve("o/n", "", {}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_NE(Message(status).find("refuses the token"), std::string::npos) << status;
  EXPECT_EQ(Message(status).find("secret-token"), std::string::npos);
}

TEST_F(HubTest, AGreetingTellsWhoseTokenItIs) {
  http_.answer = [](const HttpRequest&) { return FakeHttp::Make(200, R"({"name": "ann"})"); };
  EXPECT_EQ(*Make("t").Greet({}), "ann");
  Always(401);
  EXPECT_EQ(*Make().Greet({}), "");
  EXPECT_TRUE(absl::IsPermissionDenied(Make("t").Greet({}).status()));
  Always(500);
  EXPECT_TRUE(absl::IsUnavailable(Make().Greet({}).status()));
}

TEST_F(HubTest, ABodyThatBreaksIsAskedForAgain) {
  int left = 2;
  http_.answer = [&](const HttpRequest&) {
    HttpResponse response = FakeHttp::Make(200);
    response.body = std::make_unique<FakeBody>("0123456789", left-- > 0 ? 4 : std::string::npos);
    return response;
  };
  EXPECT_EQ(*Make().Read("o/n", kCommit, "f", 100, {}), "0123456789");
  EXPECT_FALSE(Make().Read("o/n", kCommit, "f", 5, {}).ok());
}

TEST_F(HubTest, ACheckOfAnLfsFileEndsAtTheRedirect) {
  http_.answer = [](const HttpRequest& request) {
    EXPECT_EQ(request.method, "HEAD");
    EXPECT_TRUE(request.url.starts_with("https://hub/")) << request.url;
    return FakeHttp::Make(302, "", {{"location", "https://store/x"}});
  };
  EXPECT_TRUE(Make().Check("o/n", kCommit, "model.safetensors", {}).ok());
}

TEST_F(HubTest, ASignatureIsNotShown) {
  EXPECT_EQ(WithoutQuery("https://h/a/b?signature=x#y"), "https://h/a/b");
}

}  // namespace
}  // namespace sft::hub
