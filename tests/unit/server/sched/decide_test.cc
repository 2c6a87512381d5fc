#include "server/sched/decide.h"

#include <gtest/gtest.h>

#include <ctime>
#include <iostream>
#include <map>

#include "server/sched/order.h"
#include "server/sched/preempt.h"

namespace sft::server::sched {
namespace {

NodeView Node(const std::string& name, const std::string& type, int slots,
              const std::map<int, std::string>& held = {}) {
  NodeView node;
  node.name = name;
  for (int i = 0; i < slots; ++i) {
    node.slots.push_back({i, type, true, held.contains(i) ? held.at(i) : ""});
  }
  return node;
}

std::map<int, std::string> Held(int from, int to, const std::string& job) {
  std::map<int, std::string> held;
  for (int i = from; i < to; ++i) held[i] = job;
  return held;
}

PendingJob Job(const std::string& id, const std::string& type, int slots, int nodes = 1) {
  return {id, type, slots, nodes, ""};
}

// "job: node 0 1 2; node 3" for each placement, "job? reason" for each that waits.
std::vector<std::string> Text(const Decision& decision) {
  std::vector<std::string> lines;
  for (const Placement& placement : decision.placements) {
    std::string line = placement.job + ":";
    for (const Part& part : placement.parts) {
      line += " " + part.node;
      for (const int slot : part.slots) line += " " + std::to_string(slot);
    }
    lines.push_back(line);
  }
  for (const Waiting& waiting : decision.waiting)
    lines.push_back(waiting.job + "? " + waiting.reason);
  return lines;
}

using Lines = std::vector<std::string>;

TEST(DecideTest, PlacesAWholeGangOnOneNode) {
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 8)}, {Job("j", "H100", 4)}})), (Lines{"j: a 0 1 2 3"}));
}

TEST(DecideTest, TakesTheNodeThatKeepsTheFewestSlotsOver) {
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 8), Node("b", "H100", 4)}, {Job("j", "H100", 2)}})),
            (Lines{"j: b 0 1"}));
}

TEST(DecideTest, TwoJobsNeverShareASlot) {
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 4)}, {Job("j", "H100", 2), Job("k", "H100", 2)}})),
            (Lines{"j: a 0 1", "k: a 2 3"}));
}

TEST(DecideTest, SaysHowManyAreThereAndWhoHoldsThem) {
  auto held = Held(0, 4, "job-x");
  held.merge(Held(4, 6, "job-y"));
  EXPECT_EQ(Text(Decide({{Node("node-a", "H100", 8, held)}, {Job("j", "H100", 4)}})),
            (Lines{"j? waiting for 4 x H100 on one node: node-a has 8, 6 held by job-x, job-y"}));
}

TEST(DecideTest, SaysNothingOfJobsOfOtherProjects) {
  auto held = Held(0, 4, "theirs");
  held.merge(Held(4, 6, "ours"));
  Snapshot snapshot{{Node("node-a", "H100", 8, held)}, {Job("j", "H100", 4)}};
  snapshot.pending[0].project = "a";
  for (const auto& [id, project] : {std::pair("theirs", "b"), std::pair("ours", "a")}) {
    RunningJob& job = snapshot.running.emplace_back();
    job.id = id, job.project = project;
  }
  EXPECT_EQ(Text(Decide(snapshot)),
            (Lines{"j? waiting for 4 x H100 on one node: node-a has 8, 6 held by ours and another "
                   "project"}));
}

TEST(DecideTest, ABigJobIsNotOvertakenOnItsSlots) {
  const auto lines = Text(Decide({{Node("a", "H100", 8, Held(0, 2, "job-x"))},
                                  {Job("big", "H100", 8), Job("small", "H100", 1)}}));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "big? waiting for 8 x H100 on one node: a has 8, 2 held by job-x");
  EXPECT_EQ(lines[1], "small? waiting in line for 1 x H100 on one node");
}

TEST(DecideTest, WhatFillsInIsOfTheProjectThatHasHadLeastAndThenTheShortest) {
  Snapshot snapshot{{Node("node-a", "H100", 2)}, {}};
  for (const auto& [id, project, hours] : {std::tuple("j1", "a", 1), std::tuple("j2", "b", 3),
                                           std::tuple("j3", "b", 2), std::tuple("j4", "b", 4)}) {
    PendingJob job = Job(id, "H100", 1);
    job.project = project;
    job.expected_us = job.bound_us = hours * kHourUs;
    snapshot.pending.push_back(job);
  }
  snapshot.projects = {{"a", 1, 9.0 * kHourUs, 0, 0}, {"b", 1, 1.0 * kHourUs, 0, 0}};
  const Decision decision = Decide(snapshot, {.max_promised = 0, .max_reserved = 0});
  ASSERT_EQ(decision.placements.size(), 2u);
  EXPECT_EQ(decision.placements[0].job, "j3");
  EXPECT_EQ(decision.placements[1].job, "j2");
}

TEST(DecideTest, JobsOfAnotherTypePassAWaitingOne) {
  const auto lines = Text(Decide({{Node("a", "H100", 8, Held(0, 8, "job-x")), Node("b", "CPU", 2)},
                                  {Job("gpu", "H100", 8), Job("cpu", "CPU", 2)}}));
  EXPECT_EQ(lines[0], "cpu: b 0 1");
}

TEST(DecideTest, AJobThatNoNodeCouldHoldKeepsNobodyWaiting) {
  const auto lines =
      Text(Decide({{Node("a", "H100", 8)}, {Job("huge", "H100", 16), Job("small", "H100", 1)}}));
  EXPECT_EQ(lines[0], "small: a 0");
  EXPECT_EQ(lines[1], "huge? no node has H100-16x; largest is H100-8x");
}

TEST(DecideTest, SaysWhenThereIsNoSuchTypeOrNoNode) {
  EXPECT_EQ(Text(Decide({{Node("a", "CPU", 2)}, {Job("j", "B200", 1)}})),
            (Lines{"j? no node has B200 (there is: CPU)"}));
  EXPECT_EQ(Text(Decide({{}, {Job("j", "CPU", 1)}})),
            (Lines{"j? no worker has registered yet: start sft-worker on a node"}));
}

TEST(DecideTest, ASilentNodeIsNotUsed) {
  NodeView node = Node("a", "H100", 8);
  node.usable = false;
  node.unusable_reason = "silent since 12:00";
  EXPECT_EQ(Text(Decide({{node}, {Job("j", "H100", 8)}})),
            (Lines{"j? waiting for 8 x H100 on one node: a has 8 but is silent since 12:00"}));
}

TEST(DecideTest, AnUnhealthySlotIsNotUsed) {
  NodeView node = Node("a", "H100", 2);
  node.slots[0].healthy = false;
  EXPECT_EQ(Text(Decide({{node}, {Job("j", "H100", 1), Job("k", "H100", 1)}})).front(), "j: a 1");
  const auto both = Text(Decide({{node}, {Job("j", "H100", 2)}}));
  EXPECT_EQ(both[0], "j? waiting for 2 x H100 on one node: a has 2, 1 not healthy");
}

TEST(DecideTest, AGangOverNodesTakesAllOfThemOrNone) {
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 4), Node("b", "H100", 4)}, {Job("j", "H100", 2, 2)}})),
            (Lines{"j: a 0 1 b 0 1"}));
  EXPECT_EQ(
      Text(Decide({{Node("a", "H100", 4), Node("b", "H100", 4, Held(0, 3, "job-x"))},
                   {Job("j", "H100", 2, 2)}})),
      (Lines{"j? waiting for 2 x H100 on each of 2 nodes: a has 4; b has 4, 3 held by job-x"}));
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 4)}, {Job("j", "H100", 2, 2)}})),
            (Lines{"j? waiting for 2 nodes with 2 x H100 each: there is 1"}));
}

TEST(DecideTest, OnlyNodesThatSeeTheModelAreUsed) {
  NodeView blind = Node("a", "H100", 4), seeing = Node("b", "H100", 8);
  blind.models = {"small"};
  seeing.models = {"small", "big"};
  PendingJob job = Job("j", "H100", 4);
  job.model = "big";
  EXPECT_EQ(Text(Decide({{blind, seeing}, {job}})), (Lines{"j: b 0 1 2 3"}));
  job.model = "other";
  EXPECT_EQ(Text(Decide({{blind, seeing}, {job}})),
            (Lines{"j? no node with H100-4x sees model other (seen: big, small)"}));
}

TEST(DecideTest, PreviewCountsTheJobsThatWaitAlready) {
  Snapshot snapshot{{Node("a", "H100", 4)}, {}};
  EXPECT_EQ(Preview(snapshot, Job("new", "H100", 4)).text, "could start now on a");
  snapshot.pending.push_back(Job("old", "H100", 2));
  EXPECT_EQ(Preview(snapshot, Job("new", "H100", 4)).text,
            "waiting for 4 x H100 on one node: a has 4, 2 held by old");
}

TEST(DecideTest, AJobIsTiedToTheNodesThatHaveItsCheckpointInTheirOrder) {
  PendingJob job = Job("j", "H100", 2, 2);
  job.only_nodes = {"c", "a"};
  EXPECT_EQ(
      Text(Decide({{Node("a", "H100", 2), Node("b", "H100", 2), Node("c", "H100", 4)}, {job}})),
      (Lines{"j: c 0 1 a 0 1"}));
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 2, Held(0, 1, "k")), Node("b", "H100", 2),
                          Node("c", "H100", 2)},
                         {job}})),
            (Lines{"j? waiting for 2 x H100 on each of 2 nodes: a has 2, 1 held by k; b has 2 but "
                   "cannot reach the checkpoint; c has 2"}));
}

TEST(DecideTest, ACheckpointInTheSharedFolderNeedsANodeThatSeesIt) {
  NodeView with = Node("b", "H100", 8);
  with.has_shared = true;
  PendingJob job = Job("j", "H100", 1);
  job.needs_shared = true;
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 1), with}, {job}})), (Lines{"j: b 0"}));
}

TEST(DecideTest, TheNodeBlamedLastIsTakenLast) {
  PendingJob job = Job("j", "H100", 1);
  job.avoid_node = "a";
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 1), Node("b", "H100", 8)}, {job}})), (Lines{"j: b 0"}));
  EXPECT_EQ(Text(Decide({{Node("a", "H100", 1)}, {job}})), (Lines{"j: a 0"}));
}

TEST(DecideTest, ANodeThatIsLeftOutIsUsedOnlyWhereNothingElseCouldHoldTheJob) {
  NodeView lemon = Node("a", "H100", 8);
  lemon.left_out = "left out until noon: jobs keep failing on it";
  EXPECT_EQ(Text(Decide({{lemon, Node("b", "H100", 8, Held(0, 8, "k"))}, {Job("j", "H100", 1)}})),
            (Lines{"j? waiting for 1 x H100 on one node: a has 8 but is left out until noon: jobs "
                   "keep failing on it; b has 8, 8 held by k"}));
  EXPECT_EQ(Text(Decide({{lemon, Node("b", "H100", 4)}, {Job("j", "H100", 8)}})),
            (Lines{"j: a 0 1 2 3 4 5 6 7"}));
}

constexpr int64_t kHour = kHourUs, kNow = 1000 * kHour;

// A job with what the scheduler goes by.
PendingJob Timed(const std::string& id, int slots, int64_t hours, int nodes = 1) {
  PendingJob job = Job(id, "H100", slots, nodes);
  job.submitted_us = kNow;
  job.expected_us = hours * kHour;
  job.bound_us = hours * kHour;
  return job;
}

// Snapshots whose running jobs are told of, not only seen as holders of slots.
struct World {
  Snapshot snapshot;

  World() { snapshot.now_us = kNow; }
  World& Add(const std::string& node, int slots) {
    snapshot.nodes.push_back(Node(node, "H100", slots));
    return *this;
  }
  // Runs on the first free slots of a node.
  RunningJob& Run(const std::string& id, const std::string& node, int slots, int64_t hours,
                  int priority = kNormal) {
    RunningJob job;
    job.id = id;
    job.gpu_type = "H100";
    job.priority = priority;
    job.started_us = kNow - kHour;
    job.expected_end_us = job.bound_end_us = kNow + hours * kHour;
    Part part{node, {}};
    for (NodeView& each : snapshot.nodes) {
      if (each.name != node) continue;
      for (SlotView& slot : each.slots) {
        if (!slot.job.empty() || static_cast<int>(part.slots.size()) == slots) continue;
        slot.job = id;
        part.slots.push_back(slot.index);
      }
    }
    job.parts.push_back(part);
    snapshot.running.push_back(job);
    return snapshot.running.back();
  }
  PendingJob& Wait(PendingJob job) {
    snapshot.pending.push_back(std::move(job));
    return snapshot.pending.back();
  }
  std::vector<std::string> Placed() const {
    std::vector<std::string> jobs;
    for (const Placement& placement : Decide(snapshot).placements) jobs.push_back(placement.job);
    return jobs;
  }
  Waiting Of(const std::string& id) const {
    for (const Waiting& waiting : Decide(snapshot).waiting) {
      if (waiting.job == id) return waiting;
    }
    return {};
  }
};

TEST(DecideTest, AHigherClassComesFirst) {
  World world;
  world.Add("a", 4).Wait(Timed("first", 4, 1));
  world.Wait(Timed("urgent", 4, 1)).priority = kUrgent;
  EXPECT_EQ(world.Placed(), (Lines{"urgent"}));
}

TEST(DecideTest, ProjectsTakeTurnsByWhatTheyHaveUsedForTheirShare) {
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

TEST(DecideTest, FillsInOnlyWhatEndsBeforeAPromisedStart) {
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

TEST(DecideTest, AGangPrefersNodesOfOneDomain) {
  World world;
  for (const char* name : {"a", "b", "c", "d", "e"}) world.Add(name, 8);
  const char* domains[] = {"x", "y", "x", "y", "y"};
  for (size_t i = 0; i < 5; ++i) world.snapshot.nodes[i].domain = domains[i];
  world.Wait(Timed("gang", 8, 1, 2));
  const Decision decision = Decide(world.snapshot);
  ASSERT_EQ(decision.placements.size(), 1u);
  EXPECT_EQ(decision.placements[0].parts[0].node, "a");
  EXPECT_EQ(decision.placements[0].parts[1].node, "c") << "the smaller domain that is enough";
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

TEST(DecideTest, ASweepRunsAtMostSoManyOfItsJobsAtOnce) {
  World world;
  world.Add("a", 8);
  for (const char* id : {"s1", "s2", "s3"}) {
    PendingJob& job = world.Wait(Timed(id, 1, 1));
    job.sweep = "sweep-x";
    job.sweep_limit = 2;
  }
  EXPECT_EQ(world.Placed(), (Lines{"s1", "s2"}));
}

TEST(DecideTest, ABlockedJobStandsInNoLine) {
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

TEST(DecideTest, WhatIsStoppedAlreadyIsWaitedFor) {
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

TEST(DecideTest, AGangStopsNothingWhereThatIsNotEnough) {
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

// 10,000 waiting jobs of many shapes, 1,000 full nodes: under 70 ms of one core when optimised. The
// limit leaves room for builds with checks.
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
