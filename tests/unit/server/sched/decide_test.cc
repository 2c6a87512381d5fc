#include "server/sched/decide.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "server/sched/order.h"
#include "tests/unit/server/sched/decide_testing.h"

// Tests where a job is placed; line_test.cc tests when.

namespace sft::server::sched {
namespace {

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

TEST(DecideTest, TheReasonCountsSlotsAndNamesTheirHolders) {
  auto held = Held(0, 4, "job-x");
  held.merge(Held(4, 6, "job-y"));
  EXPECT_EQ(Text(Decide({{Node("node-a", "H100", 8, held)}, {Job("j", "H100", 4)}})),
            (Lines{"j? waiting for 4 x H100 on one node: node-a has 8, 6 held by job-x, job-y"}));
}

TEST(DecideTest, TheReasonHidesJobsOfOtherProjects) {
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

TEST(DecideTest, BackfillPrefersTheLeastServedProjectAndThenTheShortestJob) {
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

TEST(DecideTest, AJobThatNoNodeCouldHoldDelaysNobody) {
  const auto lines =
      Text(Decide({{Node("a", "H100", 8)}, {Job("huge", "H100", 16), Job("small", "H100", 1)}}));
  EXPECT_EQ(lines[0], "small: a 0");
  EXPECT_EQ(lines[1], "huge? no node has H100-16x; largest is H100-8x");
}

TEST(DecideTest, TheReasonNamesAMissingTypeOrNode) {
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

TEST(DecideTest, AModelOfAHubIsPlacedWhereItIsAndElseWhereItIsDownloaded) {
  NodeView has = Node("z", "H100", 4), downloads = Node("a", "H100", 4),
           neither = Node("b", "H100", 8);
  has.models = {"o/m", "o/m@c1"};
  downloads.downloads = true;
  PendingJob job = Job("j", "H100", 4);
  job.on_hub = true;
  job.model = "o/m@c1";
  EXPECT_EQ(Text(Decide({{downloads, neither, has}, {job}})), (Lines{"j: z 0 1 2 3"}));
  PendingJob next = job;
  next.id = "k";
  EXPECT_EQ(Text(Decide({{downloads, neither, has}, {job, next}})),
            (Lines{"j: z 0 1 2 3", "k: a 0 1 2 3"}));
  // A name alone is what nodes have, where one has it.
  job.model = "o/m";
  has.usable = false;
  has.unusable_reason = "silent for 40 s";
  EXPECT_EQ(Text(Decide({{downloads, has}, {job}})),
            (Lines{"j? waiting for 4 x H100 on one node: a has 4 but does not see model o/m, which "
                   "names a copy that other nodes have; z has 4 but is silent for 40 s"}));
  EXPECT_EQ(Text(Decide({{downloads, neither}, {job}})), (Lines{"j: a 0 1 2 3"}));
  job.on_hub = false;
  EXPECT_EQ(Text(Decide({{downloads}, {job}})),
            (Lines{"j? no node with H100-4x sees model o/m (seen: none)"}));
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

TEST(DecideTest, AGangOverSeveralNodesRunsOnOneBuildOfTheRanks) {
  const auto node = [](const std::string& name, const std::string& build) {
    NodeView view = Node(name, "H100", 1);
    view.rank_build = build;
    return view;
  };
  const PendingJob gang = Job("j", "H100", 1, 2);
  EXPECT_EQ(Text(Decide({{node("a", "1.0"), node("b", "1.1"), node("c", "1.1")}, {gang}})),
            (Lines{"j: b 0 c 0"}));
  EXPECT_EQ(Text(Decide({{node("a", "1.0"), node("b", "1.1")}, {gang}})),
            (Lines{"j? waiting for 1 x H100 on each of 2 nodes: a has 1; b has 1 but runs sft-rank "
                   "1.1, and not sft-rank 1.0 as others do: install one release on all"}));
  EXPECT_EQ(Text(Decide({{node("a", "1.0"), node("b", ""), node("c", "")}, {gang}})),
            (Lines{"j: b 0 c 0"}))
      << "workers that do not say it run one build, which nobody knows";
  EXPECT_EQ(Text(Decide({{node("a", "1.0"), node("b", "")}, {gang}})),
            (Lines{"j? waiting for 1 x H100 on each of 2 nodes: a has 1 but runs sft-rank 1.0, and "
                   "not an sft-rank that does not say its build as others do: install one release "
                   "on all; b has 1"}));
  EXPECT_EQ(Text(Decide({{node("a", "1.0"), node("b", "1.1")}, {Job("j", "H100", 1)}})),
            (Lines{"j: a 0"}))
      << "on one node any will do";
  NodeView lemon = node("b", "1.0");
  lemon.left_out = "left out";
  EXPECT_EQ(Text(Decide({{node("a", "1.0"), lemon, node("c", "1.1")}, {gang}})),
            (Lines{"j: a 0 b 0"}))
      << "one that is left out rather than another build";
}

TEST(DecideTest, AGangKeepsItsPromisedNodesOfOneBuildWhateverTheOthersRun) {
  constexpr int64_t kHour = 3600LL * 1000000;
  const auto node = [](const std::string& name, const std::string& build, bool held = false) {
    NodeView view = Node(name, "H100", 1, Held(0, held ? 1 : 0, "k"));
    view.rank_build = build;
    return view;
  };
  const auto away = [&](const std::string& name) {
    NodeView view = node(name, "");
    view.usable = false;
    view.returning = true;
    return view;
  };
  // `k` ends at `end`.
  const auto promised = [&](std::vector<NodeView> nodes, int64_t end) {
    Snapshot snapshot{std::move(nodes), {Job("j", "H100", 1, 2)}};
    snapshot.now_us = kHour;
    snapshot.pending[0].promised = {3 * kHour, {"b", "d"}};
    RunningJob running;
    running.id = "k";
    running.bound_end_us = end;
    snapshot.running.push_back(running);
    const Decision decision = Decide(snapshot);
    Reservation place;
    if (!decision.waiting.empty()) place = decision.waiting[0].promised;
    std::sort(place.nodes.begin(), place.nodes.end());
    return place;
  };
  const Reservation kept{3 * kHour, {"b", "d"}};
  const NodeView a = node("a", "1.0"), b = node("b", "1.1"), held = node("e", "1.0", true);
  EXPECT_EQ(promised({a, b, away("d")}, 0), kept) << "until its second node is back";
  EXPECT_EQ(promised({b, away("d"), held, node("f", "1.0", true)}, 5 * kHour), kept);
  EXPECT_EQ(promised({b, node("d", "1.1", true), held, node("f", "1.0", true), node("g", "1.0")},
                     3 * kHour),
            kept)
      << "the others are free no earlier";
  EXPECT_EQ(promised({b, away("d"), a, held}, 2 * kHour), (Reservation{2 * kHour, {"a", "e"}}))
      << "the others are free earlier";
  EXPECT_EQ(promised({b, node("d", "1.0", true), a}, 2 * kHour),
            (Reservation{2 * kHour, {"a", "d"}}))
      << "its own run two builds";
}

}  // namespace
}  // namespace sft::server::sched
