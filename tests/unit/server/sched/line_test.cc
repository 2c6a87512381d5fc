#include <gtest/gtest.h>

#include <ctime>
#include <iostream>

#include "server/sched/decide.h"
#include "server/sched/order.h"
#include "server/sched/preempt.h"
#include "tests/unit/server/sched/world.h"

// Tests when a job is placed: its turn, promises and backfill, preemption.

namespace sft::server::sched {
namespace {

TEST(DecideTest, AHigherClassComesFirst) {
  World world;
  world.Add("a", 4).Wait(Timed("first", 4, 1));
  world.Wait(Timed("urgent", 4, 1)).priority = kUrgent;
  EXPECT_EQ(world.Placed(), (Lines{"urgent"}));
}

// A world with one node that its jobs have to leave after so many hours; they need a quarter of one
// to reach a checkpoint.
World Leased(double hours, int slots = 4) {
  World world;
  world.Add("a", slots);
  world.snapshot.nodes[0].jobs_until_us = kNow + static_cast<int64_t>(hours * kHour);
  world.snapshot.nodes[0].least_stay_us = kHour / 4;
  return world;
}

TEST(DecideTest, AJobThatGoesOnElsewhereMayBeginWhereItHasTimeForACheckpoint) {
  World world = Leased(0.25);
  world.Wait(Timed("long", 4, 100));
  EXPECT_EQ(world.Placed(), (Lines{"long"}));
  world.snapshot.nodes[0].jobs_until_us -= 1;
  EXPECT_EQ(world.Placed(), Lines{});
  EXPECT_TRUE(world.Of("long").reason.find("too soon for a checkpoint") != std::string::npos)
      << world.Of("long").reason;
  EXPECT_TRUE(world.Of("long").lacks_slots);
  world.Add("b", 4);
  EXPECT_EQ(Text(Decide(world.snapshot)), (Lines{"long: b 0 1 2 3"}));
}

TEST(DecideTest, AJobThatBeginsAnewElsewhereHasToEndBeforeItsNodeLeaves) {
  World world = Leased(2.5);
  world.Wait(Timed("answers", 1, 3)).resumes = false;
  world.Wait(Timed("short", 1, 2)).resumes = false;
  world.Wait(Timed("unknown", 1, 0)).resumes = false;
  EXPECT_EQ(world.Placed(), (Lines{"short"}));
  EXPECT_TRUE(world.Of("answers").reason.find("before this one ends") != std::string::npos)
      << world.Of("answers").reason;
}

TEST(DecideTest, NoStartIsPromisedOnANodeThatWillHaveLeft) {
  World world = Leased(2);
  world.Run("now", "a", 4, 3);
  world.Wait(Timed("next", 4, 1));
  EXPECT_TRUE(world.Of("next").promised.empty());
  world.snapshot.running[0].bound_end_us = kNow + kHour;
  EXPECT_EQ(world.Of("next").promised.start_us, kNow + kHour);
}

TEST(DecideTest, OnlyAJobWithinItsLimitsLacksSlots) {
  World world;
  world.snapshot.projects = {{"full", 1, 0, 0, 1}};
  world.Add("a", 1);
  world.Run("running", "a", 1, 1).project = "full";
  world.Wait(Timed("limited", 1, 1)).project = "full";
  world.Wait(Timed("free", 1, 1)).project = "b";
  world.Wait(Timed("big", 8, 1)).project = "b";
  world.Wait(Timed("held", 1, 1)).blocked = "held";
  EXPECT_FALSE(world.Of("limited").lacks_slots);
  EXPECT_FALSE(world.Of("held").lacks_slots);
  EXPECT_TRUE(world.Of("free").lacks_slots);
  EXPECT_TRUE(world.Of("big").lacks_slots) << "no node has so many";
}

TEST(DecideTest, ProjectsTakeTurnsByTheirUsagePerShare) {
  World world;
  world.Add("a", 1);
  world.Wait(Timed("of-a", 1, 1)).project = "a";
  world.Wait(Timed("of-b", 1, 1)).project = "b";
  world.snapshot.projects = {{"a", 1, 3.0 * kHour, 0, 0}, {"b", 1, 2.0 * kHour, 0, 0}};
  EXPECT_EQ(world.Placed(), (Lines{"of-b"}));
  world.snapshot.projects[0].share = 2;
  EXPECT_EQ(world.Placed(), (Lines{"of-a"}));
}

TEST(DecideTest, ABurstOfOneProjectTakesTurnsWithAnother) {
  World world;
  world.Add("a", 4);
  for (const char* id : {"a1", "a2", "a3", "a4"}) world.Wait(Timed(id, 1, 1)).project = "a";
  for (const char* id : {"b1", "b2"}) world.Wait(Timed(id, 1, 1)).project = "b";
  EXPECT_EQ(world.Placed(), (Lines{"a1", "b1", "a2", "b2"}));
}

TEST(DecideTest, AJobThatHasWaitedLongStandsBeforeTheNormalClass) {
  World world;
  world.Add("a", 1).Wait(Timed("new", 1, 1));
  PendingJob& old = world.Wait(Timed("old", 1, 1));
  old.priority = kLow;
  old.submitted_us = kNow - kOldAfterUs;
  EXPECT_EQ(world.Placed(), (Lines{"old"}));
}

TEST(DecideTest, BackfillsOnlyJobsThatEndBeforeAPromisedStart) {
  World world;
  world.Add("a", 8).Run("r", "a", 4, 2);
  world.Wait(Timed("gang", 8, 1));
  world.Wait(Timed("long", 1, 3));
  world.Wait(Timed("short", 1, 2));
  EXPECT_EQ(world.Placed(), (Lines{"short"}));
  const Waiting gang = world.Of("gang");
  EXPECT_EQ(gang.promised, (Reservation{kNow + 2 * kHour, {"a"}}));
  EXPECT_EQ(gang.place, 1);
  EXPECT_EQ(gang.start_us, kNow + 2 * kHour);
  EXPECT_EQ(world.Of("long").promised.start_us, kNow + 3 * kHour);
}

TEST(DecideTest, AJobWithoutABoundNeverRunsBeforeAPromise) {
  World world;
  world.Add("a", 8).Run("r", "a", 4, 2);
  world.Wait(Timed("gang", 8, 1));
  world.Wait(Timed("endless", 1, 0));
  EXPECT_TRUE(world.Placed().empty());
}

TEST(DecideTest, APromiseStandsAgainstJobsOfItsLevelAndGivesWayToAHigherOne) {
  World world;
  world.Add("a", 8).Run("r", "a", 8, 2).preemptible = false;
  PendingJob promised = Timed("promised", 8, 4);
  promised.promised = {kNow + 2 * kHour, {"a"}};
  promised.project = "a";
  world.snapshot.projects = {{"a", 1, 100.0 * kHour, 0, 0}};
  world.Wait(promised);
  world.Wait(Timed("first-in-line", 8, 1)).project = "b";
  EXPECT_EQ(world.Of("promised").promised.start_us, kNow + 2 * kHour);
  EXPECT_EQ(world.Of("first-in-line").promised.start_us, kNow + 6 * kHour);
  world.snapshot.pending.back().priority = kHigh;
  EXPECT_EQ(world.Of("first-in-line").promised.start_us, kNow + 2 * kHour);
  EXPECT_EQ(world.Of("promised").promised.start_us, kNow + 3 * kHour);
}

TEST(DecideTest, AGangPrefersNodesOfOnePlace) {
  World world;
  for (const char* name : {"a", "b", "c", "d", "e"}) world.Add(name, 8);
  const char* places[] = {"x", "y", "x", "y", "y"};
  for (size_t i = 0; i < 5; ++i) world.snapshot.nodes[i].place = places[i];
  world.Wait(Timed("gang", 8, 1, 2));
  const Decision decision = Decide(world.snapshot);
  ASSERT_EQ(decision.placements.size(), 1u);
  EXPECT_EQ(decision.placements[0].parts[0].node, "a");
  EXPECT_EQ(decision.placements[0].parts[1].node, "c") << "the smaller place that is enough";
}

TEST(DecideTest, RanksFollowTheNetworkAndTheNodeToAvoidIsTakenLast) {
  World world;
  for (const char* name : {"a", "b", "c", "d", "e"}) world.Add(name, 8);
  const char* places[] = {"hall/row-1/s1", "hall/row-2/s3", "hall/row-1/s2", "hall/row-2/s3",
                          "hall/row-1/s1"};
  for (size_t i = 0; i < 5; ++i) world.snapshot.nodes[i].place = places[i];
  const auto nodes = [&](int count, const std::string& avoid) {
    world.snapshot.pending.clear();
    world.Wait(Timed("gang", 8, 1, count)).avoid_node = avoid;
    const Decision decision = Decide(world.snapshot);
    std::string text;
    for (const Part& part : decision.placements.at(0).parts) text += part.node;
    return text;
  };
  EXPECT_EQ(nodes(2, ""), "ae");
  EXPECT_EQ(nodes(2, "e"), "bd") << "the other switch with two nodes";
  EXPECT_EQ(nodes(3, ""), "aec") << "one row, and its switch with most nodes first";
  EXPECT_EQ(nodes(3, "c"), "aeb") << "no row has three others";
  EXPECT_EQ(nodes(5, "a"), "eacbd") << "all are needed; of its switch it is the last";
}

TEST(DecideTest, AnExclusiveJobSharesItsNodesWithNobody) {
  World world;
  world.Add("a", 8).Add("b", 8).Run("r", "a", 1, 1);
  world.Wait(Timed("alone", 2, 1)).exclusive = true;
  world.Wait(Timed("other", 8, 1));
  EXPECT_EQ(Text(Decide(world.snapshot))[0], "alone: b 0 1");
  EXPECT_EQ(world.Of("other").promised.start_us, kNow + kHour);
  world.snapshot.pending.clear();
  world.Run("exclusive", "b", 2, 1).exclusive = true;
  world.Wait(Timed("small", 7, 1));
  world.Wait(Timed("next", 6, 1));
  EXPECT_EQ(world.Placed(), (Lines{"small"})) << "b has free slots that are not for others";
}

TEST(DecideTest, ALimitOfAProjectHoldsNobodyElseBack) {
  World world;
  world.Add("a", 8).Run("r", "a", 4, 10).project = "p";
  world.snapshot.projects = {{"p", 1, 0, 4, 0}};
  world.Wait(Timed("over", 2, 1)).project = "p";
  world.Wait(Timed("other", 4, 1)).project = "q";
  EXPECT_EQ(world.Placed(), (Lines{"other"}));
  EXPECT_EQ(world.Of("over").reason,
            "waiting for jobs of project p to end: it may use 4 GPUs at once");
}

TEST(DecideTest, ASweepLimitsItsRunningJobs) {
  World world;
  world.Add("a", 8);
  for (const char* id : {"s1", "s2", "s3"}) {
    PendingJob& job = world.Wait(Timed(id, 1, 1));
    job.sweep = "sweep-x";
    job.sweep_limit = 2;
  }
  EXPECT_EQ(world.Placed(), (Lines{"s1", "s2"}));
}

TEST(DecideTest, ABlockedJobIsNotQueued) {
  World world;
  world.Add("a", 1);
  world.Wait(Timed("held", 1, 1)).blocked = "held";
  world.Wait(Timed("next", 1, 1));
  EXPECT_EQ(world.Placed(), (Lines{"next"}));
  EXPECT_EQ(world.Of("held").reason, "held");
  EXPECT_EQ(world.Of("held").place, 0);
}

std::vector<std::string> Stopped(const World& world) {
  std::vector<std::string> jobs;
  for (const Preemption& each : Decide(world.snapshot).preemptions) {
    jobs.push_back(each.job + " for " + each.by);
  }
  return jobs;
}

TEST(DecideTest, AHigherClassStopsTheJobsThatLoseLeastAndNoMoreThanItNeeds) {
  World world;
  world.Add("a", 8).Run("much", "a", 4, 10, kLow);
  world.Run("little", "a", 2, 10, kLow).saved_us = kNow - kSecondUs;
  world.Run("also", "a", 2, 10, kLow).saved_us = kNow - 2 * kSecondUs;
  world.Wait(Timed("high", 2, 1)).priority = kHigh;
  EXPECT_EQ(Stopped(world), (Lines{"little for high"}));
  world.snapshot.pending[0].gpus_per_node = 4;
  EXPECT_EQ(Stopped(world), (Lines{"also for high", "little for high"}));
  EXPECT_TRUE(world.Placed().empty()) << "it starts once they have ended";
}

TEST(DecideTest, NoJobStopsOneOfItsOwnClassOrAbove) {
  World world;
  world.Add("a", 8).Run("r", "a", 8, 10, kNormal);
  world.Wait(Timed("normal", 8, 1));
  world.Wait(Timed("low", 8, 1)).priority = kLow;
  EXPECT_TRUE(Stopped(world).empty());
  world.snapshot.pending[0].priority = kHigh;
  EXPECT_EQ(Stopped(world), (Lines{"r for normal"}));
  world.snapshot.running[0].preemptible = false;
  EXPECT_TRUE(Stopped(world).empty());
}

TEST(DecideTest, JobsAlreadyStoppingAreWaitedFor) {
  World world;
  world.Add("a", 8);
  RunningJob& victim = world.Run("r", "a", 8, 10, kLow);
  victim.stopping = true;
  victim.bound_end_us = kNow + kStopUs;
  world.Run("other", "a", 0, 10, kLow);
  world.Wait(Timed("high", 8, 1)).priority = kHigh;
  EXPECT_TRUE(Stopped(world).empty());
  EXPECT_EQ(world.Of("high").promised.start_us, kNow + kStopUs);
}

TEST(DecideTest, AGangPreemptsNothingWhereThatIsNotEnough) {
  World world;
  world.Add("a", 8).Add("b", 8).Run("low", "a", 8, 10, kLow);
  world.Run("urgent", "b", 8, 10, kUrgent);
  world.Wait(Timed("high", 8, 1, 2)).priority = kHigh;
  EXPECT_TRUE(Stopped(world).empty());
}

TEST(DecideTest, TheSameSnapshotGivesTheSameDecision) {
  World world;
  for (int n = 0; n < 20; ++n) world.Add("n" + std::to_string(n), 8);
  for (int j = 0; j < 200; ++j) {
    PendingJob& job = world.Wait(Timed("j" + std::to_string(j), 1 + j % 8, 1 + j % 5));
    job.project = j % 3 == 0 ? "a" : "b";
    job.priority = j % 7 == 0 ? kHigh : kNormal;
  }
  const auto text = Text(Decide(world.snapshot));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Text(Decide(world.snapshot)), text);
}

TEST(DecideTest, ALargeJobWithoutAPromiseKeepsItsPlaceFromThoseBehindIt) {
  World world;
  world.Add("node-a", 2).Run("running", "node-a", 1, 1);
  world.Wait(Timed("large", 2, 4));
  world.Wait(Timed("long", 1, 2));
  const Rules reserving{.max_promised = 0, .max_reserved = 1};
  EXPECT_TRUE(Decide(world.snapshot, reserving).placements.empty());
  world.Wait(Timed("short", 1, 1));
  const Decision decision = Decide(world.snapshot, reserving);
  ASSERT_EQ(decision.placements.size(), 1u);
  EXPECT_EQ(decision.placements[0].job, "short");
  for (const Waiting& waiting : decision.waiting) EXPECT_TRUE(waiting.promised.empty());
}

// 10,000 waiting jobs of many shapes, 1,000 full nodes: under 70 ms of one core in an optimised
// build. The limit leaves room for builds with checks.
TEST(DecideTest, TenThousandJobsAndAThousandNodesAreDecidedInTime) {
  World world;
  for (int n = 0; n < 1000; ++n) {
    const std::string name = "node-" + std::to_string(n);
    world.Add(name, 8);
    for (int k = 0; k < 4; ++k) {
      world.Run("r" + std::to_string(n * 4 + k), name, k == 3 && n % 4 == 0 ? 1 : 2,
                1 + (n * 7 + k) % 40);
    }
  }
  constexpr int kSizes[] = {1, 1, 1, 2, 4, 8, 8, 8}, kNodes[] = {1, 1, 1, 1, 1, 1, 4, 32};
  for (int j = 0; j < 10000; ++j) {
    PendingJob& job =
        world.Wait(Timed("j" + std::to_string(j), kSizes[j % 8], 1 + j % 50, kNodes[j % 8]));
    job.project = "p" + std::to_string(j % 10);
    job.priority = j % 20 == 0 ? kHigh : kNormal;
  }
  const std::clock_t begin = std::clock();
  const Decision decision = Decide(world.snapshot);
  const double ms = 1000.0 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  RecordProperty("milliseconds", std::to_string(ms));
  std::cerr << "one decision: " << ms << " ms of one core\n";
  EXPECT_EQ(decision.placements.size() + decision.waiting.size(), 10000u);
  EXPECT_LT(ms, 1000);
}

}  // namespace
}  // namespace sft::server::sched
