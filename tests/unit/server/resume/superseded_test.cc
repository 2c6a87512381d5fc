#include <gtest/gtest.h>

#include "server/resume/resume.h"

namespace sft::server {
namespace {

CheckpointRecord At(int64_t step, const std::string& uid = "attempt-2", bool committed = true) {
  CheckpointRecord checkpoint;
  checkpoint.step = step;
  checkpoint.attempt_uid = uid;
  checkpoint.committed_us = committed ? 1 : 0;
  return checkpoint;
}

CheckpointRecord Best(int64_t step) {
  CheckpointRecord checkpoint = At(step);
  checkpoint.best = true;
  return checkpoint;
}

// The checkpoints to delete, among some given newest first.
std::vector<std::string> Gone(const std::vector<CheckpointRecord>& all, int limit,
                              const std::vector<int64_t>& in_use = {}) {
  std::vector<std::string> gone;
  for (const auto& each : SupersededCheckpoints(all, limit, "attempt-2", in_use)) {
    gone.push_back(std::to_string(each.step) + " " + each.attempt_uid);
  }
  return gone;
}

// The checkpoints to delete when attempt 2 continues from `resume_step` of attempt 1 and is the
// current one.
std::vector<std::string> GoneOfBranch(const std::vector<CheckpointRecord>& all, int limit,
                                      int64_t resume_step = 0) {
  std::vector<BranchPart> branch = {{"attempt-2", 1'000'000}};
  if (resume_step > 0) branch.push_back({"attempt-1", resume_step});
  return Gone(BranchFirst(all, branch), limit);
}

using Lines = std::vector<std::string>;

TEST(SupersededTest, TheNewestStay) {
  EXPECT_EQ(Gone({At(40), At(30), At(20), At(10)}, 2), (Lines{"20 attempt-2", "10 attempt-2"}));
  EXPECT_EQ(Gone({At(40), At(30)}, 2), Lines());
}

TEST(SupersededTest, NoLimitKeepsAll) { EXPECT_EQ(Gone({At(40), At(30), At(20)}, 0), Lines()); }

TEST(SupersededTest, TheNewestBestStaysBesideThem) {
  EXPECT_EQ(Gone({At(40), At(30), Best(20), Best(10)}, 1), (Lines{"30 attempt-2", "10 attempt-2"}));
  EXPECT_EQ(Gone({Best(40), At(30), Best(20)}, 1), (Lines{"30 attempt-2", "20 attempt-2"}));
}

TEST(SupersededTest, TheCheckpointALiveAttemptBeganFromStays) {
  EXPECT_EQ(Gone({At(40), At(30), At(20)}, 1, {20}), (Lines{"30 attempt-2"}));
}

TEST(SupersededTest, AnUncommittedOneStaysOnlyWhileItCanBeCommitted) {
  EXPECT_EQ(Gone({At(50, "attempt-2", false), At(40)}, 1), Lines());
  EXPECT_EQ(Gone({At(50, "attempt-1", false), At(40)}, 1), (Lines{"50 attempt-1"}));
  EXPECT_EQ(Gone({At(40), At(30, "attempt-2", false)}, 3), (Lines{"30 attempt-2"}));
}

TEST(SupersededTest, TheNewerAttemptsCheckpointOfAStepStays) {
  EXPECT_EQ(Gone({At(40), At(40, "attempt-1"), At(30)}, 2), (Lines{"40 attempt-1"}));
}

TEST(SupersededTest, UnreachableOnesDoNotDisplaceThoseOfARestartedAttempt) {
  const CheckpointRecord a = At(600, "attempt-1"), b = At(500, "attempt-1"),
                         c = At(400, "attempt-1");
  EXPECT_EQ(GoneOfBranch({a, b, c, At(100)}, 3), (Lines{"400 attempt-1"}));
  EXPECT_EQ(GoneOfBranch({a, b, At(200), At(100)}, 3), (Lines{"500 attempt-1"}));
  EXPECT_EQ(GoneOfBranch({a, At(300), At(200), At(100)}, 3), (Lines{"600 attempt-1"}));
  EXPECT_EQ(GoneOfBranch({At(400), At(300), At(200), At(100)}, 3), (Lines{"100 attempt-2"}));
}

TEST(SupersededTest, ThoseTheNewestAttemptContinuedFromCountInStepOrder) {
  EXPECT_EQ(
      GoneOfBranch({At(600, "attempt-1"), At(500, "attempt-1"), At(450), At(400, "attempt-1")}, 3,
                   400),
      (Lines{"500 attempt-1"}));
  EXPECT_EQ(GoneOfBranch({At(600, "attempt-1"), At(500), At(450), At(400, "attempt-1")}, 2, 400),
            (Lines{"400 attempt-1", "600 attempt-1"}));
}

TEST(SupersededTest, TheCheckpointOnTheCurrentBranchStays) {
  EXPECT_EQ(GoneOfBranch({At(200, "attempt-3"), At(200)}, 0), (Lines{"200 attempt-3"}));
}

TEST(SupersededTest, TheBestOutOfReachStaysUntilTheBranchHasOne) {
  CheckpointRecord best = At(600, "attempt-1");
  best.best = true;
  EXPECT_EQ(GoneOfBranch({best, At(200), At(100)}, 2), Lines());
  EXPECT_EQ(GoneOfBranch({best, At(300), Best(200), At(100)}, 1),
            (Lines{"100 attempt-2", "600 attempt-1"}));
}

TEST(SupersededTest, ALiveAttemptsUncommittedOneStaysBelowThoseOfOthers) {
  EXPECT_EQ(GoneOfBranch({At(600, "attempt-1"), At(100, "attempt-2", false)}, 3), Lines());
}

TEST(SupersededTest, ADamagedOneDoesNotDisplaceAGoodOne) {
  CheckpointRecord damaged = At(40);
  damaged.problem = "cut short";
  EXPECT_EQ(Gone({damaged, At(30), At(20)}, 1), (Lines{"40 attempt-2", "20 attempt-2"}));
}

}  // namespace
}  // namespace sft::server
