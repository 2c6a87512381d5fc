#include "server/resume/resume_policy.h"

#include <gtest/gtest.h>

namespace sft::server::sched {
namespace {

CheckpointRecord At(int64_t step, std::vector<CheckpointPart> parts) {
  CheckpointRecord checkpoint;
  checkpoint.attempt_uid = "attempt-1";
  checkpoint.attempt = 1;
  checkpoint.step = step;
  checkpoint.committed_us = 1;
  checkpoint.parts = std::move(parts);
  return checkpoint;
}

CheckpointPart On(const std::string& node, CheckpointPlace place, int rank = 0) {
  return {rank, node, place, "/x", 1};
}

constexpr auto kServer = CheckpointPlace::kServer;
constexpr auto kNode = CheckpointPlace::kNode;
constexpr auto kShared = CheckpointPlace::kShared;

TEST(ResumePolicyTest, TheNewestOnTheServerIsForAnyNode) {
  const ResumeChoice choice = ChooseResume({At(40, {On("a", kServer)}), At(20, {On("a", kServer)})},
                                           {{"a", {true}}, {"b", {false}}});
  EXPECT_EQ(choice.checkpoint->step, 40);
  EXPECT_TRUE(choice.only_nodes.empty());
  EXPECT_FALSE(choice.needs_shared);
  EXPECT_TRUE(choice.notes.empty());
}

TEST(ResumePolicyTest, OneInTheSharedFolderIsForNodesThatSeeIt) {
  EXPECT_TRUE(ChooseResume({At(40, {On("a", kShared)})}, {}).needs_shared);
}

TEST(ResumePolicyTest, OneOnANodeTiesTheJobToItAlsoWhileItIsSilent) {
  const ResumeChoice choice =
      ChooseResume({At(40, {On("b", kNode, 0), On("a", kNode, 1)})}, {{"a", {false}}, {"b", {}}});
  EXPECT_EQ(choice.only_nodes, (std::vector<std::string>{"b", "a"})) << "in the order of ranks";
}

TEST(ResumePolicyTest, AnEarlierOneIsTakenWhereTheNewestIsOnANodeThatIsGivenUp) {
  const ResumeChoice choice = ChooseResume({At(40, {On("a", kNode)}), At(20, {On("b", kNode)})},
                                           {{"a", {true}}, {"b", {false}}});
  EXPECT_EQ(choice.checkpoint->step, 20);
  ASSERT_EQ(choice.notes.size(), 1u);
  EXPECT_EQ(choice.notes[0],
            "the checkpoint of step 40 of attempt 1 is out of reach: it lies on a alone");
}

TEST(ResumePolicyTest, OneThatFailedBeforeIsPassedOver) {
  CheckpointRecord damaged = At(40, {On("a", kServer)});
  damaged.problem = "rank-0 is cut short";
  const ResumeChoice choice = ChooseResume({damaged, At(20, {On("a", kServer)})}, {});
  EXPECT_EQ(choice.checkpoint->step, 20);
  EXPECT_EQ(choice.notes.size(), 1u);
}

TEST(ResumePolicyTest, WithNothingInReachItBeginsAtTheStartAndSaysWhy) {
  const ResumeChoice choice = ChooseResume({At(40, {On("gone", kNode)})}, {});
  EXPECT_FALSE(choice.checkpoint.has_value());
  EXPECT_EQ(choice.notes.size(), 1u);
}

}  // namespace
}  // namespace sft::server::sched
