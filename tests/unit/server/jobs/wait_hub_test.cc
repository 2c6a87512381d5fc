#include <fmt/format.h>
#include <gmock/gmock.h>

#include <future>

#include "common/base/mutex.h"
#include "server/fleet/hub_models.h"
#include "server/jobs/wait_explainer.h"
#include "tests/unit/server/jobs/intake_fixture.h"
#include "tests/unit/server/loopback.h"

// Why jobs wait whose models only a hub has.

namespace sft::server {
namespace {

using ::testing::HasSubstr;

// A model hub on loopback with one model, which answers one request after the other.
class LoopbackHub {
 public:
  explicit LoopbackHub(std::string config)
      : config_(std::move(config)),
        server_("\r\n\r\n", [this](const std::string& request) { return Answer(request); }) {}
  ~LoopbackHub() { Hold(false); }
  std::string endpoint() const { return fmt::format("http://127.0.0.1:{}", server_.port()); }
  int asked() const {
    const MutexLock lock(mutex_);
    return asked_;
  }
  // Returns once more was asked than that.
  void AwaitMoreThan(int asked) {
    const MutexLock lock(mutex_);
    while (asked_ <= asked) changed_.Wait(mutex_);
  }
  // Answers wait until they are no longer held.
  void Hold(bool held) {
    const MutexLock lock(mutex_);
    held_ = held;
    changed_.NotifyAll();
  }

 private:
  std::string Answer(const std::string& request) {
    {
      const MutexLock lock(mutex_);
      ++asked_;
      changed_.NotifyAll();
      while (held_) changed_.Wait(mutex_);
    }
    const bool revision = request.find("/revision/") != request.npos;
    const std::string body =
        revision ? fmt::format(R"({{"sha":"{}"}})", std::string(40, 'c')) : config_;
    return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                       body.size(), request.starts_with("HEAD") ? "" : body);
  }

  const std::string config_;
  mutable Mutex mutex_;
  CondVar changed_;
  int asked_ SFT_GUARDED_BY(mutex_) = 0;
  bool held_ SFT_GUARDED_BY(mutex_) = false;
  LoopbackServer server_;  // the last: its thread uses the others
};

class WaitHubTest : public IntakeTest {
 protected:
  WaitHubTest() {
    EXPECT_TRUE(Upload(kRows).ok());
    for (const auto& [node, slots] : {std::pair("a", 2), std::pair("b", 1)}) {
      v1::Register said = RegisterOf(node, "CPU", slots);
      said.mutable_facts()->mutable_hub()->set_endpoint(hub_.endpoint());
      EXPECT_TRUE(registry_->Connect(said, std::make_shared<FakeWorker>()).ok());
    }
    SubmitHubs("runs");
    waiting_ = SubmitHubs("waits");
    EXPECT_EQ(State(waiting_), v1::Job::PENDING);
  }
  // A job of the hub's model.
  v1::SubmitJobRequest HubsRequest(const std::string& name) {
    std::string text = kJobFile;
    text.replace(text.find("/models/tiny"), 12, "org/tiny");
    v1::SubmitJobRequest request = Request(text);
    Set(request, "job.name", name);
    return request;
  }
  std::string SubmitHubs(const std::string& name) {
    const auto outcome = asks_.Submit(HubsRequest(name), "local");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(outcome->problems.empty()) << outcome->problems.front().message;
    Tick();
    return outcome->job.name().substr(outcome->job.name().rfind('/') + 1);
  }

  LoopbackHub hub_{kConfig};
  HubModels models_{{.endpoint = hub_.endpoint()}, clock_};
  Planner hubs_planner_{*store_, *registry_, relay_, &models_};
  JobIntake asks_{*store_, *blobs_, *jobs_, hubs_planner_};
  WaitExplainer waits_{*store_, *registry_, asks_, clock_};
  std::string waiting_;
};

TEST_F(WaitHubTest, OtherShapesAreThoughtOfWithTheCommitThatTheJobHas) {
  const int before = hub_.asked();
  EXPECT_GT(before, 0);
  const auto explanation = waits_.Explain(waiting_);
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  ASSERT_FALSE(explanation->what_ifs().empty());
  EXPECT_EQ(explanation->what_ifs(0).change(), "with 1 CPU slot in place of 2");
  EXPECT_THAT(explanation->what_ifs(0).command(), ::testing::Not(HasSubstr("job.model")));
  EXPECT_EQ(hub_.asked(), before);
}

TEST_F(WaitHubTest, AHubThatIsSlowToAnswerKeepsNoOtherQuestionWaiting) {
  const int before = hub_.asked();
  hub_.Hold(true);
  std::future<absl::Status> asks = std::async(
      std::launch::async, [&] { return waits_.ExplainNew(HubsRequest("new"), "local").status(); });
  hub_.AwaitMoreThan(before);
  const auto explanation = waits_.Explain(waiting_);
  EXPECT_TRUE(explanation.ok()) << explanation.status();
  EXPECT_EQ(asks.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  hub_.Hold(false);
  EXPECT_TRUE(asks.get().ok());
}

}  // namespace
}  // namespace sft::server
