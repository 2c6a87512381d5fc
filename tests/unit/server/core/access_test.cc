#include "server/core/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "common/io/file.h"
#include "server/store/audit.h"
#include "server/store/webhooks.h"

namespace sft::server {
namespace {

using std::chrono::hours;
using testing::HasSubstr;

class AccessTest : public testing::Test {
 protected:
  AccessTest()
      : dir_(io::MakeTempDir("access-test").value()),
        authority_(tls::MakeAuthority("fleet",
                                      {clock_.Wall() - hours(24), clock_.Wall() + hours(24 * 365)})
                       .value()) {
    Restart();
  }
  ~AccessTest() override {
    access_.reset();
    store_.reset();
    (void)io::RemoveAll(dir_);
  }
  void Restart() {
    access_.reset();
    store_.reset();
    store_ = Store::Open({dir_ + "/server.db"}).value();
    access_ = Access::Load(*store_, clock_, authority_).value();
  }
  std::string UserToken(const std::string& user, int64_t expires_us = 0) {
    TokenRecord token;
    token.user = user;
    token.expires_us = expires_us;
    auto text = access_->CreateToken(token);
    last_ = token;
    return text.value_or("");
  }
  Principal Joiner(int uses = 1, const std::string& node = "") {
    TokenRecord token;
    token.kind = TokenKind::kJoin;
    token.max_uses = uses;
    token.node = node;
    return access_->OfToken(access_->CreateToken(token).value()).value();
  }
  static std::string Request(const std::string& key) {
    return tls::MakeRequest(key, "any").value();
  }
  std::string Why(const absl::Status& status) { return std::string(Message(status)); }

  FakeClock clock_;
  const std::string dir_;
  const tls::Identity authority_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Access> access_;
  TokenRecord last_;
  const std::string key_ = tls::MakeKey().value(), other_key_ = tls::MakeKey().value();
};

TEST_F(AccessTest, ATokenSpeaksForItsUserAlsoAfterARestart) {
  ASSERT_TRUE(access_->PutUser({"ann", false, {{"vision", Role::kSubmitter}}}).ok());
  const std::string text = UserToken("ann");
  Restart();
  const Principal ann = access_->OfToken(text).value();
  EXPECT_EQ(ann.Title(), "ann");
  EXPECT_EQ(ann.RoleIn("vision"), Role::kSubmitter);
  EXPECT_EQ(ann.RoleIn("speech"), Role::kNone);
}

TEST_F(AccessTest, OnlyTheHashOfASecretIsInTheDatabase) {
  ASSERT_TRUE(access_->PutUser({"ann", false, {}}).ok());
  const std::string secret = ReadToken(UserToken("ann"))->secret;
  access_.reset();
  store_.reset();
  for (const char* name : {"server.db", "server.db-wal"}) {
    const std::string bytes = io::ReadFile(dir_ + "/" + name).value_or("");
    EXPECT_EQ(bytes.find(secret), std::string::npos) << name;
  }
}

TEST_F(AccessTest, AWrongSecretIsNotDistinguishedFromAWrongId) {
  ASSERT_TRUE(access_->PutUser({"ann", false, {}}).ok());
  const TokenText good = *ReadToken(UserToken("ann"));
  TokenText wrong = good;
  wrong.secret[3] = wrong.secret[3] == 'a' ? 'b' : 'a';
  const absl::Status secret = access_->OfToken(Write(wrong)).status();
  wrong.id = "nobody22";
  EXPECT_EQ(secret, access_->OfToken(Write(wrong)).status());
  EXPECT_TRUE(absl::IsUnauthenticated(secret));
  for (const char* text : {"", "sft", "sft__", "sft_a_b_c_d", "Bearer x", "sftjoin_a_b"}) {
    EXPECT_TRUE(absl::IsUnauthenticated(access_->OfToken(text).status())) << text;
  }
  wrong = good;
  wrong.kind = TokenKind::kJoin;
  wrong.fingerprint = "f";
  EXPECT_TRUE(absl::IsUnauthenticated(access_->OfToken(Write(wrong)).status()));
}

TEST_F(AccessTest, AnExpiredARevokedAndARemovedUsersTokenAreRefusedByName) {
  ASSERT_TRUE(access_->PutUser({"ann", false, {}}).ok());
  const std::string brief = UserToken("ann", UnixMicros(clock_.Wall() + hours(1)));
  EXPECT_TRUE(access_->OfToken(brief).ok());
  clock_.Advance(hours(1));
  EXPECT_THAT(Why(access_->OfToken(brief).status()), HasSubstr("expired at"));
  const std::string ended = UserToken("ann");
  ASSERT_TRUE(access_->Revoke(last_.id).ok());
  EXPECT_THAT(Why(access_->OfToken(ended).status()), HasSubstr("was revoked at"));
  const std::string gone = UserToken("ann");
  ASSERT_TRUE(access_->RemoveUser("ann").ok());
  EXPECT_TRUE(absl::IsUnauthenticated(access_->OfToken(gone).status()));
  Restart();
  for (const std::string& text : {brief, ended, gone}) {
    EXPECT_TRUE(absl::IsUnauthenticated(access_->OfToken(text).status()));
  }
}

class HooksOfUsersTest : public AccessTest {
 protected:
  HooksOfUsersTest() {
    EXPECT_TRUE(
        access_->PutUser({"ann", false, {{"a", Role::kSubmitter}, {"b", Role::kSubmitter}}}).ok());
    EXPECT_TRUE(access_->PutUser({"root", true, {}}).ok());
    for (const auto& [id, maker, project] : {std::tuple("ann-a", "ann", "a"),
                                             {"ann-b", "ann", "b"},
                                             {"root-a", "root", "a"},
                                             {"root-all", "root", ""}}) {
      store::WebhookRecord hook;
      hook.id = id;
      hook.project = project;
      hook.created_by = maker;
      EXPECT_TRUE(Write([&](Database& db) { return store::InsertWebhook(db, hook); }).ok());
    }
  }
  absl::Status Write(const Store::Function& function) { return store_->Write(function); }
  // Those that are off: "ann-a: why".
  std::vector<std::string> Off() {
    std::vector<std::string> off;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const auto hooks, store::ListWebhooks(db, std::nullopt));
                      for (const store::WebhookRecord& hook : hooks) {
                        if (hook.off_us > 0) off.push_back(hook.id + ": " + hook.off_reason);
                      }
                      return absl::OkStatus();
                    })
                    .ok());
    std::ranges::sort(off);
    return off;
  }
};

TEST_F(HooksOfUsersTest, ARemovedUsersWebhooksAreToldNothingMore) {
  ASSERT_TRUE(Write([](Database& db) {
                return store::Enqueue(db, "ann-a", "job.failed", "{}", 1).status();
              }).ok());
  ASSERT_TRUE(access_->RemoveUser("ann").ok());
  EXPECT_THAT(Off(), testing::ElementsAre("ann-a: ann, who made it, was removed",
                                          "ann-b: ann, who made it, was removed"));
  ASSERT_TRUE(store_
                  ->Read([](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(const auto hooks, store::HooksFor(db, "a", "job.failed"));
                    EXPECT_THAT(hooks, testing::ElementsAre("root-a", "root-all"));
                    SFT_ASSIGN_OR_RETURN(const auto waiting,
                                         store::CountWaiting(db, "ann-a", "job.failed"));
                    EXPECT_EQ(waiting, 0) << "nor what has happened before";
                    return absl::OkStatus();
                  })
                  .ok());
}

TEST_F(HooksOfUsersTest, WhoLosesAProjectLosesItsWebhooks) {
  ASSERT_TRUE(access_->PutUser({"ann", false, {{"a", Role::kViewer}, {"b", Role::kViewer}}}).ok());
  EXPECT_THAT(Off(), testing::IsEmpty()) << "a viewer may read what they hear";
  ASSERT_TRUE(access_->PutUser({"ann", false, {{"b", Role::kViewer}}}).ok());
  EXPECT_THAT(Off(), testing::ElementsAre("ann-a: ann, who made it, may no longer read project a"));
  ASSERT_TRUE(Write([](Database& db) { return store::SwitchOn(db, "ann-a"); }).ok());
  ASSERT_TRUE(access_->PutUser({"ann", false, {{"b", Role::kSubmitter}}}).ok());
  EXPECT_THAT(Off(), testing::IsEmpty()) << "somebody else has turned it on";
}

TEST_F(HooksOfUsersTest, WhoIsAdminNoMoreKeepsWhatRolesAllow) {
  ASSERT_TRUE(access_->PutUser({"root", false, {{"a", Role::kViewer}}}).ok());
  EXPECT_THAT(Off(), testing::ElementsAre(
                         "root-all: root, who made it, may no longer read the whole server"));
}

TEST_F(AccessTest, ABadJoinTokenIsRefusedWithAdvice) {
  TokenRecord join;
  join.kind = TokenKind::kJoin;
  join.max_uses = 1;
  join.expires_us = UnixMicros(clock_.Wall() + hours(1));
  const std::string good = access_->CreateToken(join).value();
  TokenText unknown = *ReadToken(good);
  unknown.id = "nobody22";
  EXPECT_THAT(Why(access_->OfToken(Write(unknown)).status()),
              HasSubstr("`sftctl admin token create --join`"));
  clock_.Advance(hours(1));
  EXPECT_THAT(Why(access_->OfToken(good).status()),
              HasSubstr("`sftctl admin token create --join`"));
}

TEST_F(AccessTest, AnOldTokenIsForgottenAndStaysRefused) {
  ASSERT_TRUE(access_->PutUser({"ann", false, {}}).ok());
  const std::string text = UserToken("ann", UnixMicros(clock_.Wall() + hours(1)));
  clock_.Advance(hours(24 * 91));
  Restart();
  EXPECT_TRUE(access_->Tokens().empty());
  EXPECT_TRUE(absl::IsUnauthenticated(access_->OfToken(text).status()));
}

TEST_F(AccessTest, ANodeJoinsAndIsKnownByItsCertificate) {
  const std::string pem = access_->Join(Joiner(), "gpu-7", Request(key_)).value();
  const Principal node = access_->OfCertificate(pem).value();
  EXPECT_EQ(node.Title(), "nodes/gpu-7");
  EXPECT_EQ(node.Best(), Role::kNone);
  Restart();
  EXPECT_TRUE(access_->OfCertificate(pem).ok());
}

TEST_F(AccessTest, AUsedUpJoinTokenIsRefusedAndARepeatOfTheSameKeyIsNot) {
  const Principal joiner = Joiner(1);
  ASSERT_TRUE(access_->Join(joiner, "gpu-7", Request(key_)).ok());
  EXPECT_TRUE(access_->Join(joiner, "gpu-7", Request(key_)).ok()) << "its answer was lost";
  const absl::Status replay = access_->Join(joiner, "gpu-8", Request(other_key_)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(replay)) << replay;
  EXPECT_THAT(Why(replay), HasSubstr("is used up: an admin makes another"));
  EXPECT_EQ(access_->NodeKeys().size(), 1u);
}

TEST_F(AccessTest, ASecondKeyOfANameNeedsATokenForThatName) {
  const std::string first = access_->Join(Joiner(), "gpu-7", Request(key_)).value();
  const absl::Status twin = access_->Join(Joiner(), "gpu-7", Request(other_key_)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(twin)) << twin;
  EXPECT_THAT(Why(twin), HasSubstr("--join --node gpu-7"));
  const absl::Status elsewhere =
      access_->Join(Joiner(1, "gpu-7"), "gpu-8", Request(other_key_)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(elsewhere)) << elsewhere;
  ASSERT_TRUE(access_->Join(Joiner(1, "gpu-7"), "gpu-7", Request(other_key_)).ok());
  EXPECT_THAT(Why(access_->OfCertificate(first).status()), HasSubstr("joined with another key"));
}

TEST_F(AccessTest, ARevokedNodeIsRefusedUntilItJoinsAgain) {
  const std::string pem = access_->Join(Joiner(), "gpu-7", Request(key_)).value();
  ASSERT_TRUE(access_->OfCertificate(pem).ok());
  ASSERT_TRUE(access_->Revoke("nodes/gpu-7").ok());
  EXPECT_THAT(Why(access_->OfCertificate(pem).status()), HasSubstr("was revoked"));
  EXPECT_TRUE(absl::IsNotFound(access_->Revoke("nodes/none")));
  ASSERT_TRUE(access_->Join(Joiner(), "gpu-7", Request(key_)).ok());
  EXPECT_TRUE(access_->OfCertificate(pem).ok());
}

TEST_F(AccessTest, ACertificateEndsUnlessItIsRenewed) {
  const std::string pem = access_->Join(Joiner(), "gpu-7", Request(key_)).value();
  const Principal node = access_->OfCertificate(pem).value();
  clock_.Advance(Access::kNodeCertificateLife - hours(1));
  const std::string renewed = access_->Renew(node, Request(key_)).value();
  EXPECT_TRUE(absl::IsPermissionDenied(access_->Renew(node, Request(other_key_)).status()));
  clock_.Advance(hours(2));
  const absl::Status old = access_->OfCertificate(pem).status();
  EXPECT_TRUE(absl::IsUnauthenticated(old)) << old;
  EXPECT_THAT(Why(old), HasSubstr("expired at"));
  EXPECT_THAT(Why(old), HasSubstr("sftctl admin token create --join"));
  EXPECT_TRUE(access_->OfCertificate(renewed).ok());
}

TEST_F(AccessTest, AKeyIsForgottenLongAfterItsCertificateHasEnded) {
  ASSERT_TRUE(access_->Join(Joiner(), "gpu-7", Request(key_)).ok());
  const auto before = [&](hours age) { return UnixMicros(clock_.Wall() - age); };
  clock_.Advance(Access::kNodeCertificateLife + hours(9));
  ASSERT_TRUE(access_->Join(Joiner(), "gpu-8", Request(other_key_)).ok());
  EXPECT_THAT(access_->DropOldKeys(before(hours(10))).value(), testing::IsEmpty());
  clock_.Advance(hours(2));
  EXPECT_THAT(access_->DropOldKeys(before(hours(10))).value(), testing::ElementsAre("gpu-7"));
  for (int life = 0; life < 2; ++life) {
    ASSERT_EQ(access_->NodeKeys().size(), 1u);
    EXPECT_EQ(access_->NodeKeys()[0].node, "gpu-8");
    Restart();
  }
  EXPECT_TRUE(access_->Join(Joiner(), "gpu-7", Request(other_key_)).ok()) << "the name is free";
}

TEST_F(AccessTest, ALoginThatChangesNothingTellsNobody) {
  std::vector<std::string> told;
  access_->WhenRightsChange([&](const std::string& user) { told.push_back(user); });
  Access::Vouched ann;
  ann.user = {"ann", false, {{"p", Role::kViewer}}, "https://idp", "1"};
  ann.life_us = 1'000'000;
  TokenRecord token;
  const auto log_in = [&] {
    told.clear();
    const auto in = access_->LogIn(ann, token);
    EXPECT_TRUE(in.ok()) << in.status();
  };
  log_in();
  EXPECT_THAT(told, testing::ElementsAre("ann")) << "a role that is new";
  log_in();
  EXPECT_THAT(told, testing::IsEmpty());
  ann.user.roles["p"] = Role::kSubmitter;
  log_in();
  EXPECT_THAT(told, testing::ElementsAre("ann"));
  ann.user.roles.clear();
  ann.user.admin = true;
  log_in();
  EXPECT_THAT(told, testing::ElementsAre("ann"));
  told.clear();
  EXPECT_TRUE(access_->Revoke(token.id).ok());
  EXPECT_THAT(told, testing::ElementsAre("ann"));
}

TEST_F(AccessTest, AnotherFleetsCertificateIsRefused) {
  const tls::Identity other =
      tls::MakeAuthority("other", {clock_.Wall(), clock_.Wall() + hours(24)}).value();
  const std::string pem =
      tls::SignNode(other, Request(key_), "gpu-7", {clock_.Wall(), clock_.Wall() + hours(1)})
          .value();
  EXPECT_TRUE(absl::IsUnauthenticated(access_->OfCertificate(pem).status()));
}

TEST_F(AccessTest, ClocksAnHourApartAreReported) {
  const int64_t now = access_->now_us();
  EXPECT_TRUE(access_->CheckClock(now + 60'000'000).ok());
  const absl::Status behind = access_->CheckClock(now - 3'600'000'000);
  EXPECT_TRUE(absl::IsFailedPrecondition(behind)) << behind;
  EXPECT_THAT(Why(behind), HasSubstr("this node's is 60 min behind the server's"));
  EXPECT_THAT(Why(access_->CheckClock(now + 3'600'000'000)), HasSubstr("60 min ahead of"));
}

TEST_F(AccessTest, AChangeAndItsAuditRowAreOneTransaction) {
  AuditRow row{{0, 5, "admin", "t1", "ipv4:1.2.3.4:5", "AuthService.PutUser", "users/ann", 0}};
  const int64_t commits = store_->commits();
  ASSERT_TRUE(access_->PutUser({"ann", false, {}}, {"admin", &row}).ok());
  EXPECT_EQ(store_->commits(), commits + 1);
  EXPECT_TRUE(row.written);
  AuditRow refused{{0, 6, "admin", "t1", "p", "AuthService.PutUser", "users/?", 0}};
  EXPECT_FALSE(access_->PutUser({"no name", false, {}}, {"admin", &refused}).ok());
  EXPECT_FALSE(refused.written);
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    const auto rows = store::ListAudit(db, {}).value();
                    EXPECT_EQ(rows.size(), 1u);
                    EXPECT_EQ(rows[0].object, "users/ann");
                    EXPECT_EQ(store::ListAudit(db, {.principal = "bob"})->size(), 0u);
                    EXPECT_EQ(store::ListAudit(db, {.since_us = 6})->size(), 0u);
                    return absl::OkStatus();
                  })
                  .ok());
}

TEST_F(AccessTest, TheAuditKeepsItsNewestRows) {
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) -> absl::Status {
                    for (int i = 0; i < 1024; ++i) {
                      SFT_RETURN_IF_ERROR(
                          store::InsertAudit(db, {0, i, "ann", "", "", "m", "", 0}, /*keep=*/100));
                    }
                    const auto rows = store::ListAudit(db, {.limit = 500}).value();
                    EXPECT_EQ(rows.size(), 100u);
                    EXPECT_EQ(rows.front().sequence, 1024);
                    return absl::OkStatus();
                  })
                  .ok());
}

}  // namespace
}  // namespace sft::server
