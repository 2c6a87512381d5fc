#include "tests/sim/simulation.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace sft::sim {
namespace {

class SimulationTest : public testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
};

std::string Describe(const SimulationResult& result) {
  std::string text = result.trace;
  for (const Violation& each : result.violations) {
    text += std::string(ToString(each.invariant)) + ": " + each.what + "\n";
  }
  return text;
}

TEST_F(SimulationTest, TheInvariantsHoldForTheFirstSeeds) {
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    const SimulationResult result = Simulate({.seed = seed});
    ASSERT_TRUE(result.violations.empty())
        << Describe(result) << "again: sft-sim --seed " << seed << " --trace";
    EXPECT_GE(result.events, 1000);
    EXPECT_GT(result.jobs, 0);
  }
}

// A stop that overtook what it stops; a shared folder that a bystander cleaned.
TEST_F(SimulationTest, TheInvariantsHoldForSeedsThatFailedOnce) {
  for (const uint64_t seed : {4578, 4024}) {
    const SimulationResult result = Simulate({.seed = seed, .fleet_changes = false});
    EXPECT_TRUE(result.violations.empty()) << "seed " << seed << "\n" << Describe(result);
  }
}

TEST_F(SimulationTest, OneSeedIsOneHistory) {
  const SimulationResult one = Simulate({.seed = 5}), two = Simulate({.seed = 5});
  EXPECT_EQ(one.events, two.events);
  EXPECT_EQ(one.trace, two.trace);
  EXPECT_NE(one.trace, Simulate({.seed = 6}).trace);
}

struct Bug {
  const char* name;
  Planted planted;
  Invariant breaks;

  friend void PrintTo(const Bug& b, std::ostream* out) { *out << b.name; }
};

class PlantedBugTest : public SimulationTest, public testing::WithParamInterface<Bug> {};

TEST_P(PlantedBugTest, IsCaught) {
  const Bug& bug = GetParam();
  bool caught = false;
  for (uint64_t seed = 1; seed <= 20 && !caught; ++seed) {
    const SimulationResult result = Simulate({.seed = seed, .planted = bug.planted});
    caught = std::any_of(result.violations.begin(), result.violations.end(),
                         [&](const Violation& each) { return each.invariant == bug.breaks; });
  }
  EXPECT_TRUE(caught) << "no seed of 20 showed it";
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedBugTest,
    testing::Values(
        Bug{"SlotsFreedEarly", Planted::kSlotsFreedEarly, Invariant::kOneAttemptPerGpu},
        Bug{"AttemptLeftBehind", Planted::kAttemptLeftBehind, Invariant::kOneLiveAttemptPerJob},
        Bug{"MemberLost", Planted::kMemberLost, Invariant::kGangIsWhole},
        Bug{"DiskLies", Planted::kDiskLies, Invariant::kSubmitsSurvive},
        Bug{"FinalStateChanged", Planted::kFinalStateChanged, Invariant::kTerminalIsFinal},
        Bug{"ReasonDropped", Planted::kReasonDropped, Invariant::kJobsMoveOrSayWhy},
        Bug{"LogBytesSwapped", Planted::kLogBytesSwapped, Invariant::kLogsAreWhole},
        Bug{"AttemptsForgotten", Planted::kAttemptsForgotten, Invariant::kBudgetsShrink},
        Bug{"AttemptKept", Planted::kAttemptKept, Invariant::kNothingIsHeldInTheEnd}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sft::sim
