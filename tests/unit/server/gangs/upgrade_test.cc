// A server with workers of the protocol before its own.

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/spec/job_json.h"
#include "common/spec/job_protocol.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using S = v1::AttemptStatus;
using std::chrono::seconds;

class UpgradeTest : public FleetTest {
 protected:
  std::shared_ptr<FakeWorker> JoinOlder(const std::string& node, int slots = 1) {
    v1::Register message = RegisterOf(node, "H100", slots);
    message.set_protocol(kProtocol - 1);
    auto worker = std::make_shared<FakeWorker>();
    EXPECT_TRUE(registry_->Connect(message, worker).ok());
    return worker;
  }
  std::string SubmitSpec(const spec::JobSpec& spec) {
    JobRecord job;
    job.id = "job-" + std::to_string(++submitted_);
    job.project = "default";
    job.owner = "local";
    job.gpu_type = "H100";
    job.spec = spec;
    const spec::ProtocolNeed need = spec::NeedOf(spec);
    job.protocol = need.protocol;
    if (!need.keys.empty()) job.newer_keys = need.keys.front();
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    return job.id;
  }
  static spec::JobSpec Saving() {
    spec::JobSpec spec;
    spec.checkpoint.save_strategy = spec::SaveStrategy::kSteps;
    return spec;
  }
  nlohmann::json Dispatched(const std::shared_ptr<FakeWorker>& worker, const std::string& job) {
    const v1::DesiredAttempt* wanted = worker->Wanted(Uid(job));
    EXPECT_NE(wanted, nullptr);
    return ParseJson(wanted->dispatch().resolved_json());
  }
  void PassSilently(seconds time) {
    for (seconds passed{0}; passed < time; passed += seconds(4)) {
      clock_.Advance(seconds(4));
      reconciler_->Beat();
      Tick();
    }
  }
};

TEST_F(UpgradeTest, AnOlderWorkerGetsAJobWithoutTheKeysThatItDoesNotKnow) {
  const auto older = JoinOlder("old");
  const std::string job = SubmitSpec(spec::JobSpec());
  Tick();
  const nlohmann::json sent = Dispatched(older, job);
  EXPECT_FALSE(sent["compute"].contains("hang_timeout")) << sent;
  EXPECT_FALSE(sent["lora"].contains("use_dora")) << sent;
  for (const auto& [key, value] : sent["lora"].items()) {
    EXPECT_EQ(value, spec::ToJson(spec::JobSpec())["lora"][key]) << key;
  }
  EXPECT_EQ(sent["lora"]["r"], 16);
}

TEST_F(UpgradeTest, AWorkerOfThisProtocolGetsAllOfAJob) {
  const auto worker = Join("new", "H100", 1);
  const std::string job = SubmitSpec(Saving());
  Tick();
  EXPECT_EQ(Dispatched(worker, job), spec::ToJson(Saving()));
}

TEST_F(UpgradeTest, AJobThatAnOlderWorkerWouldNotDoAsAskedWaitsForANewerOneAndSaysWhy) {
  const auto older = JoinOlder("old");
  const std::string job = SubmitSpec(Saving());
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_EQ(Job(job).reason(),
            "waiting for 1 x H100 on one node: old has 1 but its worker is too old for "
            "checkpoint.save_strategy: upgrade it");
  const std::string modest = SubmitSpec(spec::JobSpec());
  Tick();
  EXPECT_EQ(State(modest), v1::Job::PREPARING) << "it keeps nobody else waiting";
  Report("old", older, Uid(modest), S::DONE, "succeeded");
  registry_->Disconnect("old", older.get());
  Join("old", "H100", 1);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
}

TEST_F(UpgradeTest, AWorkerThatBecameOlderAfterThePlacementGetsAllAndRefusesIt) {
  const auto worker = Join("a", "H100", 1);
  const std::string job = SubmitSpec(Saving());
  Tick();
  registry_->Disconnect("a", worker.get());
  const auto older = JoinOlder("a");
  Tick();
  EXPECT_EQ(Dispatched(older, job), spec::ToJson(Saving()));
}

// Otherwise its ranks would go on beside those of the next attempt.
TEST_F(UpgradeTest, APartThatAnOlderWorkerWasGivenIsWaitedForHoweverLongItIsSilent) {
  const auto older = JoinOlder("old");
  const std::string job = SubmitSpec(spec::JobSpec());
  Tick();
  Report("old", older, Uid(job), S::RUNNING);
  registry_->Disconnect("old", older.get());
  // The worker is upgraded, the ranks that it adopts are not.
  const auto newer = Join("old", "H100", 1);
  Report("old", newer, Uid(job), S::RUNNING);
  Join("new", "H100", 1);
  PassSilently(seconds(3600));
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  EXPECT_EQ(Job(job).attempt(), 1);
  EXPECT_NE(Job(job).reason().find("its worker was too old to do so by itself"), std::string::npos)
      << Job(job).reason();
}

}  // namespace
}  // namespace sft::server
