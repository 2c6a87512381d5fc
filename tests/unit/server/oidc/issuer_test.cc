#include "server/oidc/issuer.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/unit/server/oidc/fake_issuer.h"

namespace sft::server {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kKeys[] = "/keys", kDocument[] = "/.well-known/openid-configuration";

class IssuerTest : public testing::Test {
 protected:
  Json Claims() const {
    return {{"iss", kIssuerUrl},
            {"aud", "sft"},
            {"sub", "u1"},
            {"iat", NowSeconds(clock_)},
            {"exp", NowSeconds(clock_) + 300}};
  }
  absl::Status Verify(const std::string& token) {
    return issuer_.Verify(token, "sft", "").status();
  }
  std::string Good() const { return fake_->signers.front().Sign(Claims()); }

  FakeClock clock_;
  const std::shared_ptr<FakeIssuer> fake_ = std::make_shared<FakeIssuer>();
  Issuer issuer_{kIssuerUrl, fake_, clock_};
};

TEST_F(IssuerTest, KeysAreKeptForTenMinutes) {
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Verify(Good()), absl::OkStatus());
  EXPECT_EQ(fake_->asked[kKeys], 1);
  clock_.Advance(minutes(10));
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
  EXPECT_EQ(fake_->asked[kKeys], 2);
}

TEST_F(IssuerTest, ARotatedKeyIsFetchedWhenATokenNamesIt) {
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
  const std::string old = Good();
  clock_.Advance(seconds(31));
  fake_->signers = {Signer::Ec("e2")};
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
  EXPECT_EQ(fake_->asked[kKeys], 2);
  // The one of before is none any more.
  EXPECT_TRUE(absl::IsUnauthenticated(Verify(old)));
}

TEST_F(IssuerTest, AStormOfUnknownKeysAsksOnceInThirtySeconds) {
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
  clock_.Advance(seconds(30));
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 50; ++i) {
      Json header = fake_->signers.front().Header();
      header["kid"] = "unknown-" + std::to_string(i);
      const absl::Status refused = Verify(fake_->signers.front().Sign(header, Claims()));
      EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("has no key \"unknown-"));
    }
    EXPECT_EQ(fake_->asked[kKeys], 1 + round);
    EXPECT_EQ(Verify(Good()), absl::OkStatus());
    clock_.Advance(seconds(30));
  }
}

TEST_F(IssuerTest, AStormFromManyThreadsAsksOnce) {
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
  clock_.Advance(seconds(30));
  Json header = fake_->signers.front().Header();
  header["kid"] = "unknown";
  const std::string token = fake_->signers.front().Sign(header, Claims());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { EXPECT_FALSE(Verify(token).ok()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake_->asked[kKeys], 2);
}

TEST_F(IssuerTest, NobodyIsAskedForATokenThatIsBadWhateverItsKey) {
  Json claims = Claims();
  claims["aud"] = "other";
  EXPECT_FALSE(Verify(fake_->signers.front().Sign(claims)).ok());
  EXPECT_FALSE(Verify("a.b.c").ok());
  EXPECT_TRUE(fake_->asked.empty());
}

TEST_F(IssuerTest, KeysServeADayWhileTheIssuerIsDown) {
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
  fake_->down = true;
  for (int hour = 0; hour < 23; ++hour) {
    clock_.Advance(hours(1));
    EXPECT_EQ(Verify(Good()), absl::OkStatus()) << hour;
  }
  EXPECT_EQ(fake_->asked[kDocument], 24);
  clock_.Advance(hours(1));
  EXPECT_TRUE(absl::IsUnavailable(Verify(Good())));
  fake_->down = false;
  clock_.Advance(seconds(5));
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
}

TEST_F(IssuerTest, AKeySetThatIsDownOrBrokenTakesNothingAway) {
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
  for (const auto& answer : {std::pair(503, "busy"), std::pair(200, "<html>"),
                             std::pair(200, "{\"keys\": []}"), std::pair(404, "{}")}) {
    clock_.Advance(hours(1));
    fake_->handlers[kKeys] = [&](const hub::HttpRequest&) {
      return std::pair<int, std::string>(answer);
    };
    EXPECT_EQ(Verify(Good()), absl::OkStatus()) << answer.second;
  }
}

TEST_F(IssuerTest, WhereNothingIsKnownTheReasonIsToldAndAskedAgainSoon) {
  fake_->down = true;
  EXPECT_TRUE(absl::IsUnavailable(Verify(Good())));
  fake_->down = false;
  EXPECT_TRUE(absl::IsUnavailable(Verify(Good()))) << "not yet";
  clock_.Advance(seconds(5));
  EXPECT_EQ(Verify(Good()), absl::OkStatus());
}

TEST_F(IssuerTest, ADiscoveryDocumentThatIsNotSafeIsRefused) {
  const std::pair<Json, const char*> bad[] = {
      {{{"issuer", "https://login.example.com/"}}, "byte for byte"},
      {{{"issuer", nullptr}}, "byte for byte"},
      {{{"jwks_uri", nullptr}}, "no jwks_uri that is https"},
      {{{"jwks_uri", "http://login.example.com/keys"}}, "no jwks_uri that is https"},
      {{{"jwks_uri", "http://127.0.0.1/keys"}}, "no jwks_uri that is https"},
      {{{"jwks_uri", "https://ann@login.example.com/keys"}}, "no jwks_uri that is https"},
      {{{"token_endpoint", "http://10.0.0.1/token"}}, "no token_endpoint that is https"},
      {{{"authorization_endpoint", "javascript:alert(1)"}}, "no authorization_endpoint"}};
  for (const auto& [changes, why] : bad) {
    FakeIssuer good;
    fake_->discovery = good.discovery;
    fake_->discovery.merge_patch(changes);
    clock_.Advance(seconds(5));
    const absl::Status refused = issuer_.Endpoints().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  }
}

TEST_F(IssuerTest, ALargeAnswerIsNotReadToItsEnd) {
  fake_->handlers[kKeys] = [](const hub::HttpRequest&) {
    return std::pair(200, std::string(2 * KeySet::kMostBytes, ' '));
  };
  EXPECT_FALSE(Verify(Good()).ok());
}

TEST(IssuerUrlTest, IsHttpsOrLoopback) {
  for (const char* good : {"https://a.example", "https://a.example:8443/realms/x",
                           "http://127.0.0.1:9000", "http://localhost/x", "http://[::1]:9000"}) {
    EXPECT_TRUE(IsIssuerUrl(good)) << good;
  }
  for (const char* bad :
       {"", "http://a.example", "http://127.0.0.1.evil.example", "https://a.example?x=1",
        "https://a.example#x", "https://ann@a.example", "ftp://a.example", "a.example",
        "http://127.0.0.1@evil.example/", "https://a.example\\.evil.example"}) {
    EXPECT_FALSE(IsIssuerUrl(bad)) << bad;
  }
}

}  // namespace
}  // namespace sft::server
