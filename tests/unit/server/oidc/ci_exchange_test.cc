#include "server/oidc/ci_exchange.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/io/file.h"
#include "tests/unit/server/oidc/fake_issuer.h"

namespace sft::server {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kGitlabUrl[] = "https://gitlab.example.com";

class CiExchangeTest : public testing::Test {
 protected:
  CiExchangeTest() : dir_(io::MakeTempDir("ci-exchange").value()) {
    store_ = Store::Open({dir_ + "/server.db"}).value();
    access_ = Access::Load(*store_, clock_, std::nullopt).value();
    OidcConfig::CiRule github{"nightly",
                              OidcConfig::CiKind::kGithub,
                              kIssuerUrl,
                              "sft",
                              "",
                              {{"repository_id", {"1"}},
                               {"repository_owner_id", {"2"}},
                               {"ref", {"refs/heads/main", "refs/heads/x"}}},
                              "vision",
                              Role::kSubmitter};
    OidcConfig::CiRule second = github;
    second.name = "weekly";
    second.audience = "sft-weekly";
    second.claims["repository_id"] = {"5"};
    const OidcConfig::CiRule gitlab{"lab",
                                    OidcConfig::CiKind::kGitlab,
                                    kGitlabUrl,
                                    "sft",
                                    "",
                                    {{"project_id", {"7"}},
                                     {"ref_protected", {"true"}},
                                     {"ref_type", {"branch"}},
                                     {"ref", {"main"}}},
                                    "speech",
                                    Role::kViewer};
    const auto of_github = std::make_shared<Issuer>(kIssuerUrl, github_, clock_);
    exchange_ = std::make_unique<CiExchange>(std::vector<CiExchange::Rule>{
        {github, of_github},
        {second, of_github},
        {gitlab, std::make_shared<Issuer>(kGitlabUrl, gitlab_, clock_)}});
  }
  ~CiExchangeTest() override {
    access_.reset();
    store_.reset();
    (void)io::RemoveAll(dir_);
  }
  Json Github(const Json& changes = Json::object()) const {
    Json claims = {{"iss", kIssuerUrl},
                   {"aud", "sft"},
                   {"sub", "repo:octo/x:ref:refs/heads/main"},
                   {"jti", "id-1"},
                   {"iat", NowSeconds(clock_)},
                   {"exp", NowSeconds(clock_) + 300},
                   {"repository", "octo/x"},
                   {"repository_id", "1"},
                   {"repository_owner_id", "2"},
                   {"ref", "refs/heads/main"},
                   {"run_id", "99"},
                   {"event_name", "push"}};
    claims.merge_patch(changes);
    return claims;
  }
  Json Gitlab(const Json& changes = Json::object()) const {
    Json claims = {{"iss", kGitlabUrl},
                   {"aud", "sft"},
                   {"sub", "project_path:a/b"},
                   {"jti", "id-1"},
                   {"iat", NowSeconds(clock_)},
                   {"exp", NowSeconds(clock_) + 300},
                   {"project_id", "7"},
                   {"project_path", "a/b"},
                   {"ref_protected", "true"},
                   {"ref_type", "branch"},
                   {"ref", "main"},
                   {"pipeline_source", "push"}};
    claims.merge_patch(changes);
    return claims;
  }
  absl::StatusOr<Access::Vouched> Exchange(const Json& claims) const {
    const FakeIssuer& of = TextClaim(claims, "iss") == kGitlabUrl ? *gitlab_ : *github_;
    return exchange_->Exchange(of.signers.front().Sign(claims));
  }

  const std::string dir_;
  FakeClock clock_;
  const std::shared_ptr<FakeIssuer> github_ = std::make_shared<FakeIssuer>(),
                                    gitlab_ = std::make_shared<FakeIssuer>(kGitlabUrl);
  std::unique_ptr<Store> store_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<CiExchange> exchange_;
};

TEST_F(CiExchangeTest, AJobThatARuleNamesGetsOneRoleInOneProjectForAnHour) {
  const auto vouched = Exchange(Github());
  ASSERT_TRUE(vouched.ok()) << vouched.status();
  EXPECT_EQ(vouched->user.name, "ci-nightly");
  EXPECT_EQ(vouched->user.roles, (std::map<std::string, Role>{{"vision", Role::kSubmitter}}));
  EXPECT_EQ(vouched->life_us, 3'600'000'000);
  EXPECT_EQ(vouched->comment, "octo/x refs/heads/main, run 99");
  TokenRecord token;
  const std::string text = access_->LogIn(*vouched, token).value();
  EXPECT_EQ(access_->OfToken(text)->RoleIn("vision"), Role::kSubmitter);
  EXPECT_EQ(access_->OfToken(text)->RoleIn("speech"), Role::kNone);
  clock_.Advance(std::chrono::hours(1));
  EXPECT_TRUE(absl::IsUnauthenticated(access_->OfToken(text).status()));
  EXPECT_EQ(Exchange(Github({{"ref", "refs/heads/x"}}))->user.name, "ci-nightly");
  EXPECT_EQ(Exchange(Github({{"repository_id", "5"}, {"aud", "sft-weekly"}}))->user.name,
            "ci-weekly");
  EXPECT_EQ(Exchange(Gitlab())->user.roles.at("speech"), Role::kViewer);
}

TEST_F(CiExchangeTest, TokensThatHaveEndedAreForgottenAfterAWeek) {
  std::string first;
  for (int day = 0; day < 30; ++day) {
    TokenRecord token;
    ASSERT_TRUE(access_->LogIn(*Exchange(Github({{"jti", std::to_string(day)}})), token).ok());
    if (day == 0) first = token.id;
    clock_.Advance(std::chrono::hours(24));
  }
  EXPECT_EQ(access_->Tokens().size(), 8u);
  EXPECT_FALSE(access_->FindToken(first).has_value());
  access_ = Access::Load(*store_, clock_, std::nullopt).value();
  EXPECT_EQ(access_->Tokens().size(), 8u) << "nor are they rows";
}

TEST_F(CiExchangeTest, AJobThatNoRuleNamesGetsNothing) {
  const Json bad[] = {
      Github({{"repository_id", "3"}}),
      Github({{"repository_id", 1}}),
      Github({{"repository_id", nullptr}}),
      Github({{"repository_owner_id", "3"}}),
      Github({{"ref", "refs/heads/main2"}}),
      Github({{"ref", "refs/pull/7/merge"}}),
      Github({{"ref", {"refs/heads/main"}}}),
      Github({{"event_name", "pull_request"}}),
      Github({{"event_name", "pull_request_target"}}),
      Github({{"event_name", "pull_request_review"}}),
      Github({{"event_name", "pull_request_review_comment"}}),
      Github({{"event_name", {"push"}}}),
      Github({{"event_name", nullptr}}),
      // The audience of one rule and the repository of another.
      Github({{"repository_id", "5"}}),
      Gitlab({{"project_id", "8"}}),
      Gitlab({{"ref_protected", "false"}}),
      Gitlab({{"ref_protected", true}}),
      Gitlab({{"ref_type", "tag"}}),
      Gitlab({{"pipeline_source", "merge_request_event"}}),
      Gitlab({{"pipeline_source", "external_pull_request_event"}}),
  };
  for (const Json& claims : bad) {
    EXPECT_TRUE(absl::IsPermissionDenied(Exchange(claims).status())) << claims;
  }
  // What is not signed is told the same, whether a rule fits it or not.
  for (const char* repository : {"1", "3"}) {
    const absl::Status forged =
        exchange_->Exchange(gitlab_->signers.front().Sign(Github({{"repository_id", repository}})))
            .status();
    EXPECT_TRUE(absl::IsUnauthenticated(forged)) << forged;
  }
}

TEST_F(CiExchangeTest, ATokenThatIsNotGoodGetsNothing) {
  const std::pair<Json, const char*> bad[] = {
      {Github({{"aud", "https://github.com/octo"}}), "(aud)"},
      {Github({{"exp", NowSeconds(clock_) - 61}}), "(exp)"},
      {Github({{"jti", nullptr}}), "(jti)"},
      {Github({{"iss", "https://evil.example.com"}}), "no rule here is for the issuer"},
  };
  for (const auto& [claims, why] : bad) {
    const absl::Status refused = Exchange(claims).status();
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << claims << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  }
  // Another issuer's signature, under the name of this one.
  EXPECT_TRUE(absl::IsUnauthenticated(
      exchange_->Exchange(gitlab_->signers.front().Sign(Github())).status()));
}

TEST_F(CiExchangeTest, ATokenIsGoodOnceAlsoAfterARestart) {
  const Json claims = Github();
  TokenRecord token;
  ASSERT_TRUE(access_->LogIn(*Exchange(claims), token).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(access_->LogIn(*Exchange(claims), token).status()));
  access_.reset();
  store_.reset();
  store_ = Store::Open({dir_ + "/server.db"}).value();
  access_ = Access::Load(*store_, clock_, std::nullopt).value();
  EXPECT_TRUE(absl::IsAlreadyExists(access_->LogIn(*Exchange(claims), token).status()));
  // To its last second, which clocks that are apart make later.
  clock_.Advance(std::chrono::seconds(359));
  EXPECT_TRUE(absl::IsAlreadyExists(access_->LogIn(*Exchange(claims), token).status()));
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(absl::IsUnauthenticated(Exchange(claims).status()));
  EXPECT_TRUE(access_->LogIn(*Exchange(Github({{"jti", "id-2"}})), token).ok());
  // Another issuer's ids are others.
  EXPECT_TRUE(access_->LogIn(*Exchange(Gitlab()), token).ok());
}

TEST_F(CiExchangeTest, OfManyWhoBringOneTokenAtOnceOneIsLetIn) {
  const Json claims = Github();
  std::atomic<int> let_in = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto vouched = Exchange(claims);
      ASSERT_TRUE(vouched.ok()) << vouched.status();
      TokenRecord token;
      const absl::Status status = access_->LogIn(*vouched, token).status();
      ++(status.ok() ? let_in : refused);
      EXPECT_TRUE(status.ok() || absl::IsAlreadyExists(status)) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(let_in, 1);
  EXPECT_EQ(refused, 7);
}

}  // namespace
}  // namespace sft::server
