#include "server/sched/wait_history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/server/sched/world.h"

// Tests what waiting jobs are told of what moved them, decision by decision.

namespace sft::server::sched {
namespace {

constexpr int64_t kMin = 60 * kSecondUs;

class WaitHistoryTest : public ::testing::Test {
 protected:
  // A node of 8 GPUs that one job holds for two hours, and two that wait for it.
  WaitHistoryTest() {
    world_.Add("a", 8).Run("runs", "a", 8, 2).preemptible = false;
    world_.Wait(Timed("first", 8, 3));
    world_.Wait(Timed("second", 8, 1));
    EXPECT_EQ(Look(), Lines()) << "there is nothing before";
  }

  // "first 1>2 start 120>180 latest 120>180: why", in minutes from the beginning; "-": not known.
  Lines Look(bool stored = true) {
    const Decision decision = Decide(world_.snapshot);
    const auto changes = history_.Look(world_.snapshot, decision);
    if (stored) history_.Stored(changes);
    Lines lines;
    for (const WaitChange& change : changes) {
      std::string line = change.job;
      const auto add = [&](const char* what, int64_t before, int64_t after, bool times) {
        const auto text = [&](int64_t value) {
          return !times       ? std::to_string(value)
                 : value == 0 ? "-"
                              : std::to_string((value - kNow) / kMin);
        };
        if (before != after) line += fmt::format(" {}{}>{}", what, text(before), text(after));
      };
      add("", change.before.place, change.after.place, false);
      add("start ", change.before.start_us, change.after.start_us, true);
      add("latest ", change.before.promised_us, change.after.promised_us, true);
      lines.push_back(line + ": " + change.cause);
    }
    KeepPromises(decision);
    return lines;
  }
  // As the store does between two decisions.
  void KeepPromises(const Decision& decision) {
    for (const Waiting& waiting : decision.waiting) {
      Pending(waiting.job).promised = waiting.promised;
    }
  }
  PendingJob& Pending(const std::string& id) {
    return *std::ranges::find(world_.snapshot.pending, id, &PendingJob::id);
  }
  RunningJob& Running(const std::string& id) {
    return *std::ranges::find(world_.snapshot.running, id, &RunningJob::id);
  }
  PendingJob& Urgent(const std::string& id) {
    PendingJob& job = world_.Wait(Timed(id, 8, 1));
    job.priority = kUrgent;
    job.submitted_us = world_.snapshot.now_us;
    return job;
  }
  void Cancel(const std::string& id) {
    std::erase_if(world_.snapshot.pending, [&](const PendingJob& each) { return each.id == id; });
  }
  void Pass(int64_t us) { world_.snapshot.now_us += us; }
  void Free(const std::string& job) {
    for (SlotView& slot : world_.snapshot.nodes[0].slots) {
      if (slot.job == job) slot.job.clear();
    }
    std::erase_if(world_.snapshot.running, [&](const RunningJob& each) { return each.id == job; });
  }
  // A waiting job starts on the first node.
  void Start(const std::string& id) {
    const PendingJob job = Pending(id);
    std::erase_if(world_.snapshot.pending, [&](const PendingJob& each) { return each.id == id; });
    RunningJob& run = world_.Run(id, "a", job.gpus(), 0);
    run.started_us = world_.snapshot.now_us;
    run.expected_end_us = run.bound_end_us = world_.snapshot.now_us + job.expected_us;
  }

  World world_;
  WaitHistory history_;
};

TEST_F(WaitHistoryTest, AJobOfAHigherClassGoesAheadOfAll) {
  Cancel("second");
  Pass(kMin);
  Urgent("urgent");
  EXPECT_EQ(Look(),
            Lines({"first 1>2 start 120>180 latest 120>180: urgent was submitted ahead of it"}));
  EXPECT_EQ(Look(), Lines()) << "told once";
}

TEST_F(WaitHistoryTest, JobsOfOtherProjectsAreCountedAlone) {
  Cancel("second");
  Pass(kMin);
  for (const char* id : {"u1", "u2"}) Urgent(id).project = "secret";
  Urgent("u3");
  EXPECT_EQ(Look(),
            Lines({"first 1>4 start 120>300 latest 120>300: u3 and 2 jobs of other projects "
                   "were submitted ahead of it"}));
}

TEST_F(WaitHistoryTest, ALineThatMovesOnAsExpectedTellsNothing) {
  Pass(2 * kHour);
  Free("runs");
  EXPECT_EQ(Look(), Lines()) << "the first one starts now";
  Start("first");
  Pass(kSecondUs);
  EXPECT_EQ(Look(), Lines());
  Pass(kHour);
  EXPECT_EQ(Look(), Lines());
}

TEST_F(WaitHistoryTest, AJobThatEndsSoonerBringsTheOthersForward) {
  Pass(kHour);
  Free("runs");
  EXPECT_EQ(Look(), Lines({"second start 300>240 latest 300>240: runs ended 1 h 00 min sooner than "
                           "expected"}));
}

TEST_F(WaitHistoryTest, AJobThatBeganAndEndedBetweenTwoDecisionsIsNoNews) {
  Pass(2 * kHour);
  Free("runs");
  EXPECT_EQ(Look(), Lines()) << "the first one starts now";
  Cancel("first");
  world_.Wait(Timed("third", 8, 1));
  for (SlotView& slot : world_.snapshot.nodes[0].slots) slot.job = "other";
  world_.Run("other", "a", 0, 3);  // until an hour before the first one would have ended
  Pass(kSecondUs);
  EXPECT_EQ(Look(), Lines());
  EXPECT_EQ(Look(), Lines());
}

TEST_F(WaitHistoryTest, AJobThatTakesLongerHoldsThemUp) {
  Cancel("second");
  Pass(kMin);
  ASSERT_EQ(Look(), Lines());
  Pass(kMin);
  Running("runs").expected_end_us += kHour;
  Running("runs").bound_end_us += kHour;
  EXPECT_EQ(Look(), Lines({"first start 120>180 latest 120>180: runs takes 1 h 00 min longer than "
                           "expected"}));
}

TEST_F(WaitHistoryTest, APreemptionBringsForwardWhoWaitsForTheSlots) {
  Running("runs").preemptible = true;
  Pass(kMin);
  Urgent("urgent");
  const Lines lines = Look();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(
      lines[0],
      "first 1>2 start 120>63 latest 120>63: urgent was submitted ahead of it; runs makes room "
      "for a job of a higher class");
}

TEST_F(WaitHistoryTest, ANodeThatIsLostAndOneThatComes) {
  Pass(kMin);
  world_.Add("b", 8).Run("other", "b", 8, 4);
  ASSERT_EQ(Look(), Lines({"second start 300>240 latest 300>240: node b can be used"}));
  Pass(kMin);
  world_.snapshot.nodes[1].usable = false;
  world_.snapshot.nodes[1].unusable_reason = "drained by ann";
  EXPECT_EQ(Look(), Lines({"second start 240>300 latest 240>300: node b cannot be used: drained by "
                           "ann"}));
}

TEST_F(WaitHistoryTest, AJobAheadThatIsCancelledOrHeld) {
  world_.Wait(Timed("third", 8, 1));
  EXPECT_EQ(Look(), Lines());
  Pass(kMin);
  Pending("first").blocked = "held by ann: later";
  EXPECT_EQ(
      Look(),
      Lines({"second 2>1 start 300>120 latest 300>120: first ahead of it is held or over a limit",
             "third 3>2 start 360>180 latest 360>180: first ahead of it is held or over a limit",
             "first 1>0 start 120>- latest 120>-: held by ann: later"}));
  Pass(kMin);
  Cancel("second");
  EXPECT_EQ(Look(),
            Lines({"third 2>1 start 180>120 latest 180>120: second ahead of it ended without "
                   "a start"}));
  Pass(kMin);
  Pending("first").blocked.clear();
  const Lines lines = Look();
  EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
    return line.starts_with("first 0>1 ") && line.ends_with(": it is in line again");
  })) << lines.front();
}

TEST_F(WaitHistoryTest, SmallMovesAreNoChange) {
  Cancel("second");
  for (int i = 0; i < 5; ++i) {
    Pass(kMin);
    Running("runs").expected_end_us += kMin / 2;
    Running("runs").bound_end_us += kMin / 2;
    EXPECT_EQ(Look(), Lines()) << i;
  }
  // 2.5 minutes of 115 are less than 5 %; with the next ones they are more.
  Running("runs").expected_end_us += 4 * kMin;
  Running("runs").bound_end_us += 4 * kMin;
  Pass(kMin);
  const Lines lines = Look();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].substr(0, 19), "first start 120>126");
}

TEST_F(WaitHistoryTest, ChangesOfAJobAreAMinuteApartAndAreToldTogether) {
  Cancel("second");
  Pass(kMin);
  Urgent("u1");
  EXPECT_EQ(Look().size(), 1u);
  for (const char* id : {"u2", "u3"}) {
    Pass(kSecondUs);
    Urgent(id);
    EXPECT_EQ(Look(), Lines()) << id;
  }
  Pass(kMin);
  const Lines lines = Look();
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.back(),
            "first 2>4 start 180>300 latest 180>300: 2 jobs of its project were submitted ahead of "
            "it");
}

TEST_F(WaitHistoryTest, WhatWasNotStoredIsToldAgain) {
  Cancel("second");
  Pass(kMin);
  Urgent("urgent");
  const Lines first = Look(/*stored=*/false);
  EXPECT_EQ(first.size(), 1u);
  EXPECT_EQ(Look(), first);
}

TEST_F(WaitHistoryTest, StartsThatMoveWithTheClockAreNoChange) {
  Running("runs").expected_end_us = Running("runs").bound_end_us = 0;
  world_.snapshot.pending.clear();
  EXPECT_EQ(Look(), Lines());
  world_.Wait(Timed("first", 8, 3));
  EXPECT_EQ(Look(), Lines());
  for (int i = 0; i < 300; ++i) {
    Pass(kMin);
    EXPECT_EQ(Look(), Lines()) << i;
  }
}

TEST_F(WaitHistoryTest, AnOverdueJobIsSaidToTakeLonger) {
  Pass(2 * kHour + 6 * kMin);
  const Lines lines = Look();
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("runs takes 6 min longer than expected"), std::string::npos) << lines[0];
}

TEST_F(WaitHistoryTest, LimitsOfItsOwnProjectAreNamed) {
  Pass(kMin);
  world_.snapshot.projects.push_back({"", 1, 0, 16, 0});
  Running("runs").expected_end_us += kHour;
  Running("runs").bound_end_us += kHour;
  const Lines lines = Look();
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("the limits of its project were changed"), std::string::npos) << lines[0];
}

TEST_F(WaitHistoryTest, ALongLineIsToldAHundredChangesAtATimeAndFarPlacesByFivePercent) {
  for (int i = 0; i < 500; ++i) world_.Wait(Timed(fmt::format("w{}", i), 8, 0)).expected_us = 0;
  Look();
  Pass(kMin);
  Urgent("u1");
  const Lines lines = Look();
  EXPECT_LE(lines.size(), WaitHistory::kMostAtOnce);
  EXPECT_GE(lines.size(), 20u);
  for (const std::string& line : lines) EXPECT_EQ(line.find("w300 "), std::string::npos) << line;
}

}  // namespace
}  // namespace sft::server::sched
