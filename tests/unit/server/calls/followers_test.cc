// Calls that follow, over gRPC, with a method of the test's own.

#include "server/calls/followers.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "server/rpc/grpc_server.h"
#include "sft/v1/job_service.pb.h"
#include "tests/unit/server/rpc/raw_call.h"

namespace sft::server {
namespace {

using testing::HasSubstr;

constexpr char kFollowPath[] = "/sft.v1.Fake/Follow";

// What the followers of the test say, and how many there are.
struct EchoWorld {
  std::atomic<int> value{0}, followers{0};
  std::atomic<int64_t> looks{0}, flooded{0};
};

// Follows by the name of its request: "flood" sends all the time; "once" sends one answer; "throw"
// cannot; everything else sends the world's value whenever it has changed.
class EchoFollower final : public Follower {
 public:
  EchoFollower(EchoWorld& world, std::string name) : world_(world), name_(std::move(name)) {
    ++world_.followers;
  }
  ~EchoFollower() override { --world_.followers; }

  absl::StatusOr<Next> Look(Exchange& exchange) override {
    ++world_.looks;
    v1::ReadLogResponse answer;
    if (name_ == "throw") throw std::runtime_error("cannot look");
    if (name_ == "flood") {
      ++world_.flooded;
      answer.set_data(std::string(64 << 10, 'x'));
      exchange.Write(answer);
      return Next::kAgain;
    }
    const int value = world_.value;
    answer.set_offset(value);
    if (value != sent_) exchange.Write(answer);
    sent_ = value;
    return name_ == "once" ? Next::kEnd : Next::kWait;
  }
  std::vector<std::string> keys() const override {
    return name_ == "once" || name_ == "flood" ? std::vector<std::string>() : std::vector{name_};
  }

 private:
  EchoWorld& world_;
  const std::string name_;
  int sent_ = -1;
};

class EchoService {
 public:
  explicit EchoService(EchoWorld& world) : world_(world) {}
  void AddTo(Methods& methods) {
    methods.Follow({"Fake.Follow", Caller::kUser, Role::kViewer, Place::kAny}, this,
                   &EchoService::Follow);
    methods.Standing({"Fake.Session"});
  }
  absl::StatusOr<std::unique_ptr<Follower>> Follow(CallContext&, const v1::ReadLogRequest& asked) {
    if (asked.name() == "none") return NotFound("nothing to follow");
    return std::make_unique<EchoFollower>(world_, asked.name());
  }

 private:
  EchoWorld& world_;
};

// One caller.
class Reader {
 public:
  Reader(std::shared_ptr<grpc::Channel> channel, const std::string& name)
      : channel_(std::move(channel)) {
    v1::ReadLogRequest request;
    request.set_name(name);
    const grpc::internal::RpcMethod method(kFollowPath, grpc::internal::RpcMethod::SERVER_STREAMING,
                                           channel_);
    reader_.reset(grpc::internal::ClientReaderFactory<v1::ReadLogResponse>::Create(
        channel_.get(), method, &context_, request));
  }
  // The next value; absent: there is none.
  std::optional<int64_t> Next() {
    v1::ReadLogResponse answer;
    if (!reader_->Read(&answer)) return std::nullopt;
    return answer.offset();
  }
  grpc::Status End() {
    while (Next().has_value()) continue;
    return reader_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::ReadLogResponse>> reader_;
};

// A call to the method that has sent nothing yet.
class SilentCalls {
 public:
  SilentCalls(const std::shared_ptr<grpc::Channel>& channel, int count) : stub_(channel) {
    for (int i = 0; i < count; ++i) {
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      calls_.push_back(stub_.PrepareCall(contexts_.back().get(), kFollowPath, &queue_));
      calls_.back()->StartCall(this);
    }
    Take(count);
  }
  ~SilentCalls() {
    for (const auto& context : contexts_) context->TryCancel();
    std::vector<grpc::Status> ends(calls_.size());
    for (size_t i = 0; i < calls_.size(); ++i) calls_[i]->Finish(&ends[i], this);
    Take(calls_.size());
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    EXPECT_FALSE(queue_.Next(&tag, &ok));
  }
  // Each says that it has nothing to say.
  void CloseAll() {
    for (const auto& call : calls_) call->WritesDone(this);
    Take(calls_.size());
  }

 private:
  void Take(size_t count) {
    void* tag = nullptr;
    bool ok = false;
    for (size_t i = 0; i < count; ++i) ASSERT_TRUE(queue_.Next(&tag, &ok));
  }

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls_;
};

class FollowersTest : public testing::Test {
 protected:
  FollowersTest() {
    service_.AddTo(methods_);
    sessions_.emplace(registry_, methods_.Find("Fake.Session")->rule);
    auto server = GrpcServer::Start({"127.0.0.1", 0},
                                    {methods_, door_, *sessions_, hub_, Clock::Real()}, {}, {});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = rpc::MakeChannel("127.0.0.1:" + std::to_string(server_->port()));
  }
  ~FollowersTest() override { Stop(); }

  void Stop() {
    hub_.Shutdown();
    server_.reset();
  }
  std::unique_ptr<Reader> Follow(const std::string& name) {
    return std::make_unique<Reader>(channel_, name);
  }
  void Change(const std::string& key, int value) {
    world_.value = value;
    hub_.Bump(key);
  }
  // How many streams could be begun now.
  int FreeStreams() {
    int free = 0;
    while (gate_.BeginStream("test", Gate::kMaxStreams, "test").ok()) ++free;
    for (int i = 0; i < free; ++i) gate_.EndStream("test", "test");
    return free;
  }
  // Waits for what comes without a sign of its own.
  template <typename Condition>
  static void WaitUntil(const Condition& condition) {
    while (!condition()) Clock::Real().Sleep(std::chrono::milliseconds(20));
  }
  // Threads of the library in which calls are served.
  static int ServingThreads() {
    int count = 0;
    DIR* const tasks = opendir("/proc/self/task");
    while (const dirent* task = readdir(tasks)) {
      const auto name =
          io::ReadFile(std::string("/proc/self/task/") + task->d_name + "/comm").value_or("");
      count += name.starts_with("grpcpp_sync_ser") ? 1 : 0;
    }
    closedir(tasks);
    return count;
  }

  EchoWorld world_;
  std::unique_ptr<Store> store_ = Store::Open({.path = ":memory:", .own_thread = false}).value();
  std::unique_ptr<Access> access_ = Access::Load(*store_, Clock::Real(), std::nullopt).value();
  Gate gate_{*access_, *store_, Clock::Real(), /*open=*/true};
  Door door_{gate_};
  ChangeHub hub_;
  WorkerRegistry registry_{{}, *store_, Clock::Real(), hub_, [] {}};
  EchoService service_{world_};
  Methods methods_;
  std::optional<Sessions> sessions_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(FollowersTest, AFollowerIsToldOfEachChangeOfItsKey) {
  const auto reader = Follow("a"), other = Follow("b");
  EXPECT_EQ(reader->Next(), 0);
  EXPECT_EQ(other->Next(), 0);
  for (int i = 1; i <= 100; ++i) {
    Change("a", i);
    EXPECT_EQ(reader->Next(), i);
  }
  hub_.Bump("b");
  EXPECT_EQ(other->Next(), 100);
}

TEST_F(FollowersTest, ManyFollowersHoldNoThreads) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 300; ++i) {
    readers.push_back(Follow("a"));
    ASSERT_EQ(readers.back()->Next(), 0);
  }
  EXPECT_LT(ServingThreads(), 100);
  Change("a", 1);
  for (const auto& reader : readers) EXPECT_EQ(reader->Next(), 1);
  for (const auto& reader : readers) reader->Cancel();
  WaitUntil([&] { return world_.followers == 0; });
  WaitUntil([&] { return FreeStreams() == Gate::kMaxStreams; });
}

TEST_F(FollowersTest, EndsAndErrorsReachTheCaller) {
  EXPECT_TRUE(Follow("once")->End().ok());
  EXPECT_EQ(Follow("none")->End().error_code(), grpc::StatusCode::NOT_FOUND);
  const grpc::Status thrown = Follow("throw")->End();
  EXPECT_EQ(thrown.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(thrown.error_message(), HasSubstr("cannot look"));
  const grpc::Slice nonsense("\xff\xff\xff");
  const grpc::Status refused = CallRaw(channel_, kFollowPath, grpc::ByteBuffer(&nonsense, 1));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << refused.error_message();
  EXPECT_EQ(FreeStreams(), Gate::kMaxStreams);
}

TEST_F(FollowersTest, CallsWithoutARequestTakeNoPlaceAndHoldUpNobody) {
  SilentCalls calls(channel_, Gate::kMaxStreams + 20);
  EXPECT_EQ(FreeStreams(), Gate::kMaxStreams);
  const auto reader = Follow("a");
  EXPECT_EQ(reader->Next(), 0);
  EXPECT_EQ(FreeStreams(), Gate::kMaxStreams - 1);
  calls.CloseAll();
  Change("a", 1);
  EXPECT_EQ(reader->Next(), 1);
  EXPECT_EQ(Follow("b")->Next(), 1);
}

TEST_F(FollowersTest, WhoDoesNotReadDelaysItselfAlone) {
  std::vector<std::unique_ptr<Reader>> idle;
  for (int i = 0; i < 3 * Lookers::kThreads; ++i) idle.push_back(Follow("flood"));
  WaitUntil([&] { return world_.followers == 3 * Lookers::kThreads; });
  const auto reader = Follow("a");
  EXPECT_EQ(reader->Next(), 0);
  for (int i = 1; i <= 100; ++i) {
    Change("a", i);
    EXPECT_EQ(reader->Next(), i);
  }
  // What they would be sent stays where it is, too.
  int64_t before = -1;
  WaitUntil([&] {
    Clock::Real().Sleep(std::chrono::milliseconds(300));
    const int64_t last = std::exchange(before, world_.flooded);
    return before == last;
  });
  // One that reads again gets on, and one that goes while an answer is on its way is gone.
  const int64_t stood = world_.flooded;
  for (int i = 0; world_.flooded < stood + 100; ++i) ASSERT_TRUE(idle[0]->Next().has_value()) << i;
  for (const auto& each : idle) each->Cancel();
  WaitUntil([&] { return world_.followers == 1; });
}

TEST_F(FollowersTest, PlacesAreLimitedAndFreeOnceACallHasEnded) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < ChangeHub::kMaxSubscriptions; ++i) {
    readers.push_back(Follow("a"));
    ASSERT_EQ(readers.back()->Next(), 0);
  }
  const grpc::Status refused = Follow("a")->End();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("ask without follow"));
  // Who follows nothing takes no place of those who do.
  EXPECT_TRUE(Follow("once")->End().ok());
  EXPECT_EQ(FreeStreams(), Gate::kMaxStreams - ChangeHub::kMaxSubscriptions);
  readers.back()->Cancel();
  (void)readers.back()->End();
  WaitUntil([&] { return Follow("a")->Next().has_value(); });
  // A stream's place is free before its caller knows that it has ended.
  std::vector<bool> taken;
  while (gate_.BeginStream("test", Gate::kMaxStreams - 1, "test").ok()) taken.push_back(true);
  gate_.EndStream("test", "test");
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Follow("once")->End().ok()) << i;
}

TEST_F(FollowersTest, AServerThatStopsEndsAllAtOnce) {
  std::vector<std::unique_ptr<Reader>> resting;
  for (int i = 0; i < 50; ++i) {
    resting.push_back(Follow("a"));
    EXPECT_EQ(resting.back()->Next(), 0);
  }
  std::vector<std::unique_ptr<Reader>> idle;
  for (int i = 0; i < 5; ++i) idle.push_back(Follow("flood"));
  const SilentCalls calls(channel_, 20);
  WaitUntil([&] { return world_.followers == 55; });
  Stop();
  EXPECT_EQ(world_.followers, 0);
  for (const auto& each : resting) {
    const grpc::Status ended = each->End();
    EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(ended.error_message(), HasSubstr("the server is stopping"));
  }
  for (const auto& each : idle) EXPECT_FALSE(each->End().ok());
}

TEST_F(FollowersTest, CallersThatComeAndGoLeaveNothingBehind) {
  std::atomic<bool> over{false};
  std::thread changes([&] {
    while (!over) {
      hub_.Bump("a");
      hub_.Bump(ChangeHub::UserKey(kLocalPrincipal));
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const auto reader = Follow(i % 3 == 0 ? "flood" : i % 3 == 1 ? "a" : "once");
        if ((i + t) % 2 == 0) (void)reader->Next();
        reader->Cancel();
        (void)reader->End();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  over = true;
  changes.join();
  WaitUntil([&] { return world_.followers == 0; });
  WaitUntil([&] { return FreeStreams() == Gate::kMaxStreams; });
}

}  // namespace
}  // namespace sft::server
