#include "server/fleet/node_lease.h"

#include <gmock/gmock.h>

#include "server/fleet/fleet_catalog.h"
#include "server/fleet/node_holds.h"
#include "server/store/feed.h"
#include "server/store/node_holds.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NodeLeaseTest : public LifeTest {
 protected:
  // A node that is lent for so long, with a lead of five minutes; `ahead`: of the worker's clock.
  std::shared_ptr<FakeWorker> Lend(const std::string& node, minutes time, int slots = 1,
                                   minutes ahead = minutes(0)) {
    v1::Register message = RegisterOf(node, "H100", slots);
    v1::Lease& lease = *message.mutable_facts()->mutable_lease();
    message.set_time_us(UnixMicros(clock_.Wall() + ahead));
    if (time > minutes(0)) lease.set_end_us(message.time_us() + Us(time));
    lease.set_lead_seconds(300);
    lease.set_allocation("Slurm job 17");
    auto worker = std::make_shared<FakeWorker>();
    const absl::Status joined = registry_->Connect(message, worker);
    EXPECT_TRUE(joined.ok()) << joined;
    return worker;
  }
  static int64_t Us(minutes time) { return std::chrono::microseconds(time).count(); }
  absl::Status SayLeaving(const std::string& node, const std::shared_ptr<FakeWorker>& worker,
                          const std::vector<v1::AttemptStatus>& attempts = {}) {
    v1::Observed observed;
    observed.set_leaving("its worker got signal 15 (Terminated)");
    for (const auto& attempt : attempts) *observed.add_attempts() = attempt;
    return registry_->Observe(node, worker.get(), observed);
  }
  std::vector<std::string> Nodes() {
    std::vector<std::string> names;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const auto all, store::AllNodes(db));
                      for (const NodeRecord& node : all) names.push_back(node.name);
                      return absl::OkStatus();
                    })
                    .ok());
    return names;
  }
  NodeState StateOf(const std::string& node) {
    NodeState state = NodeState::kUp;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const NodeRecord record, store::GetNode(db, node));
                      state = record.state;
                      return absl::OkStatus();
                    })
                    .ok());
    return state;
  }
};

TEST_F(NodeLeaseTest, NothingIsPlacedThatCouldNotReachACheckpoint) {
  const auto a = Lend("a", minutes(11));
  PassSilently(seconds(70), "a", a);
  const std::string job = Submit("H100", 1);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_THAT(Job(job).reason(), HasSubstr("a has 1 but its jobs have to leave it at "));
  EXPECT_THAT(Job(job).reason(), HasSubstr("too soon for a checkpoint"));
  Lend("b", minutes(11));
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  EXPECT_THAT(Job(job).nodes(), ElementsAre("b"));
}

TEST_F(NodeLeaseTest, JobsLeaveBeforeTheEndAndTheNodeIsDismissedWithoutAnAlarm) {
  const auto a = Lend("a", minutes(11));
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", a, job, S::RUNNING);
  const std::string uid = Uid(job);
  PassSilently(minutes(5), "a", a, {StatusOf(uid, S::RUNNING)});
  EXPECT_EQ(a->Wanted(uid)->intent(), D::RUN);
  PassSilently(seconds(68), "a", a, {StatusOf(uid, S::RUNNING)});
  EXPECT_EQ(a->Wanted(uid)->intent(), D::STOP);
  EXPECT_TRUE(a->Wanted(uid)->checkpoint_first());
  EXPECT_THAT(a->Wanted(uid)->reason(), HasSubstr("a leaves the fleet: Slurm job 17 ends at "));
  EXPECT_THAT(Nodes(), ElementsAre("a")) << "its job is still there";

  EXPECT_TRUE(Commit(job, 7));
  Say("a", a, job, S::DONE, v1::Verdict::NONE, "moved");
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_THAT(Nodes(), ElementsAre("a")) << "it has not forgotten the attempt yet";
  ASSERT_TRUE(Observe("a", a, {}).ok());
  Tick();
  EXPECT_THAT(Nodes(), IsEmpty());
  EXPECT_TRUE(a->dismissed);
  EXPECT_FALSE(a->closed.ok());
  EXPECT_FALSE(registry_->IsConnected("a"));
  PassSilently(minutes(1));
  EXPECT_THAT(Nodes(), IsEmpty());
  // The job goes on where there is room, from what it saved.
  const auto b = Join("b", "H100", 1);
  Tick();
  ASSERT_NE(b->Wanted(Uid(job)), nullptr);
  EXPECT_EQ(b->Wanted(Uid(job))->dispatch().resume().step(), 7);
}

TEST_F(NodeLeaseTest, ASignalToTheWorkerMovesItsJobsAtOnce) {
  const auto a = Lend("a", minutes(0));
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", a, job, S::RUNNING);
  ASSERT_TRUE(SayLeaving("a", a, {StatusOf(Uid(job), S::RUNNING)}).ok());
  Tick();
  EXPECT_EQ(a->Wanted(Uid(job))->intent(), D::STOP);
  EXPECT_THAT(a->Wanted(Uid(job))->reason(), HasSubstr("signal 15"));
  const std::string next = Submit("H100", 1);
  Tick();
  EXPECT_THAT(Job(next).reason(), HasSubstr("a has 1 but is leaving: its worker got signal 15"));
}

TEST_F(NodeLeaseTest, AnIdleNodeThatLeavesGoesAtOnceAndAgainIfItDidNotHear) {
  auto a = Lend("a", minutes(60));
  ASSERT_TRUE(SayLeaving("a", a).ok());
  Tick();
  EXPECT_TRUE(a->dismissed);
  EXPECT_THAT(Nodes(), IsEmpty());
  a = Lend("a", minutes(60));
  EXPECT_THAT(Nodes(), ElementsAre("a"));
  ASSERT_TRUE(SayLeaving("a", a).ok());
  Tick();
  EXPECT_TRUE(a->dismissed);
  EXPECT_THAT(Nodes(), IsEmpty());
}

TEST_F(NodeLeaseTest, TheWorkersClockDoesNotMatter) {
  const auto a = Lend("a", minutes(20), 1, minutes(4));
  EXPECT_EQ(registry_->Get("a").lease->jobs_until_us(),
            UnixMicros(clock_.Wall()) + Us(minutes(15)));
}

TEST_F(NodeLeaseTest, ALostNodeIsSuspectAsAnyOtherAndGoesWhenItsTimeIsOver) {
  const auto a = Lend("a", minutes(30));
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", a, job, S::RUNNING);
  registry_->Disconnect("a", a.get());
  PassSilently(minutes(1));
  EXPECT_EQ(StateOf("a"), NodeState::kSuspect);
  EXPECT_EQ(State(job), v1::Job::RUNNING) << "its ranks may live";
  PassSilently(minutes(16));
  EXPECT_EQ(State(job), v1::Job::PENDING) << "given up after compute.unreachable_after";
  EXPECT_THAT(Nodes(), IsEmpty());
}

TEST_F(NodeLeaseTest, AServerThatRestartsRemovesANodeThatItsTimeHasTaken) {
  Lend("a", minutes(11));
  Join("b", "H100", 1);
  RestartServer();
  clock_.Advance(minutes(12));
  PassSilently(minutes(1));
  EXPECT_THAT(Nodes(), ElementsAre("b")) << "b is no node that leaves by itself";
}

TEST_F(NodeLeaseTest, AnOperatorsHoldWaitsForTheNodeToComeAgain) {
  const auto leave = [&] {
    const auto worker = Lend("a", minutes(60));
    Tick();
    ASSERT_TRUE(SayLeaving("a", worker).ok());
    Tick();
    ASSERT_TRUE(worker->dismissed);
    ASSERT_THAT(Nodes(), IsEmpty());
  };
  const auto a = Lend("a", minutes(60));
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) {
                    return HoldNode(db, {.node = "a",
                                         .mode = store::HoldMode::kCordon,
                                         .reason = "fan is loud",
                                         .who = "ann",
                                         .since_us = 1});
                  })
                  .ok());
  leave();
  std::string told;
  const absl::Status read = store_->Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const store::FeedPage page, store::ReadFeed(db, {}));
    if (!page.events.empty()) told = page.events.back().message;
    return absl::OkStatus();
  });
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_THAT(told, HasSubstr("it is still cordoned by ann: fan is loud (`sftctl nodes resume a`"));
  const auto again = Lend("a", minutes(60));
  const std::string job = Submit("H100", 1);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_THAT(Job(job).reason(), HasSubstr("cordoned by ann: fan is loud"));
  // It can be taken back while the node is away.
  ASSERT_TRUE(SayLeaving("a", again).ok());
  Tick();
  ASSERT_THAT(Nodes(), IsEmpty());
  EXPECT_TRUE(store_->Write([&](Database& db) { return ReleaseNode(db, "a", "ann", 2); }).ok());
  EXPECT_TRUE(absl::IsNotFound(
      store_->Write([&](Database& db) { return ReleaseNode(db, "a", "ann", 3); })));
  Lend("a", minutes(60));
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
}

TEST_F(NodeLeaseTest, SlotsAndModelsOfTheLastThatLeftStayKnown) {
  FleetCatalog catalog(*store_);
  const auto leave = [&](const std::string& node, int slots) {
    const auto worker = Lend(node, minutes(60), slots);
    ModelRecord model;
    model.node = node, model.id = "m", model.path = "/models/m";
    ASSERT_TRUE(
        store_->Write([&](Database& db) { return store::PutModels(db, node, {model}); }).ok());
    ASSERT_TRUE(SayLeaving(node, worker).ok());
    Tick();
    ASSERT_TRUE(worker->dismissed);
  };
  leave("a", 8);
  EXPECT_EQ(catalog.Get().value()->types.at("H100").most, 8);
  EXPECT_EQ(catalog.FindModel("m").value()->node, "a");
  leave("b", 4);
  EXPECT_EQ(catalog.Get().value()->types.at("H100").most, 8) << "a had more";
  leave("c", 8);
  EXPECT_EQ(catalog.FindModel("m").value()->node, "c");
  const absl::Status read = store_->Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto left, store::LeftNodes(db));
    EXPECT_EQ(left.size(), 1u) << "the others have no more than c";
    SFT_ASSIGN_OR_RETURN(const auto listed, store::ListModels(db, 0, 10));
    EXPECT_THAT(listed, IsEmpty()) << "no node has it now";
    SFT_ASSIGN_OR_RETURN(const auto removed, store::RemovedNodes(db));
    EXPECT_EQ(removed.size(), 3u) << "history refers to them";
    return absl::OkStatus();
  });
  EXPECT_TRUE(read.ok());
}

}  // namespace
}  // namespace sft::server
