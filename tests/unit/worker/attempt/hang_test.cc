#include "worker/attempt/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/attempt/straggler.h"

namespace sft::worker {
namespace {

using channel::Collective;
using channel::FlightPhase;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr MonoTime kStart = MonoTime(seconds(10'000));

// A rank in step 12 of 40 whose record changed last at `kStart`.
RankLook Rank(int rank, std::vector<std::pair<Collective, bool>> ops = {}, char state = 'S') {
  RankLook look{.rank = rank, .state = state};
  channel::FlightRecord flight;
  flight.rank = rank;
  flight.phase = FlightPhase::kTraining;
  flight.changed = kStart;
  flight.step = 12;
  flight.steps_done = 11;
  flight.total_steps = 40;
  for (const auto& [kind, finished] : ops) {
    const uint64_t number = flight.ops.size() + 1;
    flight.ops.push_back({number, "world", number, kind, 4096, kStart, finished});
  }
  if (!ops.empty() && !ops.back().second) flight.waiting = ops.size();
  look.flight = flight;
  return look;
}
const std::vector<std::pair<Collective, bool>> kWaits = {{Collective::kAllGather, true},
                                                         {Collective::kAllReduce, false}};
const std::vector<std::pair<Collective, bool>> kComputes = {{Collective::kAllGather, true}};

GangView Gang(int world, bool gpu = false) {
  return {"node-a", world, gpu, {.step = seconds(60), .other = minutes(30)}};
}

std::optional<v1::Verdict> After(Nanos quiet, const std::vector<RankLook>& ranks,
                                 const GangView& gang) {
  return JudgeHang(ranks, gang, kStart + quiet);
}

TEST(HangTest, RanksThatGetOnAreLeftAlone) {
  EXPECT_FALSE(After(seconds(59), {Rank(0, kWaits), Rank(1, kComputes)}, Gang(2)));
  RankLook moving = Rank(1, kComputes);
  moving.flight->changed = kStart + seconds(30);
  EXPECT_FALSE(After(seconds(80), {Rank(0, kWaits), moving}, Gang(2)));
  EXPECT_FALSE(After(minutes(600), {RankLook{.rank = 0, .state = 'S'}}, Gang(1)))
      << "of a rank without a record nothing is known";
}

TEST(HangTest, TheRankThatDidNotEnterIsNamedAndWhoWaitsForIt) {
  const auto verdict =
      After(seconds(60), {Rank(0, kWaits), Rank(1, kComputes), Rank(2, kWaits)}, Gang(3));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->code(), "rank_hang");
  EXPECT_EQ(verdict->domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(verdict->rank(), 1);
  EXPECT_EQ(verdict->process(), "rank-1");
  EXPECT_EQ(verdict->message(),
            "rank 1 did not enter the collective of the others (last: all-gather #1 (4096 bytes, "
            "group world); its process sleeps); ranks 0, 2 wait in all-reduce #2 (4096 bytes, "
            "group world) for 60 s (no progress for 60 s)");
  EXPECT_THAT(verdict->advice(), HasSubstr("compute.hang_timeout (NCCL_TIMEOUT), now 60 s"));
  ASSERT_EQ(verdict->evidence_size(), 3);
  EXPECT_EQ(verdict->evidence(1),
            "rank 1: step 12 of 40, last finished all-gather #1 (4096 bytes, group world) for 60 "
            "s; its process sleeps");
}

TEST(HangTest, OnGpusItIsAnNcclTimeout) {
  std::vector<RankLook> ranks = {Rank(0, kWaits), Rank(1, kComputes)};
  ranks[1].place = "GPU 5";
  ranks[1].busy = true;
  const auto verdict = After(seconds(60), ranks, Gang(2, /*gpu=*/true));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->code(), "nccl_timeout");
  EXPECT_THAT(verdict->message(), HasSubstr("NCCL timeout: rank 1 did not enter"));
  EXPECT_THAT(verdict->message(), HasSubstr("its process uses a CPU"));
  EXPECT_THAT(verdict->evidence(1), HasSubstr("rank 1 on GPU 5: step 12"));
}

// Ranks of four stages: each pair of neighbours has a group for each direction.
TEST(HangTest, OfAPipelineTheStageThatTheOthersWaitForIsNamed) {
  const auto stage = [](int rank, const std::vector<std::pair<std::string, uint64_t>>& ops,
                        bool waits) {
    RankLook look = Rank(rank);
    for (const auto& [group, sequence] : ops) {
      const uint64_t number = look.flight->ops.size() + 1;
      look.flight->ops.push_back(
          {number, group, sequence, Collective::kMessage, 4096, kStart, true});
    }
    if (waits) {
      look.flight->ops.back().finished = false;
      look.flight->waiting = look.flight->ops.size();
    }
    return look;
  };
  // Stage 2 computes: stage 3 waits for its rows, stage 1 for its gradient, stage 0 for stage 1's,
  // of which it has asked for one more than stage 1 has sent.
  const auto verdict = After(seconds(60),
                             {stage(0, {{"0,1", 4}, {"1,0#2", 2}}, true),
                              stage(1, {{"0,1", 4}, {"1,0#2", 1}, {"1,2", 3}, {"2,1", 2}}, true),
                              stage(2, {{"1,2", 3}, {"2,3", 2}, {"3,2", 1}, {"2,1", 1}}, false),
                              stage(3, {{"3,2", 1}, {"2,3", 3}}, true)},
                             Gang(4));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank(), 2);
  EXPECT_THAT(verdict->message(), HasSubstr("rank 2 did not enter the collective of the others"));
  EXPECT_THAT(verdict->message(), HasSubstr("ranks 0, 1, 3 wait in message #3"));
}

TEST(HangTest, AStoppedProcessIsToBlameWhereverItStands) {
  for (const char state : {'T', 'D'}) {
    const auto verdict = After(seconds(60), {Rank(0, kWaits), Rank(1, kWaits, state)}, Gang(2));
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->rank(), 1);
    EXPECT_THAT(verdict->message(), HasSubstr(state == 'T' ? "rank 1 hangs: its process is stopped "
                                                             "(state T)"
                                                           : "hangs in the kernel (state D)"));
  }
}

TEST(HangTest, ARankThatNeverBeganIsToBlame) {
  RankLook missing{.rank = 1, .state = 'S'};
  std::vector<RankLook> ranks = {Rank(0, kWaits), missing};
  EXPECT_FALSE(After(seconds(60), ranks, Gang(2))) << "it may be loading";
  const auto verdict = After(minutes(30), ranks, Gang(2));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank(), 1);
  EXPECT_THAT(verdict->evidence(1), HasSubstr("no record of what it did"));
}

TEST(HangTest, WhatMayTakeLongGetsLonger) {
  for (const FlightPhase phase : {FlightPhase::kLoading, FlightPhase::kDelivering,
                                  FlightPhase::kValidating, FlightPhase::kCheckpointing}) {
    RankLook look = Rank(0, kComputes);
    look.flight->phase = phase;
    EXPECT_FALSE(After(minutes(29), {look}, Gang(1)));
    EXPECT_TRUE(After(minutes(30), {look}, Gang(1)));
  }
  RankLook first = Rank(0, kComputes);
  first.flight->steps_done = 0;
  EXPECT_FALSE(After(minutes(29), {first}, Gang(1))) << "the first step warms up";
}

TEST(HangTest, ALoneRankIsNamedWithWhatItDid) {
  const auto verdict = After(seconds(61), {Rank(0)}, Gang(1));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank(), 0);
  EXPECT_THAT(verdict->message(), HasSubstr("rank 0 makes no progress: step 12 of 40"));
}

TEST(HangTest, ANodeWhoseRanksAllWaitForOtherNodesSpeaksLater) {
  const std::vector<RankLook> ranks = {Rank(2, kWaits), Rank(3, kWaits)};
  EXPECT_FALSE(After(seconds(61), ranks, Gang(4)));
  const auto verdict = After(seconds(90), ranks, Gang(4, true));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank(), -1);
  EXPECT_THAT(verdict->message(), HasSubstr("NCCL timeout: ranks 2, 3 wait in all-reduce #2"));
  EXPECT_THAT(verdict->message(), HasSubstr("ranks of other nodes did not enter it"));
}

TEST(HangTest, ACollectiveThatAllEnteredBlamesNobody) {
  const auto verdict = After(seconds(60), {Rank(0, kWaits), Rank(1, kWaits)}, Gang(2, true));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank(), -1);
  EXPECT_THAT(verdict->message(), HasSubstr("all of them have entered"));
}

TEST(HangTest, AGroupThatARankIsNotInDoesNotWaitForIt) {
  // Ranks 0 and 1 are a group, 2 and 3 another; 3 hangs.
  std::vector<RankLook> ranks = {Rank(0, kWaits), Rank(1, kWaits), Rank(2, kWaits),
                                 Rank(3, kWaits)};
  for (RankLook& look : ranks) {
    const bool low = look.rank < 2;
    const bool late = look.rank == 3;
    look.flight->ops.push_back({3, low ? "0,1" : "2,3", 1, Collective::kAllReduce, 8, kStart, low});
    if (late) look.flight->ops.pop_back();
    look.flight->ops[1].finished = true;
    look.flight->waiting = low || late ? 0 : 3;
  }
  const auto verdict = After(seconds(60), ranks, Gang(4));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank(), 3) << verdict->message();
}

TEST(DesyncTest, TheMinorityIsNamed) {
  const std::vector<std::pair<Collective, bool>> odd = {{Collective::kAllGather, true},
                                                        {Collective::kBroadcast, false}};
  const auto verdict =
      After(seconds(60), {Rank(0, kWaits), Rank(1, kWaits), Rank(2, odd)}, Gang(3));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->code(), "desync");
  EXPECT_EQ(verdict->domain(), v1::Verdict::UNKNOWN);
  EXPECT_EQ(verdict->rank(), 2);
  EXPECT_EQ(verdict->message(),
            "the ranks parted ways: rank 2 called broadcast #2 (4096 bytes, group world), ranks "
            "0, 1 called all-reduce #2 (4096 bytes, group world)");
  EXPECT_EQ(verdict->evidence_size(), 3);
}

TEST(DesyncTest, OfTwoNeitherIsBlamed) {
  RankLook other = Rank(1, kWaits);
  other.flight->ops[1].bytes = 8192;
  const auto verdict = FindDesync({Rank(0, kWaits), other}, Gang(2));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank(), -1);
  EXPECT_THAT(verdict->message(), HasSubstr("rank 0 called all-reduce #2 (4096 bytes"));
  EXPECT_THAT(verdict->message(), HasSubstr("rank 1 called all-reduce #2 (8192 bytes"));
  EXPECT_FALSE(FindDesync({Rank(0, kWaits), Rank(1, kComputes)}, Gang(2)));
}

// Ranks that needed `own` milliseconds each for the steps from `first` to `last`.
std::vector<RankLook> Steps(int64_t first, int64_t last, const std::vector<int>& own) {
  std::vector<RankLook> ranks;
  for (size_t i = 0; i < own.size(); ++i) {
    RankLook look = Rank(static_cast<int>(i));
    for (int64_t step = first; step <= last; ++step) {
      look.flight->steps.push_back({step, milliseconds(own[i])});
    }
    ranks.push_back(look);
  }
  return ranks;
}

TEST(StragglerTest, ASlowRankIsToldOnceAnEpisode) {
  StragglerWatch watch({});
  EXPECT_TRUE(watch.Look(Steps(1, 9, {100, 100, 400, 110})).empty()) << "not long enough";
  const auto found = watch.Look(Steps(5, 12, {100, 100, 400, 110}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].step, 10);
  EXPECT_EQ(Describe(found[0], "node-a"),
            "rank 2 of node-a is slow: 400 ms of its own in step 10, the other ranks 100 ms");
  EXPECT_TRUE(watch.Look(Steps(13, 40, {100, 100, 400, 110})).empty()) << "told already";
  EXPECT_TRUE(watch.Look(Steps(41, 60, {100, 100, 100, 110})).empty());
  EXPECT_EQ(watch.Look(Steps(61, 80, {100, 100, 400, 110})).size(), 1u) << "a new episode";
}

// Stages of a pipeline have other layers, and take other times.
TEST(StragglerTest, RanksAreComparedWithThoseOfTheirStage) {
  StragglerWatch stages({.alike = 1});
  EXPECT_TRUE(stages.Look(Steps(1, 40, {100, 100, 400, 110})).empty());
  StragglerWatch pairs({.alike = 2});
  EXPECT_TRUE(pairs.Look(Steps(1, 40, {100, 100, 400, 410})).empty());
  const auto found = pairs.Look(Steps(41, 80, {100, 300, 400, 410}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
}

TEST(StragglerTest, NoiseIsNone) {
  StragglerWatch watch({});
  EXPECT_TRUE(watch.Look(Steps(1, 30, {100, 140})).empty()) << "below the factor";
  EXPECT_TRUE(watch.Look(Steps(31, 60, {2, 10})).empty()) << "a few milliseconds";
  EXPECT_TRUE(watch.Look(Steps(61, 90, {500})).empty()) << "nobody to compare with";
  for (int64_t step = 91; step < 200; step += 2) {
    EXPECT_TRUE(watch.Look(Steps(step, step, {100, 400})).empty());
    EXPECT_TRUE(watch.Look(Steps(step + 1, step + 1, {400, 100})).empty()) << "it takes turns";
  }
}

}  // namespace
}  // namespace sft::worker
