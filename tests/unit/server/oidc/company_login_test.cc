#include "server/oidc/company_login.h"

#include <gmock/gmock.h>

#include "common/io/file.h"
#include "common/io/tree.h"
#include "server/core/access.h"
#include "server/oidc/login_renewal.h"
#include "server/store/audit.h"
#include "tests/unit/server/oidc/fake_issuer.h"

namespace sft::server {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;
using Json = nlohmann::json;

class CompanyLoginTest : public testing::Test {
 protected:
  CompanyLoginTest() : dir_(io::MakeTempDir("company-login").value()) {
    store_ = Store::Open({dir_ + "/server.db"}).value();
    access_ = Access::Load(*store_, clock_, std::nullopt).value();
    provider_.issuer = kIssuerUrl;
    provider_.client_id = "sft";
    provider_.client_secret = "hid:den";
    provider_.scopes = {"openid", "groups"};
    fake_->handlers["/token"] = [this](const hub::HttpRequest&) { return Tokens(); };
    Restart();
  }
  ~CompanyLoginTest() override {
    renewal_.reset();
    access_.reset();
    store_.reset();
    (void)io::RemoveAll(dir_);
  }
  void Restart() {
    renewal_.reset();
    people_ = std::make_unique<CompanyLogin>(provider_, roles_,
                                             std::make_shared<Issuer>(kIssuerUrl, fake_, clock_));
    renewal_ = std::make_unique<LoginRenewal>(*people_, *access_, clock_, dir_ + "/logins");
  }
  std::pair<int, std::string> Tokens() {
    claims_["iat"] = NowSeconds(clock_);
    claims_["exp"] = NowSeconds(clock_) + 300;
    answer_["id_token"] = fake_->signers.front().Sign(claims_);
    return {200, DumpJson(answer_)};
  }
  static v1::FinishLoginRequest Code() {
    v1::FinishLoginRequest request;
    request.set_code("code");
    request.set_nonce("nonce");
    request.set_redirect_uri("http://127.0.0.1:1/callback");
    request.set_code_verifier("verifier");
    return request;
  }
  void AnswerWith(int status, const std::string& text) {
    fake_->handlers["/token"] = [=](const hub::HttpRequest&) { return std::pair(status, text); };
  }
  absl::Status Refusal() { return people_->Finish(Code()).status(); }
  // A login as the service makes it: its token's text.
  std::string LogIn() {
    const auto finished = people_->Finish(Code());
    EXPECT_TRUE(finished.ok()) << finished.status();
    Access::Vouched vouched;
    vouched.user = finished->person->user;
    vouched.life_us = 3'600'000'000;
    TokenRecord token;
    std::string text = access_->LogIn(vouched, token).value();
    token_ = token.id;
    renewal_->Keep(token_, finished->person->refresh_token);
    return text;
  }
  absl::StatusOr<Principal> Use(const std::string& token) const { return access_->OfToken(token); }

  const std::string dir_;
  FakeClock clock_;
  const std::shared_ptr<FakeIssuer> fake_ = std::make_shared<FakeIssuer>();
  OidcConfig::Provider provider_;
  std::vector<OidcConfig::GroupRole> roles_ = {{"ml", false, "vision", Role::kSubmitter},
                                               {"staff", false, "vision", Role::kViewer},
                                               {"staff", false, "speech", Role::kViewer},
                                               {"root", true, "", Role::kNone}};
  Json claims_ = {{"iss", kIssuerUrl}, {"aud", "sft"},     {"sub", "u1"},
                  {"nonce", "nonce"},  {"groups", {"ml"}}, {"preferred_username", "ann@x.org"}};
  Json answer_ = {{"access_token", "at"}, {"refresh_token", "rt1"}};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<CompanyLogin> people_;
  std::unique_ptr<LoginRenewal> renewal_;
  std::string token_;
};

TEST_F(CompanyLoginTest, TheBrowserIsSentWithAllThatALoginNeeds) {
  v1::StartLoginRequest start;
  start.set_redirect_uri("http://127.0.0.1:1/callback");
  start.set_state("state-state-state");
  start.set_nonce("nonce-nonce-nonce");
  start.set_code_challenge(std::string(43, 'A'));
  EXPECT_EQ(people_->Start(start)->authorization_url(),
            "https://login.example.com/auth?response_type=code&client_id=sft&redirect_uri="
            "http%3A%2F%2F127.0.0.1%3A1%2Fcallback&scope=openid%20groups&state=state-state-state&"
            "nonce=nonce-nonce-nonce&code_challenge=" +
                std::string(43, 'A') + "&code_challenge_method=S256");
  start.set_code_challenge(std::string(42, 'A'));
  EXPECT_TRUE(absl::IsInvalidArgument(people_->Start(start).status()));
  start.set_code_challenge(std::string(43, '+'));
  EXPECT_TRUE(absl::IsInvalidArgument(people_->Start(start).status()));
}

TEST_F(CompanyLoginTest, GroupsBecomeRoles) {
  const std::pair<Json, std::map<std::string, Role>> cases[] = {
      {{"ml"}, {{"vision", Role::kSubmitter}}},
      {"ml", {{"vision", Role::kSubmitter}}},
      {{"staff", "ml", "other"}, {{"vision", Role::kSubmitter}, {"speech", Role::kViewer}}},
      {{"staff"}, {{"vision", Role::kViewer}, {"speech", Role::kViewer}}},
      {{"root"}, {}},
  };
  for (const auto& [groups, roles] : cases) {
    claims_["groups"] = groups;
    const auto finished = people_->Finish(Code());
    ASSERT_TRUE(finished.ok()) << finished.status();
    EXPECT_EQ(finished->person->user.roles, roles) << groups;
    EXPECT_EQ(finished->person->user.admin, groups == Json{"root"});
    EXPECT_EQ(finished->person->user.name, "ann-x.org");
    EXPECT_EQ(finished->person->user.subject, "u1");
  }
  for (const Json& groups :
       {Json{"other"}, Json::array(), Json(7), Json{{"ml", true}}, Json{7, nullptr}, Json("ML")}) {
    claims_["groups"] = groups;
    EXPECT_TRUE(absl::IsPermissionDenied(Refusal())) << groups << Refusal();
  }
  const hub::HttpRequest& asked = fake_->last["/token"];
  EXPECT_THAT(asked.body, HasSubstr("grant_type=authorization_code&code=code&"));
  EXPECT_THAT(asked.body, HasSubstr("code_verifier=verifier"));
  // "sft:hid%3Aden"
  EXPECT_THAT(asked.headers, testing::Contains(std::pair<std::string, std::string>(
                                 "Authorization", "Basic c2Z0OmhpZCUzQWRlbg==")));
}

TEST_F(CompanyLoginTest, WhatTheIdTokenHasNotIsAskedFor) {
  claims_.erase("groups");
  fake_->handlers["/me"] = [](const hub::HttpRequest& request) {
    EXPECT_THAT(request.headers, testing::Contains(std::pair<std::string, std::string>(
                                     "Authorization", "Bearer at")));
    return std::pair(200, R"({"sub": "u1", "groups": ["ml"], "preferred_username": "eve"})");
  };
  const auto finished = people_->Finish(Code());
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_EQ(finished->person->user.roles.at("vision"), Role::kSubmitter);
  EXPECT_EQ(finished->person->user.name, "ann-x.org") << "the ID token's counts";
  fake_->handlers["/me"] = [](const hub::HttpRequest&) {
    return std::pair(200, R"({"sub": "u2", "groups": ["ml"]})");
  };
  EXPECT_TRUE(absl::IsUnauthenticated(Refusal())) << Refusal();
}

TEST_F(CompanyLoginTest, NamesThatDeceiveAreNobodys) {
  for (const char* name : {"local", "nobody", "join-token", "ci-nightly"}) {
    claims_["preferred_username"] = name;
    EXPECT_TRUE(absl::IsPermissionDenied(Refusal())) << name;
  }
  const std::pair<Json, std::string> names[] = {
      {"../../etc", "etc"}, {"a\nb", "a-b"}, {"Jörg", "J--rg"},
      {"---", "u1"},        {7, "u1"},       {std::string(100, 'a'), std::string(63, 'a')}};
  for (const auto& [claim, name] : names) {
    claims_["preferred_username"] = claim;
    EXPECT_EQ(people_->Finish(Code())->person->user.name, name);
  }
}

TEST_F(CompanyLoginTest, WhatTheProviderRefusesIsTold) {
  AnswerWith(400, R"({"error": "invalid_grant", "error_description": "used \u001b[2J twice"})");
  EXPECT_TRUE(absl::IsUnauthenticated(Refusal()));
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("invalid_grant: used \\x1b[2J twice"));
  AnswerWith(401, R"({"error": "invalid_client"})");
  EXPECT_TRUE(absl::IsFailedPrecondition(Refusal()));
  AnswerWith(400, R"({"error": "access_denied"})");
  EXPECT_TRUE(absl::IsPermissionDenied(Refusal()));
  AnswerWith(503, "busy");
  EXPECT_TRUE(absl::IsUnavailable(Refusal()));
  AnswerWith(200, R"({"access_token": "at"})");
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("gave no ID token"));
  // The ID token of another login, and of another client.
  fake_->handlers["/token"] = [this](const hub::HttpRequest&) { return Tokens(); };
  claims_["nonce"] = "other";
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("(nonce)"));
  claims_["nonce"] = "nonce";
  claims_["aud"] = "wiki";
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("(aud)"));
  EXPECT_TRUE(absl::IsInvalidArgument(people_->Finish({}).status()));
}

TEST_F(CompanyLoginTest, ADeviceIsAskedForUntilSomebodyHasTypedTheCode) {
  v1::StartLoginRequest start;
  start.set_device(true);
  const auto answer = [&](const char* text) {
    fake_->handlers["/device"] = [=](const hub::HttpRequest&) { return std::pair(200, text); };
    return people_->Start(start);
  };
  const auto started = answer(R"({"device_code": "dc", "user_code": "AB-CD", "expires_in": 600,
                 "verification_uri": "https://login.example.com/device"})");
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->interval_seconds(), 5) << "where it says none";
  EXPECT_EQ(started->expires_in_seconds(), 600);
  for (
      const char* bad :
      {R"({"user_code": "AB", "verification_uri": "https://a.example"})",
       R"({"device_code": "dc", "user_code": "A\u001b[2J", "verification_uri": "https://a.example"})",
       R"({"device_code": "dc", "user_code": "AB", "verification_uri": "http://a.example"})",
       "[]"}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(answer(bad).status())) << bad;
  }
  v1::FinishLoginRequest finish;
  finish.set_device_code("dc");
  AnswerWith(400, R"({"error": "authorization_pending"})");
  EXPECT_FALSE(people_->Finish(finish)->person.has_value());
  AnswerWith(400, R"({"error": "slow_down"})");
  EXPECT_EQ(people_->Finish(finish)->slow_down_s, 5);
  AnswerWith(400, R"({"error": "expired_token"})");
  EXPECT_TRUE(absl::IsUnauthenticated(people_->Finish(finish).status()));
  claims_.erase("nonce");
  fake_->handlers["/token"] = [this](const hub::HttpRequest&) { return Tokens(); };
  EXPECT_EQ(people_->Finish(finish)->person->user.name, "ann-x.org");
  fake_->discovery.erase("device_authorization_endpoint");
  clock_.Advance(minutes(11));
  EXPECT_THAT(std::string(people_->Start(start).status().message()), HasSubstr("--oidc"));
}

TEST_F(CompanyLoginTest, ALoginLivesOnForAsLongAsTheProviderSaysSoAndItIsUsed) {
  const std::string token = LogIn();
  claims_.erase("nonce");
  for (int i = 0; i < 40; ++i) {
    clock_.Advance(minutes(31));
    answer_["refresh_token"] = "rt" + std::to_string(i + 2);
    EXPECT_EQ(renewal_->Step(), 1) << i;
    EXPECT_EQ(renewal_->Step(), 0) << i;
    EXPECT_THAT(fake_->last["/token"].body,
                HasSubstr("grant_type=refresh_token&refresh_token=rt" + std::to_string(i + 1)));
    ASSERT_TRUE(Use(token).ok()) << Use(token).status();
  }
  // Nobody uses it: it ends.
  for (int i = 0; i < 30; ++i) {
    clock_.Advance(minutes(31));
    (void)renewal_->Step();
  }
  EXPECT_EQ(renewal_->kept(), 0u);
  EXPECT_EQ(io::ListDir(dir_ + "/logins")->size(), 0u);
  EXPECT_THAT(std::string(Use(token).status().message()), HasSubstr("sftctl login --oidc"));
}

TEST_F(CompanyLoginTest, ARestartGoesOnWithTheNewestRefreshToken) {
  const std::string token = LogIn();
  clock_.Advance(minutes(31));
  answer_["refresh_token"] = "rt2";
  EXPECT_EQ(renewal_->Step(), 1);
  Restart();
  EXPECT_EQ(renewal_->kept(), 1u);
  clock_.Advance(minutes(31));
  EXPECT_EQ(renewal_->Step(), 1);
  EXPECT_THAT(fake_->last["/token"].body, HasSubstr("refresh_token=rt2"));
  EXPECT_TRUE(Use(token).ok());
  const std::vector<std::string> open =
      io::CloseDataDir(dir_, {"logins"}).value();  // names what others may read
  EXPECT_TRUE(open.empty());
}

TEST_F(CompanyLoginTest, AGroupThatChangesChangesTheRoles) {
  const std::string token = LogIn();
  const std::string other = LogIn();
  claims_["groups"] = Json{"staff"};
  clock_.Advance(minutes(31));
  EXPECT_EQ(renewal_->Step(), 2);
  EXPECT_EQ(Use(token)->roles.at("vision"), Role::kViewer);
  EXPECT_EQ(Use(other)->roles.at("speech"), Role::kViewer);
  // The change has a row of the audit, once.
  std::vector<AuditRecord> rows;
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(rows, store::ListAudit(db, {}));
                    return absl::OkStatus();
                  })
                  .ok());
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].principal + " " + rows[0].method + " " + rows[0].object,
            "ann-x.org login renewed users/ann-x.org");
  claims_["groups"] = Json{"other"};
  clock_.Advance(minutes(31));
  EXPECT_EQ(renewal_->Step(), 2);
  EXPECT_FALSE(Use(token).ok());
  EXPECT_FALSE(Use(other).ok());
  EXPECT_TRUE(access_->FindUser("ann-x.org")->roles.empty());
  EXPECT_EQ(renewal_->kept(), 0u);
}

TEST_F(CompanyLoginTest, WhoIsRefusedOrAnotherIsOut) {
  const std::string refused = LogIn();
  clock_.Advance(minutes(31));
  AnswerWith(400, R"({"error": "invalid_grant"})");
  EXPECT_EQ(renewal_->Step(), 1);
  EXPECT_THAT(std::string(Use(refused).status().message()), HasSubstr("was revoked"));
  fake_->handlers["/token"] = [this](const hub::HttpRequest&) { return Tokens(); };
  const std::string another = LogIn();
  claims_["sub"] = "u2";
  clock_.Advance(minutes(31));
  EXPECT_EQ(renewal_->Step(), 1);
  EXPECT_FALSE(Use(another).ok());
}

TEST_F(CompanyLoginTest, AProviderThatIsDownEndsALoginAtItsTimeUnlessItComesBack) {
  const std::string token = LogIn();
  fake_->down = true;
  clock_.Advance(minutes(31));
  EXPECT_EQ(renewal_->Step(), 1);
  EXPECT_EQ(renewal_->Step(), 0) << "it rests";
  EXPECT_TRUE(Use(token).ok());
  clock_.Advance(minutes(29));
  EXPECT_EQ(renewal_->Step(), 1);
  EXPECT_TRUE(absl::IsUnauthenticated(Use(token).status()));
  fake_->down = false;
  clock_.Advance(seconds(30));
  EXPECT_EQ(renewal_->Step(), 1);
  EXPECT_TRUE(Use(token).ok()) << Use(token).status();
}

TEST_F(CompanyLoginTest, WhoLogsOutOrIsRemovedIsAskedForNoMore) {
  const std::string out = LogIn();
  renewal_->LogOut(token_);
  EXPECT_EQ(renewal_->Step(), 0);
  EXPECT_FALSE(Use(out).ok());
  const std::string removed = LogIn();
  ASSERT_TRUE(access_->RemoveUser("ann-x.org").ok());
  clock_.Advance(minutes(31));
  EXPECT_EQ(renewal_->Step(), 0);
  EXPECT_EQ(renewal_->kept(), 0u);
  EXPECT_FALSE(Use(removed).ok());
}

TEST_F(CompanyLoginTest, AUserOfTheCompanyIsNoAdminsToChange) {
  const std::string token = LogIn();
  EXPECT_TRUE(absl::IsFailedPrecondition(access_->PutUser({"ann-x.org", true, {}})));
  TokenRecord more;
  more.user = "ann-x.org";
  EXPECT_TRUE(absl::IsFailedPrecondition(access_->CreateToken(more).status()));
  // Neither takes a login a name that an admin has given, nor one of another person.
  ASSERT_TRUE(access_->PutUser({"bob", false, {{"vision", Role::kViewer}}}).ok());
  claims_["sub"] = "u2";
  for (const char* name : {"bob", "ann@x.org"}) {
    claims_["preferred_username"] = name;
    const auto finished = people_->Finish(Code());
    ASSERT_TRUE(finished.ok());
    EXPECT_TRUE(absl::IsAlreadyExists(access_->NameOf(finished->person->user).status())) << name;
    TokenRecord none;
    EXPECT_FALSE(access_->LogIn({finished->person->user, 1, ""}, none).ok());
  }
  EXPECT_EQ(access_->FindUser("bob")->issuer, "");
  // Who is renamed there stays who it is here.
  claims_["sub"] = "u1";
  claims_["preferred_username"] = "ann.married";
  (void)LogIn();
  EXPECT_EQ(access_->FindToken(token_)->user, "ann-x.org");
}

}  // namespace
}  // namespace sft::server
