// Promises of a start: they survive a restart of the server, and are dropped with their job.
#include "server/store/node_holds.h"
#include "server/store/schedules.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using S = v1::AttemptStatus;
using Promises = std::map<std::string, Reservation>;

class PromisesTest : public FleetTest {
 protected:
  PromisesTest() {
    worker_ = Join("a", "H100", 8);
    running_ = Submit("long", 8, std::chrono::hours(2));
    Tick();
    EXPECT_EQ(State(running_), v1::Job::PREPARING);
  }

  std::string Submit(const std::string& project, int gpus, std::chrono::seconds limit) {
    return SubmitGang(project, gpus, /*nodes=*/1, limit);
  }
  std::string SubmitGang(const std::string& project, int gpus, int nodes,
                         std::chrono::seconds limit) {
    JobRecord job;
    job.id = "job-" + std::to_string(++submitted_);
    job.project = project;
    job.owner = "local";
    job.gpu_type = "H100";
    job.gpus_per_node = gpus;
    job.nodes = nodes;
    job.spec.emplace();
    job.schedule.time_limit_us = std::chrono::microseconds(limit).count();
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    clock_.Advance(std::chrono::seconds(1));
    return job.id;
  }
  Promises Stored() {
    Promises promises;
    const absl::Status read = store_->Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(promises, store::AllPromises(db));
      return absl::OkStatus();
    });
    EXPECT_TRUE(read.ok()) << read;
    return promises;
  }
  // Only the server comes back; its nodes connect later.
  void RestartAlone() {
    Halt();
    Boot();
  }
  void Restart() {
    RestartAlone();
    worker_ = Join("a", "H100", 8);
  }

  std::shared_ptr<FakeWorker> worker_;
  std::string running_;
};

TEST_F(PromisesTest, APromiseOutlastsTheServer) {
  // Its project has used the eight GPUs that it waits for, so any new job goes before it.
  const std::string waiting = Submit("long", 8, std::chrono::hours(1));
  Tick();
  const Promises before = Stored();
  ASSERT_TRUE(before.contains(waiting));
  EXPECT_EQ(before.at(waiting).nodes, std::vector<std::string>{"a"});
  Restart();
  const std::string other = Submit("new", 8, std::chrono::hours(3));  // longer than the gap
  Tick();
  EXPECT_EQ(Stored().at(waiting), before.at(waiting));
  EXPECT_GE(Stored().at(other).start_us, before.at(waiting).start_us + 3'600'000'000);
  Report("a", worker_, Uid(running_), S::DONE, "succeeded");
  EXPECT_EQ(State(waiting), v1::Job::PREPARING);
  EXPECT_EQ(State(other), v1::Job::PENDING);
}

TEST_F(PromisesTest, APromiseStandsUntilItsNodesAreBack) {
  Join("b", "H100", 8);
  const std::string longer = Submit("long", 8, std::chrono::hours(4));
  Tick();
  ASSERT_EQ(State(longer), v1::Job::PREPARING);
  const std::string waiting = Submit("long", 8, std::chrono::hours(1));
  Tick();
  const Promises before = Stored();
  ASSERT_EQ(before.at(waiting).nodes, std::vector<std::string>{"a"});
  RestartAlone();
  Tick();
  EXPECT_EQ(Stored(), before);
  Join("b", "H100", 8);  // free two hours later than a
  Tick();
  EXPECT_EQ(Stored(), before);
  clock_.Advance(std::chrono::minutes(4));  // the nodes count as silent by now
  Tick();
  EXPECT_EQ(Stored(), before);
  Join("a", "H100", 8);
  Tick();
  EXPECT_EQ(Stored(), before);
}

TEST_F(PromisesTest, APromiseMovesWhenItsNodeStaysAway) {
  Join("b", "H100", 8);
  const std::string longer = Submit("long", 8, std::chrono::hours(4));
  Tick();
  const std::string waiting = Submit("long", 8, std::chrono::hours(1));
  Tick();
  ASSERT_EQ(Stored().at(waiting).nodes, std::vector<std::string>{"a"});
  RestartAlone();
  clock_.Advance(std::chrono::minutes(5));
  Join("b", "H100", 8);
  Tick();
  EXPECT_EQ(Stored().at(waiting).nodes, std::vector<std::string>{"b"});
}

TEST_F(PromisesTest, ADrainedNodeIsNotWaitedFor) {
  const std::string waiting = Submit("long", 8, std::chrono::hours(1));
  Tick();
  ASSERT_TRUE(Stored().contains(waiting));
  RestartAlone();
  store::NodeHold hold;
  hold.node = "a";
  hold.mode = store::HoldMode::kDrain;
  ASSERT_TRUE(store_->Write([&](Database& db) { return store::PutHold(db, hold); }).ok());
  Tick();
  EXPECT_TRUE(Stored().empty());
}

TEST_F(PromisesTest, APromisedGangStartsOnlyWhenAllItsNodesAreBack) {
  const std::shared_ptr<FakeWorker> b = Join("b", "H100", 8);
  const std::string gang = SubmitGang("long", 8, 2, std::chrono::hours(1));
  Tick();
  const Promises before = Stored();
  ASSERT_EQ(before.at(gang).nodes.size(), 2u);
  // The job that it waits for ends just before the server does.
  ASSERT_TRUE(Observe("a", worker_, {StatusOf(Uid(running_), S::DONE, "succeeded")}).ok());
  RestartAlone();
  const std::string other = Submit("new", 8, std::chrono::hours(3));
  Join("b", "H100", 8);
  Tick();
  EXPECT_EQ(State(gang), v1::Job::PENDING);
  EXPECT_EQ(State(other), v1::Job::PENDING);  // b is kept for the gang
  EXPECT_EQ(Stored().at(gang).nodes, before.at(gang).nodes);
  Join("a", "H100", 8);
  Tick();
  EXPECT_EQ(State(gang), v1::Job::PREPARING);
}

TEST_F(PromisesTest, AnEarlierStartTakesThePlaceOfALaterOne) {
  const std::string waiting = Submit("long", 4, std::chrono::hours(1));
  Tick();
  const int64_t first = Stored().at(waiting).start_us;
  Join("b", "H100", 8);
  const std::string next = Submit("long", 8, std::chrono::hours(1));
  Tick();
  EXPECT_EQ(State(waiting), v1::Job::PREPARING);  // on b
  EXPECT_FALSE(Stored().contains(waiting));
  EXPECT_LT(Stored().at(next).start_us, first);
}

TEST_F(PromisesTest, HeldAndCancelledJobsHaveNoPromise) {
  const std::string held = Submit("long", 8, std::chrono::hours(1));
  const std::string cancelled = Submit("long", 8, std::chrono::hours(1));
  Tick();
  EXPECT_EQ(Stored().size(), 2u);
  ASSERT_TRUE(jobs_->Cancel(cancelled, "", false).ok());
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) {
                    return store::SetHold(db, held, /*held=*/true, "by its owner");
                  })
                  .ok());
  Tick();
  EXPECT_TRUE(Stored().empty());
}

// The end of the running job is unknown: it is an hour from now, whenever one asks.
TEST_F(PromisesTest, AStartThatMovesWithTheClockIsStoredOnceAMinute) {
  ASSERT_TRUE(jobs_->Cancel(running_, "", false).ok());
  Report("a", worker_, Uid(running_), S::DONE, "cancelled");
  const std::string endless = Submit("long", 8, std::chrono::seconds(0));
  Tick();
  const std::string waiting = Submit("long", 8, std::chrono::hours(1));
  Tick();
  const int64_t first = Stored().at(waiting).start_us;
  Tick();
  EXPECT_FALSE(reconciler_->HasWork());
  const auto after = [&](std::chrono::seconds passed) {
    clock_.Advance(passed);
    EXPECT_TRUE(Observe("a", worker_, {}).ok());
    Tick();
    return Stored().at(waiting).start_us;
  };
  EXPECT_EQ(after(std::chrono::seconds(10)), first);
  EXPECT_GT(after(std::chrono::seconds(60)), first);
  EXPECT_EQ(State(endless), v1::Job::PREPARING);
}

}  // namespace
}  // namespace sft::server
