#include "server/state/restart.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

using Domain = Verdict::Domain;

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kLong = 3600 * kSecond;

FailedAttempt Failed(Domain domain, int64_t step = 0, int64_t saved = 0, int64_t lived = kSecond) {
  FailedAttempt failed;
  failed.verdict.domain = domain;
  failed.verdict.code = "some_code";
  failed.verdict.message = "something broke";
  failed.furthest_step = step;
  failed.saved_step = saved;
  failed.lived_us = lived;
  return failed;
}

struct Case {
  const char* name;
  Domain domain;
  RestartState before;
  int64_t step, saved;
  bool restart;
  const char* code;
  int retries_left;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class RestartTableTest : public testing::TestWithParam<Case> {};

TEST_P(RestartTableTest, DecidesByDomainBudgetAndProgress) {
  const Case& c = GetParam();
  const RestartDecision decision =
      DecideRestart(Failed(c.domain, c.step, c.saved), c.before, RestartRules(), RestartPace());
  EXPECT_EQ(decision.restart, c.restart) << decision.verdict.action;
  EXPECT_EQ(decision.verdict.code, c.code);
  EXPECT_EQ(decision.verdict.retries_left, c.retries_left);
  EXPECT_FALSE(decision.verdict.action.empty());
}

TEST(RestartTest, ADataSetThatTheServerHasLostIsNotWaitedFor) {
  FailedAttempt failed = Failed(Domain::kInfrastructure);
  failed.verdict.code = "dataset_lost";
  const RestartDecision decision =
      DecideRestart(failed, RestartState(), RestartRules(), RestartPace());
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.verdict.code, "dataset_lost");
  EXPECT_NE(decision.verdict.action.find("uploaded again"), std::string::npos);
}

// restarts, unknown_restarts, idle, quick, furthest_step, saved_step
INSTANTIATE_TEST_SUITE_P(
    Cases, RestartTableTest,
    testing::Values(
        Case{"FirstFaultOfTheMachines", Domain::kInfrastructure, {}, 0, 0, true, "some_code", 9},
        Case{"UserFault", Domain::kUser, {}, 50, 40, false, "some_code", -1},
        Case{"UnknownHasItsOwnBudget",
             Domain::kUnknown,
             {9, 0, 0, 0, 5, 0},
             6,
             0,
             true,
             "some_code",
             2},
        Case{"ADomainOfNobodyIsUnknown", Domain::kNone, {}, 0, 0, true, "some_code", 2},
        Case{
            "LastRestart", Domain::kInfrastructure, {9, 0, 0, 0, 5, 0}, 6, 0, true, "some_code", 0},
        Case{"BudgetUsedUp",
             Domain::kInfrastructure,
             {10, 0, 0, 0, 5, 0},
             6,
             0,
             false,
             "some_code",
             0},
        Case{"UnknownBudgetUsedUp",
             Domain::kUnknown,
             {0, 3, 0, 0, 5, 0},
             6,
             0,
             false,
             "some_code",
             0},
        Case{"NoProgressThreeTimes",
             Domain::kInfrastructure,
             {3, 0, 3, 3, 5, 0},
             5,
             0,
             false,
             "no_progress",
             7},
        Case{"TwiceIsNotEnough",
             Domain::kInfrastructure,
             {2, 0, 2, 2, 5, 0},
             5,
             0,
             true,
             "some_code",
             7},
        Case{"ANewStepIsProgress",
             Domain::kInfrastructure,
             {3, 0, 3, 3, 5, 0},
             6,
             0,
             true,
             "some_code",
             6},
        Case{"ANewCheckpointIsProgress",
             Domain::kInfrastructure,
             {3, 0, 3, 3, 5, 0},
             5,
             4,
             true,
             "some_code",
             6}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(RestartTest, TheEndForNoProgressSaysWhatWasWrongLast) {
  const RestartDecision decision = DecideRestart(Failed(Domain::kInfrastructure, 5),
                                                 {3, 0, 3, 3, 5, 0}, RestartRules(), RestartPace());
  EXPECT_EQ(decision.verdict.message,
            "3 restarts in a row made no progress beyond step 5; last: some_code: something broke");
  EXPECT_EQ(decision.verdict.domain, Domain::kInfrastructure);
}

TEST(RestartTest, AnAttemptThatBeganAnewIsMeasuredByWhereItBegan) {
  RestartState state{3, 0, 3, 3, 650, 600};
  FailedAttempt failed = Failed(Domain::kInfrastructure, 350, 300);
  RestartDecision decision = DecideRestart(failed, state, RestartRules(), RestartPace());
  EXPECT_TRUE(decision.restart) << "the checkpoints of before were out of reach";
  EXPECT_EQ(decision.state.furthest_step, 350);
  EXPECT_EQ(decision.state.saved_step, 300);

  state = decision.state;
  state.idle = kMaxIdleRestarts;
  failed.resume_step = 300;
  failed.saved_step = 0;
  decision = DecideRestart(failed, state, RestartRules(), RestartPace());
  EXPECT_EQ(decision.verdict.code, "no_progress") << "as far as the one before it";
  failed.furthest_step = 380;
  EXPECT_TRUE(DecideRestart(failed, state, RestartRules(), RestartPace()).restart);
}

TEST(RestartTest, TheStartingCheckpointIsNotProgress) {
  const RestartState state{3, 0, 3, 3, 50, 0};
  FailedAttempt failed = Failed(Domain::kInfrastructure);
  failed.resume_step = 600;
  const RestartDecision decision = DecideRestart(failed, state, RestartRules(), RestartPace());
  EXPECT_EQ(decision.verdict.code, "no_progress");
  EXPECT_EQ(decision.state.saved_step, 600);
}

TEST(RestartTest, TheWaitDoublesUpToItsEndWhileAttemptsDieSoon) {
  RestartState state;
  std::vector<int64_t> seconds;
  for (int i = 0; i < 9; ++i) {
    const RestartDecision decision =
        DecideRestart(Failed(Domain::kInfrastructure, i + 1), state, RestartRules(), RestartPace());
    ASSERT_TRUE(decision.restart);
    seconds.push_back(decision.delay_us / kSecond);
    state = decision.state;
  }
  EXPECT_EQ(seconds, (std::vector<int64_t>{5, 10, 20, 40, 80, 160, 300, 300, 300}));
  const RestartDecision later = DecideRestart(Failed(Domain::kInfrastructure, 100, 0, kLong), state,
                                              RestartRules(), RestartPace());
  EXPECT_EQ(later.delay_us, 5 * kSecond) << "one that lived long begins anew";
}

TEST(RestartTest, ZeroAllowedRestartsEndTheJobAtOnce) {
  RestartRules rules;
  rules.max_restarts = 0;
  const RestartDecision decision =
      DecideRestart(Failed(Domain::kInfrastructure, 1), {}, rules, RestartPace());
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.state.restarts, 0);
}

TEST(RestartTest, BudgetsOnlyShrink) {
  RestartState state;
  for (int i = 0; i < 30; ++i) {
    const Domain domain = i % 3 == 0 ? Domain::kUnknown : Domain::kInfrastructure;
    const RestartState next = DecideRestart(Failed(domain, i, i / 2, i % 2 == 0 ? kLong : kSecond),
                                            state, RestartRules(), RestartPace())
                                  .state;
    EXPECT_GE(next.restarts, state.restarts);
    EXPECT_GE(next.unknown_restarts, state.unknown_restarts);
    EXPECT_GE(next.furthest_step, state.furthest_step);
    state = next;
  }
  EXPECT_EQ(state.restarts, 10);
  EXPECT_EQ(state.unknown_restarts, 3);
}

TEST(RestartTest, RulesComeFromTheResolvedJob) {
  spec::JobSpec spec;
  spec.compute.max_restarts = 2;
  spec.compute.max_unknown_restarts = 1;
  spec.compute.on_unreachable = spec::OnUnreachable::kWait;
  spec.compute.unreachable_after = "2m";
  const RestartRules rules = RestartRulesOf(spec);
  EXPECT_EQ(rules.max_restarts, 2);
  EXPECT_EQ(rules.max_unknown_restarts, 1);
  EXPECT_FALSE(rules.replace_unreachable);
  EXPECT_EQ(rules.unreachable_after_us, 120 * kSecond);
  const RestartRules defaults = RestartRulesOf(spec::JobSpec());
  EXPECT_EQ(defaults.max_restarts, RestartRules().max_restarts);
  EXPECT_EQ(defaults.max_unknown_restarts, RestartRules().max_unknown_restarts);
  EXPECT_TRUE(defaults.replace_unreachable);
  EXPECT_EQ(defaults.unreachable_after_us, RestartRules().unreachable_after_us);
}

TEST(RestartTest, AJobWhoseSettingsAreLostEndsAndSaysWhatFailedLast) {
  FailedAttempt failed;
  failed.verdict = {Domain::kInfrastructure, "rank_killed", "signal 9"};
  failed.verdict.node = "node-3";
  failed.furthest_step = 7;
  const RestartDecision decision = DecideWithoutSettings(failed, {}, "unknown key lora.x");
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.state.furthest_step, 7);
  EXPECT_EQ(decision.verdict.code, kSettingsLost);
  EXPECT_EQ(decision.verdict.message,
            "the server cannot read the job's stored settings: unknown key lora.x");
  EXPECT_EQ(decision.verdict.node, "node-3");
  ASSERT_EQ(decision.verdict.evidence.size(), 1u);
  EXPECT_EQ(decision.verdict.evidence[0], "last: rank_killed: signal 9");
  failed.verdict.domain = Domain::kUser;
  EXPECT_EQ(DecideWithoutSettings(failed, {}, "").verdict.code, "rank_killed")
      << "what its owner has to change is told";
}

}  // namespace
}  // namespace sft::server
