#include "worker/channel/flight_record.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "common/io/file.h"

namespace sft::channel {
namespace {

using std::chrono::milliseconds;

class FlightRecordTest : public testing::Test {
 protected:
  void SetUp() override { dir_ = *io::MakeTempDir("sft-flight-test"); }
  void TearDown() override { ASSERT_TRUE(io::RemoveAll(dir_).ok()); }

  FlightRecorder Create(int rank = 0, int world = 2) {
    return *FlightRecorder::Create(FlightPath(dir_, rank), rank, world, clock_);
  }
  FlightRecord Read(int rank = 0) { return *ReadFlightRecord(FlightPath(dir_, rank)); }

  std::string dir_;
  FakeClock clock_;
};

TEST_F(FlightRecordTest, SaysWhatTheRankDoesAndSinceWhen) {
  FlightRecorder recorder = Create(1, 4);
  EXPECT_EQ(Read(1).rank, 1);
  EXPECT_EQ(Read(1).world, 4);
  EXPECT_EQ(Read(1).pid, getpid());
  EXPECT_EQ(Read(1).begun, clock_.Mono());
  EXPECT_EQ(Read(1).Describe(), "starting, no collective yet");
  clock_.Advance(milliseconds(5));
  recorder.SetPhase(FlightPhase::kLoading);
  EXPECT_EQ(Read(1).phase, FlightPhase::kLoading);
  EXPECT_EQ(Read(1).changed, clock_.Mono());
  clock_.Advance(milliseconds(5));
  EXPECT_EQ(clock_.Mono() - Read(1).changed, milliseconds(5));
}

TEST_F(FlightRecordTest, NamesTheCollectiveItWaitsFor) {
  FlightRecorder recorder = Create();
  recorder.SetTotalSteps(40);
  const int world = recorder.Group("world");
  recorder.BeginStep(12);
  const uint64_t gather = recorder.Start(world, Collective::kAllGather, 16);
  const uint64_t reduce = recorder.Start(world, Collective::kAllReduce, 4096);
  EXPECT_TRUE(Read().InCollective());
  EXPECT_EQ(Read().Describe(),
            "step 12 of 40, last started all-reduce #2 (4096 bytes, group world)");
  recorder.Wait(gather);
  EXPECT_EQ(Read().Describe(), "step 12 of 40, waits in all-gather #1 (16 bytes, group world)");
  recorder.EndWait(gather, true);
  recorder.Wait(reduce);
  recorder.EndWait(reduce, true);
  EXPECT_FALSE(Read().InCollective());
  EXPECT_EQ(Read().waiting, 0u);
  EXPECT_EQ(Read().Describe(),
            "step 12 of 40, last finished all-reduce #2 (4096 bytes, group world)");
}

TEST_F(FlightRecordTest, CountsEachGroupSeparately) {
  FlightRecorder recorder = Create();
  const int world = recorder.Group("world");
  const int pair = recorder.Group("0,1");
  EXPECT_EQ(recorder.Group("world"), world);
  recorder.Start(world, Collective::kBarrier, 0);
  recorder.Start(pair, Collective::kBroadcast, 8);
  recorder.Start(world, Collective::kBarrier, 0);
  const FlightRecord record = Read();
  ASSERT_EQ(record.ops.size(), 3u);
  EXPECT_EQ(record.ops[1].Describe(), "broadcast #1 (8 bytes, group 0,1)");
  EXPECT_EQ(record.ops[2].Describe(), "barrier #2 (0 bytes, group world)");
}

TEST_F(FlightRecordTest, MoreGroupsThanItHasRoomForAreCountedTogether) {
  FlightRecorder recorder = Create();
  int last = 0;
  for (int i = 0; i < 2 * kFlightGroups; ++i) last = recorder.Group(std::to_string(i));
  EXPECT_EQ(last, kFlightGroups - 1);
  recorder.Start(last, Collective::kBarrier, 0);
  EXPECT_EQ(Read().ops.back().group, std::to_string(kFlightGroups - 1));
  EXPECT_EQ(recorder.Group(std::string(200, 'x')), kFlightGroups - 1);
}

TEST_F(FlightRecordTest, OwnTimeOfAStepLeavesOutTheWaits) {
  FlightRecorder recorder = Create();
  const int world = recorder.Group("world");
  recorder.BeginStep(1);
  clock_.Advance(milliseconds(30));
  const uint64_t op = recorder.Start(world, Collective::kAllGather, 16);
  recorder.Wait(op);
  clock_.Advance(milliseconds(500));
  recorder.EndWait(op, true);
  clock_.Advance(milliseconds(20));
  recorder.EndOwnWork(/*all_finished=*/true);
  clock_.Advance(milliseconds(100));
  recorder.EndStep();
  const FlightRecord record = Read();
  ASSERT_EQ(record.steps.size(), 1u);
  EXPECT_EQ(record.steps[0].step, 1);
  EXPECT_EQ(record.steps[0].own, milliseconds(50));
  EXPECT_EQ(record.steps_done, 1);
}

TEST_F(FlightRecordTest, CollectivesOfADeviceAreDoneWhenTheRankHasSeenTheStepsResult) {
  FlightRecorder recorder = Create();
  const int world = recorder.Group("world");
  recorder.BeginStep(1);
  const uint64_t op = recorder.Start(world, Collective::kAllGather, 16);
  recorder.Wait(op);
  recorder.EndWait(op, /*finished=*/false);  // the device waits, not the thread
  EXPECT_TRUE(Read().InCollective());
  recorder.EndOwnWork(/*all_finished=*/true);
  EXPECT_FALSE(Read().InCollective());
}

TEST_F(FlightRecordTest, KeepsTheNewestEntries) {
  FlightRecorder recorder = Create();
  const int world = recorder.Group("world");
  for (int i = 1; i <= 1000; ++i) {
    recorder.BeginStep(i);
    recorder.Start(world, Collective::kAllReduce, i);
    recorder.EndOwnWork(/*all_finished=*/true);
  }
  const FlightRecord record = Read();
  ASSERT_EQ(record.ops.size(), static_cast<size_t>(kFlightOps));
  EXPECT_EQ(record.ops.front().number, 1000u - kFlightOps + 1);
  EXPECT_EQ(record.ops.back().bytes, 1000);
  ASSERT_EQ(record.steps.size(), static_cast<size_t>(kFlightSteps));
  EXPECT_EQ(record.steps.front().step, 1000 - kFlightSteps + 1);
  EXPECT_EQ(record.steps.back().step, 1000);
}

TEST_F(FlightRecordTest, SurvivesTheRanksSuddenEnd) {
  const pid_t pid = fork();
  if (pid == 0) {
    FlightRecorder recorder = Create();
    recorder.Wait(recorder.Start(recorder.Group("world"), Collective::kBarrier, 0));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(Read().pid, pid);
  EXPECT_EQ(Read().Describe(), "starting, waits in barrier #1 (0 bytes, group world)");
}

TEST_F(FlightRecordTest, AFileThatIsNotARecordIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(ReadFlightRecord(FlightPath(dir_, 0)).status()));
  ASSERT_TRUE(io::WriteFileAtomic(FlightPath(dir_, 0), "short").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFlightRecord(FlightPath(dir_, 0)).status()));
  ASSERT_TRUE(io::WriteFileAtomic(FlightPath(dir_, 0), std::string(100'000, 'x')).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ReadFlightRecord(FlightPath(dir_, 0)).status()));
  EXPECT_FALSE(FlightRecorder::Create(dir_ + "/none/f", 0, 1, clock_).ok());
}

}  // namespace
}  // namespace sft::channel
