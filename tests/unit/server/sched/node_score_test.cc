#include "server/sched/node_score.h"

#include <gtest/gtest.h>

namespace sft::server::sched {
namespace {

constexpr int64_t kMinute = 60'000'000;
constexpr int64_t kStart = int64_t{1'700'000'000} * 1'000'000;

NodeFault At(int64_t minute, const std::string& job, const std::string& code = "rank_killed") {
  return {"a", kStart + minute * kMinute, job, code};
}

NodeScore Score(const std::vector<NodeFault>& faults, int64_t minute) {
  return ScoreOf(faults, kStart + minute * kMinute, ScoreRules());
}

TEST(NodeScoreTest, ThreeJobsThatFailWithinAShortTimeLeaveANodeOut) {
  const std::vector<NodeFault> faults = {At(0, "j"), At(1, "k"), At(2, "l", "xid")};
  EXPECT_FALSE(Score({faults[0], faults[1]}, 2).left_out);
  const NodeScore score = Score(faults, 3);
  EXPECT_TRUE(score.left_out);
  EXPECT_NE(score.reason.find("2 x rank_killed, 1 x xid"), std::string::npos) << score.reason;
}

TEST(NodeScoreTest, ItComesBackWhenTheScoreHasDecayed) {
  const std::vector<NodeFault> faults = {At(0, "j"), At(0, "k"), At(0, "l")};
  EXPECT_TRUE(Score(faults, 47).left_out);
  EXPECT_FALSE(Score(faults, 48).left_out) << "3 * 2^(-48/30) < 1";
  EXPECT_NEAR(static_cast<double>(Score(faults, 1).back_us - kStart) / kMinute, 47.5, 0.1);
}

TEST(NodeScoreTest, AJobThatFailsEverywhereDoesNotTakeNodesWithIt) {
  std::vector<NodeFault> faults;
  for (int minute = 0; minute < 29; ++minute) faults.push_back(At(minute, "j"));
  EXPECT_FALSE(Score(faults, 29).left_out);
}

TEST(NodeScoreTest, FailuresFarApartDoNotAddUp) {
  EXPECT_FALSE(Score({At(0, "j"), At(60, "k"), At(120, "l"), At(180, "m")}, 180).left_out);
}

TEST(NodeScoreTest, AWallClockThatGoesBackMakesNothingWeighMore) {
  const NodeScore score = Score({At(0, "j"), At(0, "k")}, -600);
  EXPECT_LE(score.score, 2.0);
  EXPECT_FALSE(score.left_out);
}

NodeFault Early(int64_t second, const std::string& job) {
  NodeFault fault{"a", kStart + second * 1'000'000, job, "staging_failed"};
  fault.early = true;
  return fault;
}

std::string Resting(const std::vector<NodeFault>& faults, int64_t second) {
  return ScoreOf(faults, kStart + second * 1'000'000, ScoreRules()).resting;
}

TEST(NodeScoreTest, ThreeThatFailInARowBeforeTheyTrainLetANodeRest) {
  std::vector<NodeFault> faults = {Early(0, "j"), Early(1, "k")};
  EXPECT_EQ(Resting(faults, 1), "");
  faults.push_back(Early(2, "k"));
  EXPECT_NE(Resting(faults, 2).find("3 attempts in a row"), std::string::npos);
  EXPECT_NE(Resting(faults, 61), "");
  EXPECT_EQ(Resting(faults, 62), "") << "a minute";
  faults.push_back(Early(63, "j"));
  EXPECT_NE(Resting(faults, 182), "");
  EXPECT_EQ(Resting(faults, 183), "") << "two minutes";
  for (int i = 1; i < 40; ++i) faults.push_back(Early(63 + i, "j"));
  EXPECT_EQ(Resting(faults, 102 + 900), "") << "no more than a quarter of an hour";
  EXPECT_EQ(Resting(faults, -3600), "") << "the wall clock went back";
}

TEST(NodeScoreTest, OneJobAloneOrFailuresFarApartOrAfterTrainingLetNoNodeRest) {
  EXPECT_EQ(Resting({Early(0, "j"), Early(1, "j"), Early(2, "j"), Early(3, "j")}, 3), "");
  EXPECT_EQ(Resting({Early(0, "j"), Early(1, "k"), Early(700, "l")}, 700), "");
  NodeFault trained = Early(1, "k");
  trained.early = false;
  EXPECT_EQ(Resting({Early(0, "j"), trained, Early(2, "l"), Early(3, "m")}, 3), "");
}

TEST(NodeScoreTest, ANodeWithoutFailuresIsSound) {
  EXPECT_FALSE(Score({}, 0).left_out);
  EXPECT_EQ(Score({}, 0).reason, "");
}

}  // namespace
}  // namespace sft::server::sched
