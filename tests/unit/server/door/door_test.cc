// The door with an exchange of the test's own: no transport, no socket.

#include "server/door/door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "common/io/file.h"
#include "server/door/followed_call.h"
#include "server/door/methods.h"
#include "sft/v1/auth_service.pb.h"
#include "sft/v1/data_service.pb.h"
#include "sft/v1/operator_service.pb.h"

namespace sft::server {
namespace {

using testing::HasSubstr;

// What a caller sends and gets.
class FakeExchange final : public Exchange {
 public:
  explicit FakeExchange(const std::string& token = "") {
    origin_.peer = "ipv4:10.0.0.3:4711";
    if (!token.empty()) origin_.authorization = "Bearer " + token;
  }
  FakeExchange& Send(const google::protobuf::Message& message) {
    sent_.push_back(message.SerializeAsString());
    return *this;
  }
  FakeExchange& SendBytes(const std::string& bytes) {
    sent_.push_back(bytes);
    return *this;
  }
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    if (sent_.empty()) return false;
    const std::string bytes = std::move(sent_.front());
    sent_.pop_front();
    if (!message.ParseFromString(bytes)) return InvalidArgument("no such message");
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    answers.push_back(message.SerializeAsString());
    return true;
  }
  bool Gone() const override { return gone; }

  std::vector<std::string> answers;
  bool gone = false;

 private:
  CallOrigin origin_;
  std::deque<std::string> sent_;
};

// Answers once, then waits.
class FakeFollower final : public Follower {
 public:
  absl::StatusOr<Next> Look(Exchange& exchange) override {
    if (looked_) return Next::kWait;
    looked_ = true;
    exchange.Write(v1::Stats());
    return Next::kAgain;
  }
  std::vector<std::string> keys() const override { return {"stats"}; }

 private:
  bool looked_ = false;
};

// Methods that keep a user, take several messages and count what they were called with.
class FakeService {
 public:
  explicit FakeService(Access& access) : access_(access) {}

  void AddTo(Methods& methods) {
    using Self = FakeService;
    const auto rule = [](std::string method, Role role, Audit audit) {
      return Rule{std::move(method), Caller::kUser, role, Place::kAny, audit};
    };
    methods.Unary(rule("Fake.Put", Role::kAdmin, Audit::kChange), this, &Self::Put);
    methods.Unary(rule("Fake.Look", Role::kViewer, Audit::kNone), this, &Self::Look);
    Rule waits = rule("Fake.Ask", Role::kViewer, Audit::kNone);
    waits.waits = true;
    methods.Unary(waits, this, &Self::Look);
    methods.ClientStream(rule("Fake.Take", Role::kViewer, Audit::kNone), this, &Self::Take);
    methods.ServerStream(rule("Fake.Watch", Role::kViewer, Audit::kNone), this, &Self::Watch);
    methods.Follow(rule("Fake.Follow", Role::kViewer, Audit::kNone), this, &Self::Follow);
  }

  absl::StatusOr<v1::User> Put(CallContext& call, const v1::PutUserRequest& request) {
    ++calls;
    SFT_RETURN_IF_ERROR(access_.PutUser({request.user().name(), false, {}}, call.actor()));
    return request.user();
  }
  absl::StatusOr<v1::Stats> Look(CallContext&, const v1::GetStatsRequest&) {
    ++calls;
    if (between != nullptr) between();
    return v1::Stats();
  }
  absl::StatusOr<v1::UploadBlobResponse> Take(CallContext&, Source<v1::UploadBlobRequest>& source) {
    ++calls;
    v1::UploadBlobRequest message;
    while (source.Read(message)) {
      ++taken;
      if (between != nullptr) between();
    }
    SFT_RETURN_IF_ERROR(source.status());
    return v1::UploadBlobResponse();
  }
  absl::Status Watch(CallContext& call, const v1::GetStatsRequest&, Sink<v1::Stats>& sink) {
    ++calls;
    while (!call.Gone()) {
      sink.Write(v1::Stats());
      if (between != nullptr) between();
    }
    return absl::CancelledError("the caller has gone");
  }

  absl::StatusOr<std::unique_ptr<Follower>> Follow(CallContext&, const v1::GetStatsRequest&) {
    ++calls;
    return std::make_unique<FakeFollower>();
  }

  int calls = 0, taken = 0;
  std::function<void()> between;

 private:
  Access& access_;
};

class DoorTest : public testing::Test {
 protected:
  DoorTest()
      : dir_(io::MakeTempDir("door-test").value()),
        store_(Store::Open({.path = dir_ + "/server.db"}).value()),
        access_(Access::Load(*store_, clock_, std::nullopt).value()),
        gate_(*access_, *store_, clock_, /*open=*/false),
        service_(*access_) {
    service_.AddTo(methods_);
    EXPECT_TRUE(access_->PutUser({"root", true, {}}).ok());
    admin_ = TokenOf("root");
    EXPECT_TRUE(access_->PutUser({"ann", false, {{"alpha", Role::kViewer}}}).ok());
    ann_ = TokenOf("ann");
  }
  ~DoorTest() override {
    access_.reset();
    store_.reset();
    (void)io::RemoveAll(dir_);
  }
  std::string TokenOf(const std::string& user) {
    TokenRecord token;
    token.user = user;
    return access_->CreateToken(token).value();
  }
  absl::Status Serve(const std::string& method, FakeExchange& exchange) {
    return door_.Serve(*methods_.Find(method), exchange);
  }
  FollowedCall Follow(FakeExchange& exchange) {
    return {door_, *methods_.Find("Fake.Follow"), exchange};
  }
  std::vector<AuditRecord> Audit() {
    EXPECT_TRUE(gate_.failed().Flush().ok());
    std::vector<AuditRecord> rows;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      rows = store::ListAudit(db, {}).value();
                      return absl::OkStatus();
                    })
                    .ok());
    return rows;
  }
  static v1::PutUserRequest Bob() {
    v1::PutUserRequest request;
    request.mutable_user()->set_name("bob");
    return request;
  }

  FakeClock clock_;
  const std::string dir_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Access> access_;
  Gate gate_;
  Door door_{gate_};
  FakeService service_;
  Methods methods_;
  std::string admin_, ann_;
};

TEST_F(DoorTest, AChangeIsAnsweredAndHasItsRowInItsOwnTransaction) {
  FakeExchange exchange(admin_);
  exchange.Send(Bob());
  const int64_t commits = store_->commits();
  EXPECT_TRUE(Serve("Fake.Put", exchange).ok());
  EXPECT_EQ(store_->commits(), commits + 1);
  ASSERT_EQ(exchange.answers.size(), 1u);
  const std::vector<AuditRecord> rows = Audit();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].principal, "root");
  EXPECT_EQ(rows[0].method, "Fake.Put");
  EXPECT_EQ(rows[0].peer, "ipv4:10.0.0.3:4711");
  EXPECT_EQ(rows[0].outcome, 0);
}

TEST_F(DoorTest, WhoMayNotDoesNotReachTheMethodAndIsCounted) {
  FakeExchange exchange(ann_);
  exchange.Send(Bob());
  const absl::Status refused = Serve("Fake.Put", exchange);
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  FakeExchange nobody;
  nobody.Send(Bob());
  EXPECT_TRUE(absl::IsUnauthenticated(Serve("Fake.Put", nobody)));
  EXPECT_EQ(service_.calls, 0);
  EXPECT_TRUE(exchange.answers.empty());
  const std::vector<AuditRecord> rows = Audit();
  ASSERT_EQ(rows.size(), 2u);
  std::set<std::string> who;
  for (const AuditRecord& row : rows) who.insert(row.principal);
  EXPECT_EQ(who, (std::set<std::string>{"ann", "nobody"}));
}

TEST_F(DoorTest, EachKindOfMethodCountsItsFailures) {
  for (const char* method : {"Fake.Put", "Fake.Look", "Fake.Take", "Fake.Watch"}) {
    FakeExchange exchange(admin_);
    exchange.SendBytes("\xff\xff");
    EXPECT_TRUE(absl::IsInvalidArgument(Serve(method, exchange))) << method;
  }
  FakeExchange exchange(admin_);
  exchange.SendBytes("\xff\xff");
  FollowedCall call = Follow(exchange);
  EXPECT_EQ(call.Look(), Follower::Next::kEnd);
  EXPECT_TRUE(absl::IsInvalidArgument(call.status()));
  EXPECT_EQ(Audit().size(), 5u);
}

TEST_F(DoorTest, ALookHasNoRow) {
  FakeExchange exchange(ann_);
  exchange.Send(v1::GetStatsRequest());
  EXPECT_TRUE(Serve("Fake.Look", exchange).ok());
  EXPECT_EQ(exchange.answers.size(), 1u);
  EXPECT_TRUE(Audit().empty());
}

TEST_F(DoorTest, AStreamEndsWhenItsCallerLosesTheRight) {
  v1::UploadBlobRequest part;
  part.set_data("x");
  FakeExchange exchange(ann_);
  exchange.Send(part).Send(part).Send(part);
  service_.between = [&] { EXPECT_TRUE(access_->RemoveUser("ann").ok()); };
  EXPECT_TRUE(absl::IsUnauthenticated(Serve("Fake.Take", exchange)));
  EXPECT_EQ(service_.taken, 1);
  EXPECT_TRUE(exchange.answers.empty());
  EXPECT_TRUE(access_->PutUser({"ann", false, {{"alpha", Role::kViewer}}}).ok());
  FakeExchange watch(TokenOf("ann"));
  watch.Send(v1::GetStatsRequest());
  EXPECT_TRUE(absl::IsUnauthenticated(Serve("Fake.Watch", watch)));
  EXPECT_EQ(watch.answers.size(), 1u);
}

TEST_F(DoorTest, AStreamWhoseCallerHasGoneIsNoFailure) {
  FakeExchange exchange(ann_);
  exchange.Send(v1::GetStatsRequest());
  service_.between = [&] { exchange.gone = true; };
  EXPECT_TRUE(absl::IsCancelled(Serve("Fake.Watch", exchange)));
  EXPECT_TRUE(Audit().empty());
}

TEST_F(DoorTest, StreamsAreCountedWhileTheyLast) {
  FakeExchange exchange(ann_);
  exchange.Send(v1::GetStatsRequest());
  absl::Status inside;
  service_.between = [&] {
    exchange.gone = true;
    while (gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok()) {
    }
    FakeExchange more(ann_);
    more.Send(v1::GetStatsRequest());
    inside = Serve("Fake.Watch", more);
  };
  EXPECT_TRUE(absl::IsCancelled(Serve("Fake.Watch", exchange)));
  EXPECT_TRUE(absl::IsResourceExhausted(inside)) << inside;
  EXPECT_THAT(std::string(Message(inside)), HasSubstr("of ann"));
  // The one that has ended left its place.
  EXPECT_TRUE(gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok());
}

TEST_F(DoorTest, ACallThatWaitsForOthersCountsAsAStreamAndOneThatDoesNotDoesNot) {
  absl::Status asks, looks;
  bool first = true;
  service_.between = [&] {
    if (!std::exchange(first, false)) return;
    while (gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok()) {
    }
    FakeExchange ask(ann_), look(ann_);
    asks = Serve("Fake.Ask", ask.Send(v1::GetStatsRequest()));
    looks = Serve("Fake.Look", look.Send(v1::GetStatsRequest()));
  };
  FakeExchange exchange(ann_);
  EXPECT_TRUE(Serve("Fake.Ask", exchange.Send(v1::GetStatsRequest())).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(asks)) << asks;
  EXPECT_TRUE(looks.ok()) << looks;
  EXPECT_TRUE(gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok()) << "it left its place";
  EXPECT_FALSE(gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok());
}

TEST_F(DoorTest, ACallThatFollowsIsAdmittedByItsFirstLookAndIsAStreamWhileItLives) {
  FakeExchange exchange(ann_);
  exchange.Send(v1::GetStatsRequest());
  while (gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok()) {
  }
  gate_.EndStream("ann", "test");
  {
    FollowedCall call = Follow(exchange);
    EXPECT_TRUE(call.keys().empty());
    EXPECT_EQ(call.Look(), Follower::Next::kAgain);
    EXPECT_EQ(call.keys(), (std::vector<std::string>{"stats", "users/ann"}));
    EXPECT_TRUE(exchange.answers.empty()) << "who waits for its keys comes first";
    EXPECT_FALSE(gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok());
    EXPECT_EQ(call.Look(), Follower::Next::kAgain);
    EXPECT_EQ(call.Look(), Follower::Next::kWait);
    EXPECT_EQ(exchange.answers.size(), 1u);
    FakeExchange more(ann_);
    more.Send(v1::GetStatsRequest());
    FollowedCall refused = Follow(more);
    EXPECT_EQ(refused.Look(), Follower::Next::kEnd);
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
    exchange.gone = true;
    EXPECT_EQ(call.Look(), Follower::Next::kEnd);
    EXPECT_TRUE(absl::IsCancelled(call.status()));
  }
  EXPECT_EQ(service_.calls, 1);
  EXPECT_EQ(Audit().size(), 1u) << "the one that was refused";
  EXPECT_TRUE(gate_.BeginStream("ann", Gate::kMaxStreamsOfOne, "test").ok());
}

TEST_F(DoorTest, ACallThatFollowsEndsWhenItsCallerLosesTheRight) {
  FakeExchange exchange(ann_);
  exchange.Send(v1::GetStatsRequest());
  FollowedCall call = Follow(exchange);
  std::vector<std::string> told;
  access_->WhenRightsChange([&](const std::string& user) { told.push_back(user); });
  EXPECT_EQ(call.Look(), Follower::Next::kAgain);
  EXPECT_TRUE(access_->RemoveUser("ann").ok());
  EXPECT_EQ(told, std::vector<std::string>{"ann"});
  EXPECT_EQ(call.Look(), Follower::Next::kEnd);
  EXPECT_TRUE(absl::IsUnauthenticated(call.status())) << call.status();
  EXPECT_TRUE(exchange.answers.empty());
}

TEST_F(DoorTest, ACallThatItsTransportEndsIsCounted) {
  FakeExchange exchange(ann_);
  exchange.Send(v1::GetStatsRequest());
  FollowedCall call = Follow(exchange);
  EXPECT_EQ(call.Look(), Follower::Next::kAgain);
  call.End(Unavailable("the server is stopping"));
  EXPECT_TRUE(absl::IsUnavailable(call.status()));
  EXPECT_EQ(Audit().size(), 1u);
}

}  // namespace
}  // namespace sft::server
