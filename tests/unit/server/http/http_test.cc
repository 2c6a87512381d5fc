#include <gtest/gtest.h>

#include "server/http/metrics_page.h"
#include "server/http/web_checks.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class HealthPageTest : public FleetTest {};

TEST_F(HealthPageTest, ItSaysThatTheDatabaseAnswers) {
  EXPECT_EQ(HealthPage(*store_).status, 200);
  EXPECT_EQ(HealthPage(*store_).body, "ok\n");
}

int AnswerTo(const WebChecks& checks, std::vector<std::pair<std::string, std::string>> fields,
             bool is_1_0 = false) {
  HttpRequest request;
  request.method = "GET";
  request.is_1_0 = is_1_0;
  request.fields = std::move(fields);
  const auto refusal = checks.Refuse(request);
  return refusal.has_value() ? refusal->status : 200;
}

TEST(WebChecksTest, OnlyOwnNamesAreServed) {
  const WebChecks checks({"sft.example.org", "10.0.0.1", "2001:db8::1", ""});
  for (const char* host :
       {"127.0.0.1:7071", "127.0.0.1", "localhost:1", "LocalHost", "[::1]:7071", "[::1]",
        "127.0.0.2", "sft.example.org", "SFT.example.org:7071", "10.0.0.1", "[2001:db8::1]:7071"}) {
    EXPECT_EQ(AnswerTo(checks, {{"host", host}}), 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:7071", "10.0.0.2",
                           "localhost.evil.example", "127.0.0.1.evil.example", "", "[::2]:7071",
                           "[::1", "user@localhost", "sft.example.org.evil.example"}) {
    EXPECT_EQ(AnswerTo(checks, {{"host", host}}), 421) << host;
  }
  EXPECT_EQ(AnswerTo(checks, {}, /*is_1_0=*/true), 200);
  EXPECT_EQ(AnswerTo(checks, {{"host", "evil.example"}}, /*is_1_0=*/true), 421);
}

TEST(WebChecksTest, OnlyOwnOriginsAreServed) {
  const WebChecks checks({});
  for (const char* origin : {"http://127.0.0.1:7071", "https://127.0.0.1:7071"}) {
    EXPECT_EQ(AnswerTo(checks, {{"host", "127.0.0.1:7071"}, {"origin", origin}}), 200) << origin;
  }
  for (const char* origin :
       {"null", "http://127.0.0.1", "http://127.0.0.1:8000", "http://evil.example",
        "http://localhost:7071", "ftp://127.0.0.1:7071"}) {
    EXPECT_EQ(AnswerTo(checks, {{"host", "127.0.0.1:7071"}, {"origin", origin}}), 403) << origin;
  }
}

TEST(WebChecksTest, PagesOfOtherSitesGetNoData) {
  const auto refused = [](const std::string& method, const std::string& site) {
    HttpRequest request;
    request.method = method;
    if (!site.empty()) request.fields.emplace_back("sec-fetch-site", site);
    return WebChecks::RefuseForeign(request).has_value();
  };
  EXPECT_FALSE(refused("POST", ""));
  EXPECT_FALSE(refused("POST", "same-origin"));
  EXPECT_FALSE(refused("GET", "none"));
  EXPECT_TRUE(refused("POST", "none"));
  for (const char* site : {"cross-site", "same-site", "nonsense"}) {
    EXPECT_TRUE(refused("GET", site)) << site;
    EXPECT_TRUE(refused("POST", site)) << site;
  }
}

}  // namespace
}  // namespace sft::server
