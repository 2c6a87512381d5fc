#include "server/sched/what_if.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "server/sched/preempt.h"
#include "tests/unit/server/sched/world.h"

// Tests what is said of a waiting job: what is ahead of it, and what would start it sooner.

namespace sft::server::sched {
namespace {

// Asks about a job of a world whose other shapes are all possible.
Question About(const World& world, const std::string& id) {
  Question question;
  for (const PendingJob& job : world.snapshot.pending) {
    if (job.id == id) question.job = job;
  }
  question.expected = OutlookOf(world.snapshot, Decide(world.snapshot), question.job);
  question.reshape = [job = question.job](const Change& change) {
    PendingJob changed = job;
    changed.gpu_type = change.gpu_type;
    changed.nodes = change.nodes;
    changed.gpus_per_node = change.gpus_per_node;
    return std::optional<PendingJob>(changed);
  };
  return question;
}

// "2h limit: now", "1 x 2 H100: +1h"
std::vector<std::string> Found(const World& world, const Question& question) {
  std::vector<std::string> texts;
  for (const WhatIf& each : FindWhatIfs(world.snapshot, question)) {
    const Change& change = each.change;
    std::string what = "release";
    if (change.kind == Change::Kind::kShape) {
      what = fmt::format("{} x {} {}", change.nodes, change.gpus_per_node, change.gpu_type);
    } else if (change.kind == Change::Kind::kTimeLimit) {
      what = fmt::format("{}m limit", change.limit_us / (60 * kSecondUs));
    } else if (change.kind == Change::Kind::kPriority) {
      what = fmt::format("class {}", change.priority);
    }
    const int64_t minutes = (each.outlook.start_us - kNow) / (60 * kSecondUs);
    texts.push_back(what + (each.outlook.now ? ": now" : fmt::format(": +{}m", minutes)));
  }
  return texts;
}

TEST(AheadTest, CountsWhatStandsBeforeAJobInTheLineForItsTypeAlone) {
  World world;
  world.Add("a", 8).Run("r", "a", 8, 2);
  world.snapshot.nodes.push_back(Node("x", "A100", 1));
  world.snapshot.nodes.back().slots[0].job = "elsewhere";
  world.Wait(Timed("first", 8, 3)).project = "p";
  world.Wait(Timed("second", 2, 0)).project = "q";
  world.Wait(Timed("asked", 4, 1)).project = "p";
  world.Wait(Timed("later", 4, 1)).project = "p";
  PendingJob other = Timed("other", 1, 9);
  other.gpu_type = "A100";
  world.Wait(other);
  world.Wait(Timed("held", 1, 1)).blocked = "held";
  const Decision decision = Decide(world.snapshot);
  const Ahead ahead = AheadOf(world.snapshot, decision, world.snapshot.pending[2]);
  EXPECT_EQ(ahead.line, 4);
  EXPECT_EQ(ahead.own, 1);
  EXPECT_EQ(ahead.others, 1);
  EXPECT_EQ(ahead.unknown, 1);
  EXPECT_EQ(ahead.gpu_us, (8.0 * 3 + 2.0 * 1) * kHour);
  const Ahead of_held = AheadOf(world.snapshot, decision, world.snapshot.pending[5]);
  EXPECT_EQ(of_held.line, 0) << "it stands in none";
}

TEST(WhatIfTest, AnotherTypeWithFreeNodes) {
  World world;
  world.Add("a", 8).Run("r", "a", 8, 2);
  world.snapshot.nodes.push_back(Node("small", "L4", 2));
  world.snapshot.nodes.push_back(Node("x", "A100", 4));
  world.snapshot.nodes.push_back(Node("c", "CPU", 16));
  world.Wait(Timed("job", 4, 1));
  EXPECT_EQ(Found(world, About(world, "job")), (Lines{"1 x 4 A100: now"}));
  world.snapshot.nodes[2].usable = false;
  EXPECT_EQ(Found(world, About(world, "job")), Lines{});
}

TEST(WhatIfTest, FewerGpusOnlyWhereThoseStartSoonerThanMore) {
  World world;
  world.Add("a", 8).Run("r", "a", 6, 2);
  world.Wait(Timed("job", 8, 1));
  EXPECT_EQ(Found(world, About(world, "job")), (Lines{"1 x 2 H100: now"}))
      << "4 start no sooner than 8, and 1 no sooner than 2";
  Question question = About(world, "job");
  question.reshape = [](const Change&) { return std::nullopt; };
  EXPECT_EQ(Found(world, question), Lines{}) << "it does not fit, or its batch cannot be divided";
}

TEST(WhatIfTest, TheSameGpusOnMoreNodes) {
  World world;
  world.Add("a", 8).Add("b", 8).Run("r", "a", 4, 2);
  world.Run("s", "b", 4, 2);
  world.Wait(Timed("job", 8, 1));
  EXPECT_EQ(Found(world, About(world, "job")), (Lines{"2 x 4 H100: now", "1 x 4 H100: now"}));
}

TEST(WhatIfTest, TheLongestTimeLimitThatFillsAGap) {
  World world;
  world.Add("a", 8).Run("r", "a", 4, 3);
  world.Wait(Timed("gang", 8, 1));
  world.Wait(Timed("endless", 1, 0));
  Question question = About(world, "endless");
  EXPECT_EQ(Found(world, question), (Lines{"120m limit: now"}));
  question.ending_us = 70 * 60 * kSecondUs;
  EXPECT_EQ(Found(world, question), (Lines{"60m limit: now"})) << "it may take so long to end";
  // One whose run time is known needs a limit that it can keep.
  world.snapshot.pending[1].expected_us = 2 * kHour;
  world.snapshot.pending[1].bound_us = 4 * kHour;
  EXPECT_EQ(Found(world, About(world, "endless")), Lines{});
}

TEST(WhatIfTest, TheLowestClassThatDoesItAndMayBeUsed) {
  World world;
  world.Add("a", 8).Run("r", "a", 8, 1).preemptible = false;
  world.Wait(Timed("gang", 8, 4));
  world.Wait(Timed("job", 1, 9)).priority = kLow;
  Question question = About(world, "job");
  EXPECT_EQ(Found(world, question), Lines{}) << "normal comes behind the gang";
  question.max_priority = kUrgent;
  EXPECT_EQ(Found(world, question), (Lines{"class 2: +60m"}));
}

TEST(WhatIfTest, ANewJobStandsBehindTheOthersOfItsProject) {
  World world;
  world.Add("a", 8).Run("r", "a", 6, 2);
  world.Wait(Timed("job", 8, 1));
  EXPECT_EQ(Found(world, About(world, "job")), (Lines{"1 x 2 H100: now"}));
  world.Wait(Timed("other", 2, 10));
  EXPECT_EQ(Found(world, About(world, "job")), Lines{}) << "the other takes the two that are free";
}

TEST(WhatIfTest, AHeldJobIsReleasedAndKeepsItsPlace) {
  World world;
  world.Add("a", 8).Run("r", "a", 8, 2);
  world.Wait(Timed("held", 8, 1)).blocked = "held";
  world.Wait(Timed("other", 8, 1)).submitted_us += kSecondUs;
  Question question = About(world, "held");
  EXPECT_EQ(Found(world, question), Lines{}) << "it waits for others";
  question.released = question.job;
  question.released->blocked.clear();
  EXPECT_EQ(Found(world, question), (Lines{"release: +120m"}));
}

TEST(WhatIfTest, NothingForAJobThatStartsNowOrCannotBeReplaced) {
  World world;
  world.Add("a", 8).Run("r", "a", 6, 2);
  world.Wait(Timed("job", 8, 1));
  Question question = About(world, "job");
  question.replaceable = false;
  EXPECT_EQ(Found(world, question), Lines{});
  world.snapshot.pending[0].gpus_per_node = 2;
  EXPECT_EQ(Found(world, About(world, "job")), Lines{});
}

TEST(WhatIfTest, AtMostFiveTheEarliestFirst) {
  World world;
  world.Add("a", 8).Run("r", "a", 1, 1);
  world.Run("s", "a", 2, 2);
  world.Run("t", "a", 4, 5);
  for (const char* type : {"A", "B", "C"}) world.snapshot.nodes.push_back(Node(type, type, 8));
  world.Wait(Timed("job", 8, 1));
  Question question = About(world, "job");
  const Lines all = {"1 x 8 A: now", "1 x 8 B: now", "1 x 1 H100: now", "1 x 2 H100: +60m",
                     "1 x 4 H100: +120m"};
  EXPECT_EQ(Found(world, question), all) << "of other types the two with the most room";
  question.max_priority = kUrgent;
  Lines most = all;
  most.insert(most.begin() + 3, fmt::format("class 2: +{}m", kStopUs / (60 * kSecondUs)));
  most.pop_back();
  EXPECT_EQ(Found(world, question), most);
}

}  // namespace
}  // namespace sft::server::sched
