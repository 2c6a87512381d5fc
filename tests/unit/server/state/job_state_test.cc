#include "server/state/job_state.h"

#include <gtest/gtest.h>

#include <set>

namespace sft::server {
namespace {

constexpr JobState kJobStates[] = {JobState::kPending,    JobState::kPreparing, JobState::kRunning,
                                   JobState::kCancelling, JobState::kSucceeded, JobState::kFailed,
                                   JobState::kCancelled};

TEST(JobStateTest, ExactlyTheEdgesOfTheTableAreLegal) {
  using J = JobState;
  const std::set<std::pair<J, J>> legal = {
      {J::kPending, J::kPreparing},  {J::kPending, J::kCancelled}, {J::kPending, J::kFailed},
      {J::kPreparing, J::kRunning},  {J::kPreparing, J::kFailed},  {J::kPreparing, J::kCancelling},
      {J::kPreparing, J::kPending},  {J::kRunning, J::kSucceeded}, {J::kRunning, J::kFailed},
      {J::kRunning, J::kCancelling}, {J::kRunning, J::kPending},   {J::kCancelling, J::kCancelled}};
  for (const J from : kJobStates) {
    for (const J to : kJobStates) {
      EXPECT_EQ(IsLegal(from, to), legal.contains({from, to}))
          << ToString(from) << " " << ToString(to);
    }
  }
}

TEST(JobStateTest, NothingLeavesATerminalState) {
  for (const auto& edge : JobEdges()) EXPECT_FALSE(IsTerminal(edge.from)) << ToString(edge.from);
  for (const auto& edge : AttemptEdges())
    EXPECT_FALSE(IsTerminal(edge.from)) << ToString(edge.from);
}

TEST(JobStateTest, EveryStateIsReachedAndEveryLiveOneIsLeft) {
  std::set<JobState> reached = {JobState::kPending}, left;
  for (const auto& edge : JobEdges()) {
    reached.insert(edge.to);
    left.insert(edge.from);
  }
  for (const JobState state : kJobStates) {
    EXPECT_TRUE(reached.contains(state)) << ToString(state);
    EXPECT_NE(left.contains(state), IsTerminal(state)) << ToString(state);
  }
}

TEST(JobStateTest, AnAttemptFailsOnlyAfterStoppingAndMaySucceedIfTheStopWasLate) {
  for (const auto& edge : AttemptEdges()) {
    const bool stopping = edge.from == AttemptState::kStopping;
    const bool ends_badly = edge.to == AttemptState::kFailed || edge.to == AttemptState::kCancelled;
    EXPECT_TRUE(!ends_badly || stopping) << ToString(edge.to);
    EXPECT_TRUE(!stopping || IsTerminal(edge.to)) << ToString(edge.to);
    const bool succeeds = edge.to == AttemptState::kSucceeded;
    EXPECT_TRUE(!succeeds || stopping || edge.from == AttemptState::kRunning);
  }
  EXPECT_EQ(AttemptEdges().size(), 9u);
}

}  // namespace
}  // namespace sft::server
