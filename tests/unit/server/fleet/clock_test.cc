// A wall clock that jumps an hour either way: decisions by time use the monotonic clock.

#include "server/fleet/node_holds.h"
#include "server/stored/housekeeping.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class ClockJumpTest : public FleetTest, public testing::WithParamInterface<int> {
 protected:
  Nanos jump() const { return std::chrono::hours(GetParam()); }
};

TEST_P(ClockJumpTest, NothingIsSuspectKilledOrPlacedTwiceByIt) {
  auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", worker, uid, v1::AttemptStatus::RUNNING);
  ASSERT_EQ(State(job), v1::Job::RUNNING);
  clock_.JumpWall(jump());
  for (int second = 0; second < 30; ++second) {
    clock_.Advance(std::chrono::seconds(1));
    if (second % 5 == 0) {
      ASSERT_TRUE(Observe("a", worker, {StatusOf(uid, v1::AttemptStatus::RUNNING)}).ok());
    }
    Tick();
    ASSERT_FALSE(registry_->Get("a").silent);
    ASSERT_EQ(worker->Wanted(uid)->intent(), v1::DesiredAttempt::RUN);
  }
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  EXPECT_EQ(Job(job).attempt(), 1);
  EXPECT_EQ(HeldSlots(), 1u);
  Report("a", worker, uid, v1::AttemptStatus::DONE, "succeeded");
  EXPECT_EQ(State(job), v1::Job::SUCCEEDED);
  EXPECT_EQ(HeldSlots(), 0u);
}

TEST_P(ClockJumpTest, SilenceIsCountedByTheMonotonicClock) {
  Join("a", "CPU", 1);
  clock_.JumpWall(jump());
  Tick();
  EXPECT_FALSE(registry_->Get("a").silent) << "no time has passed";
  clock_.Advance(registry_->options().suspect_after + std::chrono::seconds(1));
  clock_.JumpWall(-jump());
  Tick();
  EXPECT_TRUE(registry_->Get("a").silent) << "it was silent for long enough";
}

TEST_P(ClockJumpTest, ATimeLimitIsCountedByTheMonotonicClock) {
  auto worker = Join("a", "CPU", 1);
  JobRecord record;
  record.id = "job-short";
  record.project = "default";
  record.gpu_type = "CPU";
  record.spec.emplace();
  record.schedule.time_limit_us = 20'000'000;
  ASSERT_TRUE(jobs_->Submit(record, {}).ok());
  Tick();
  const std::string uid = Uid(record.id);
  Report("a", worker, uid, v1::AttemptStatus::RUNNING);
  clock_.JumpWall(jump());
  clock_.Advance(std::chrono::seconds(15));
  Tick();
  EXPECT_EQ(worker->Wanted(uid)->intent(), v1::DesiredAttempt::RUN);
  clock_.Advance(std::chrono::seconds(6));
  Tick();
  EXPECT_EQ(worker->Wanted(uid)->intent(), v1::DesiredAttempt::STOP);
}

TEST_P(ClockJumpTest, TheDeadlineOfADrainIsCountedByTheMonotonicClock) {
  auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", worker, uid, v1::AttemptStatus::RUNNING);
  store::NodeHold hold{.node = "a", .mode = store::HoldMode::kDrain, .who = "root"};
  hold.since_us = UnixMicros(clock_.Wall());
  hold.move_us = hold.since_us + 60'000'000;
  ASSERT_TRUE(store_->Write([&](Database& db) { return HoldNode(db, hold); }).ok());
  Tick();
  clock_.JumpWall(jump());
  clock_.Advance(std::chrono::seconds(50));
  Tick();
  EXPECT_EQ(worker->Wanted(uid)->intent(), v1::DesiredAttempt::RUN);
  clock_.Advance(std::chrono::seconds(11));
  Tick();
  EXPECT_EQ(worker->Wanted(uid)->intent(), v1::DesiredAttempt::STOP);
}

TEST_P(ClockJumpTest, AServerThatStartsAfterItGivesNodesTheirTime) {
  Join("a", "CPU", 1);
  Halt();
  clock_.JumpWall(jump());
  Boot();
  Tick();
  EXPECT_FALSE(registry_->Get("a").silent);
  Join("a", "CPU", 1, "life-2");
  const std::string job = Submit("CPU", 1);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
}

TEST_P(ClockJumpTest, EventsStayInTheOrderOfWhatHappened) {
  auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  clock_.JumpWall(jump());
  Report("a", worker, Uid(job), v1::AttemptStatus::RUNNING);
  clock_.JumpWall(-jump());
  Report("a", worker, Uid(job), v1::AttemptStatus::DONE, "succeeded");
  const auto events = jobs_->Events(job, 0, 100).value();
  EXPECT_EQ(events.front().type(), "submitted");
  EXPECT_EQ(events.back().type(), "verdict");
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].sequence(), static_cast<int64_t>(i) + 1);
  }
}

TEST_P(ClockJumpTest, NoCurveIsThinnedForIt) {
  MetricLog metrics(dir_ + "/metrics");
  TensorBoard tensorboard(dir_ + "/tensorboard");
  auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Report("a", worker, Uid(job), v1::AttemptStatus::RUNNING);
  std::vector<MetricPoint> points(100);
  for (int64_t i = 0; i < 100; ++i) points[static_cast<size_t>(i)].step = i + 1;
  ASSERT_TRUE(metrics.Append(job, points).ok());
  Housekeeping housekeeping(*store_, clock_, metrics, tensorboard, std::chrono::hours(24));
  Report("a", worker, Uid(job), v1::AttemptStatus::DONE, "succeeded");
  clock_.JumpWall(jump());
  ASSERT_TRUE(housekeeping.Tick(10).ok());
  EXPECT_EQ(metrics.Count(job).value(), 100);
  clock_.Advance(std::chrono::hours(26));
  ASSERT_TRUE(housekeeping.Tick(10).ok());
  EXPECT_LT(metrics.Count(job).value(), 15) << "a day later it is";
}

INSTANTIATE_TEST_SUITE_P(AnHour, ClockJumpTest, testing::Values(1, -1),
                         [](const auto& info) { return info.param > 0 ? "Forward" : "Back"; });

}  // namespace
}  // namespace sft::server
