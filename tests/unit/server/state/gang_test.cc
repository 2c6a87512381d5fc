#include "server/state/gang.h"

#include <gtest/gtest.h>

#include <utility>

namespace sft::server {
namespace {

Member On(const std::string& node, MemberState state) {
  Member member;
  member.node = node;
  member.state = state;
  member.seen = state > MemberState::kMissing;
  return member;
}

Verdict Succeeded() {
  Verdict verdict;
  verdict.domain = Verdict::Domain::kNone;
  verdict.code = "succeeded";
  return verdict;
}

Verdict BadData() {
  Verdict verdict;
  verdict.domain = Verdict::Domain::kUser;
  verdict.code = "bad_data";
  verdict.message = "line 3";
  return verdict;
}

Gang GangOf(AttemptState state, std::vector<Member> members) {
  Gang gang;
  gang.state = state;
  gang.members = std::move(members);
  for (size_t i = 0; i < gang.members.size(); ++i) gang.members[i].node_rank = static_cast<int>(i);
  return gang;
}

std::vector<Member> Saved(std::vector<std::pair<int64_t, int64_t>> newest_and_settled) {
  std::vector<Member> members;
  for (const auto& [newest, settled] : newest_and_settled) {
    members.push_back(On("n", MemberState::kRunning));
    members.back().checkpoint_newest = newest;
    members.back().checkpoint_settled = settled;
  }
  return members;
}

TEST(GangTest, TheNewestCheckpointThatEveryNodeHasIsCollected) {
  EXPECT_EQ(CollectedStep(0, Saved({{30, 0}, {0, 0}})), 0);
  EXPECT_EQ(CollectedStep(0, Saved({{30, 0}, {20, 0}, {40, 0}})), 20);
}

TEST(GangTest, TheNextIsCollectedOnceThePreviousIsDelivered) {
  EXPECT_EQ(CollectedStep(20, Saved({{60, 20}, {50, 10}})), 20);
  EXPECT_EQ(CollectedStep(20, Saved({{60, 20}, {50, 20}})), 50);
  EXPECT_EQ(CollectedStep(20, Saved({{60, 20}, {20, 20}})), 20);
}

TEST(GangTest, AGangOnOneNodeNeedsNoAgreement) { EXPECT_EQ(CollectedStep(0, Saved({{30, 0}})), 0); }

// Two nodes whose uploads take 4 and 7 saves: on their own they would skip different steps.
TEST(GangTest, NodesThatDeliverAtTheirOwnPaceAgreeOnSteps) {
  std::vector<Member> members = Saved({{0, 0}, {0, 0}});
  const int64_t takes[] = {4, 7};
  int64_t busy_until[] = {0, 0}, delivering[] = {0, 0}, collecting = 0, agreed = 0;
  for (int64_t step = 1; step <= 100; ++step) {
    for (int k = 0; k < 2; ++k) {
      Member& member = members[static_cast<size_t>(k)];
      member.checkpoint_newest = step;
      if (delivering[k] > 0 && step >= busy_until[k]) {
        member.checkpoint_settled = std::exchange(delivering[k], 0);
      }
    }
    const int64_t before = collecting;
    collecting = CollectedStep(collecting, members);
    agreed += collecting != before && before > 0;
    for (int k = 0; k < 2; ++k) {
      if (delivering[k] > 0 || members[static_cast<size_t>(k)].checkpoint_settled >= collecting) {
        continue;
      }
      delivering[k] = collecting;
      busy_until[k] = step + takes[k];
    }
  }
  EXPECT_EQ(agreed, 14) << "as often as the slower one can";
}

TEST(GangTest, WaitsUntilANodePrepares) {
  EXPECT_TRUE(DecideGang(GangOf(AttemptState::kPlaced,
                                {On("a", MemberState::kReady), On("b", MemberState::kNone)}))
                  .empty());
  EXPECT_EQ(DecideGang(GangOf(AttemptState::kPlaced,
                              {On("a", MemberState::kPreparing), On("b", MemberState::kReady)}))
                .next,
            AttemptState::kPreparing);
}

TEST(GangTest, RunsOnlyWhenEveryNodeRuns) {
  EXPECT_TRUE(DecideGang(GangOf(AttemptState::kPreparing,
                                {On("a", MemberState::kRunning), On("b", MemberState::kPreparing)}))
                  .empty());
  EXPECT_EQ(DecideGang(GangOf(AttemptState::kPreparing,
                              {On("a", MemberState::kRunning), On("b", MemberState::kFinishing)}))
                .next,
            AttemptState::kRunning);
}

TEST(GangTest, SucceedsOnlyWhenEveryNodeIsDone) {
  Gang gang = GangOf(AttemptState::kRunning,
                     {On("a", MemberState::kDone), On("b", MemberState::kFinishing)});
  gang.members[0].verdict = gang.members[1].verdict = Succeeded();
  EXPECT_TRUE(DecideGang(gang).empty());
  gang.members[1].state = MemberState::kDone;
  EXPECT_EQ(DecideGang(gang).next, AttemptState::kSucceeded);
  EXPECT_TRUE(DecideGang(gang).verdict->succeeded());
}

TEST(GangTest, TheFirstFailingNodeStopsTheGangAndIsBlamed) {
  Gang gang = GangOf(AttemptState::kRunning,
                     {On("a", MemberState::kRunning), On("b", MemberState::kFinishing)});
  gang.members[1].verdict = BadData();
  const GangStep step = DecideGang(gang);
  EXPECT_EQ(step.next, AttemptState::kStopping);
  EXPECT_EQ(step.verdict->code, "bad_data");
  EXPECT_EQ(step.verdict->node, "b");
}

TEST(GangTest, ANodeThatStopsEndsTheGangBeforeItsVerdictIsKnown) {
  Gang gang = GangOf(AttemptState::kRunning,
                     {On("a", MemberState::kRunning), On("b", MemberState::kStopping)});
  gang.members[1].reason = "rank 1 failed";
  const GangStep step = DecideGang(gang);
  EXPECT_EQ(step.next, AttemptState::kStopping);
  EXPECT_FALSE(step.verdict.has_value());
  EXPECT_NE(step.reason.find("rank 1 failed"), std::string::npos);
}

TEST(GangTest, AnAttemptFailsOnlyWhenEveryNodeHasEndedIt) {
  Gang gang = GangOf(AttemptState::kStopping,
                     {On("a", MemberState::kStopping), On("b", MemberState::kDone)});
  gang.verdict = BadData();
  EXPECT_TRUE(DecideGang(gang).empty());
  gang.members[0].state = MemberState::kDone;
  EXPECT_EQ(DecideGang(gang).next, AttemptState::kFailed);
}

TEST(GangTest, MissingAfterItWasReportedIsARestartOfTheNode) {
  Gang gang = GangOf(AttemptState::kRunning,
                     {On("a", MemberState::kRunning), On("b", MemberState::kRunning)});
  gang.members[1].state = MemberState::kMissing;
  const GangStep step = DecideGang(gang);
  EXPECT_EQ(step.next, AttemptState::kStopping);
  EXPECT_EQ(step.verdict->code, "node_restarted");
  EXPECT_EQ(step.verdict->domain, Verdict::Domain::kInfrastructure);
}

TEST(GangTest, MissingBeforeItWasReportedOnlyAsksForTheSpec) {
  Member fresh = On("a", MemberState::kMissing);
  fresh.seen = false;
  EXPECT_TRUE(DecideGang(GangOf(AttemptState::kPlaced, {fresh})).empty());
}

TEST(GangTest, CancelStopsAndEndsAsCancelledWhateverTheNodesSay) {
  Gang gang = GangOf(AttemptState::kRunning, {On("a", MemberState::kRunning)});
  gang.cancel_requested = true;
  EXPECT_EQ(DecideGang(gang).next, AttemptState::kStopping);
  gang.state = AttemptState::kStopping;
  EXPECT_TRUE(DecideGang(gang).empty());
  gang.members[0].state = MemberState::kDone;
  gang.members[0].verdict = BadData();
  EXPECT_EQ(DecideGang(gang).next, AttemptState::kCancelled);
  EXPECT_EQ(DecideGang(gang).verdict->code, "cancelled");
}

TEST(GangTest, AStoppedNodeThatNeverHadItCountsAsGone) {
  Member fresh = On("a", MemberState::kMissing);
  fresh.seen = false;
  Gang gang = GangOf(AttemptState::kStopping, {fresh});
  gang.cancel_requested = true;
  EXPECT_EQ(DecideGang(gang).next, AttemptState::kCancelled);
  gang.members[0].state = MemberState::kNone;
  EXPECT_TRUE(DecideGang(gang).empty());
}

TEST(GangTest, AVerdictThatComesWhileStoppingIsTaken) {
  Gang gang = GangOf(AttemptState::kStopping,
                     {On("a", MemberState::kFinishing), On("b", MemberState::kStopping)});
  gang.members[0].verdict = BadData();
  const GangStep step = DecideGang(gang);
  EXPECT_FALSE(step.next.has_value());
  EXPECT_EQ(step.verdict->code, "bad_data");
  gang.verdict = *step.verdict;
  EXPECT_TRUE(DecideGang(gang).empty());
}

TEST(GangTest, ANodeWithACauseIsBlamedBeforeOneThatOnlyLostItsPeers) {
  Gang gang = GangOf(AttemptState::kStopping,
                     {On("a", MemberState::kFinishing), On("b", MemberState::kStopping)});
  gang.members[0].verdict = BadData();
  gang.members[0].verdict.code = "collective_failed";
  gang.verdict = *DecideGang(gang).verdict;
  EXPECT_EQ(gang.verdict.code, "collective_failed");
  EXPECT_TRUE(DecideGang(gang).empty());
  gang.members[1].verdict = BadData();
  gang.members[1].verdict.code = "host_oom";
  EXPECT_EQ(DecideGang(gang).verdict->code, "host_oom");
  EXPECT_EQ(DecideGang(gang).verdict->node, "b");
  gang.verdict.code = gang.members[0].verdict.code = "rank_stopped";
  gang.members[1].verdict = BadData();
  gang.members[1].verdict.code = "rank_killed";
  gang.verdict = *DecideGang(gang).verdict;
  EXPECT_EQ(gang.verdict.code, "rank_killed");
  EXPECT_EQ(gang.verdict.node, "b");
  EXPECT_TRUE(DecideGang(gang).empty());
}

TEST(GangTest, ANodeThatWasToldToStopExplainsNothing) {
  Gang gang = GangOf(AttemptState::kStopping,
                     {On("a", MemberState::kDone), On("b", MemberState::kStopping)});
  gang.members[0].verdict = Succeeded();
  gang.members[0].verdict.code = "stopped";
  gang.verdict = *DecideGang(gang).verdict;
  EXPECT_EQ(gang.verdict.code, "stopped");
  gang.members[1].verdict = BadData();
  EXPECT_EQ(DecideGang(gang).verdict->code, "bad_data");
}

TEST(GangTest, ATerminalAttemptAsksForNothing) {
  Gang gang = GangOf(AttemptState::kSucceeded, {On("a", MemberState::kMissing)});
  gang.cancel_requested = true;
  EXPECT_TRUE(DecideGang(gang).empty());
}

TEST(GangTest, ALostNodeEndsTheGangAndIsNotWaitedFor) {
  Gang gang = GangOf(AttemptState::kRunning,
                     {On("a", MemberState::kRunning), On("b", MemberState::kRunning)});
  gang.members[1].lost = true;
  const GangStep step = DecideGang(gang);
  EXPECT_EQ(step.next, AttemptState::kStopping);
  EXPECT_EQ(step.verdict->code, "node_unreachable");
  EXPECT_EQ(step.verdict->node, "b");
  EXPECT_EQ(step.verdict->domain, Verdict::Domain::kInfrastructure);
  gang.state = AttemptState::kStopping;
  gang.verdict = *step.verdict;
  EXPECT_TRUE(DecideGang(gang).empty()) << "a still ends its part";
  gang.members[0].state = MemberState::kDone;
  EXPECT_EQ(DecideGang(gang).next, AttemptState::kFailed);
}

TEST(GangTest, ANodeThatNeverTookItUpIsNotCalledSilentForLong) {
  Gang gang = GangOf(AttemptState::kPlaced, {On("a", MemberState::kNone)});
  gang.members[0].seen = false;
  gang.members[0].lost = true;
  EXPECT_NE(DecideGang(gang).verdict->message.find("did not take up"), std::string::npos);
}

Gang Told(AttemptState state, std::vector<Member> members) {
  Gang gang = GangOf(state, std::move(members));
  gang.stop.domain = Verdict::Domain::kNone;
  gang.stop.code = "moved";
  gang.stop.message = "moved: n is drained";
  return gang;
}

TEST(GangTest, AnAttemptToldToStopEndsWithThatVerdict) {
  const GangStep stop = DecideGang(Told(AttemptState::kRunning, {On("n", MemberState::kRunning)}));
  EXPECT_EQ(stop.next, AttemptState::kStopping);
  EXPECT_EQ(stop.reason, "moved: n is drained");
  EXPECT_TRUE(DecideGang(Told(AttemptState::kStopping, {On("n", MemberState::kStopping)})).empty());
  Gang ended = Told(AttemptState::kStopping, {On("n", MemberState::kDone)});
  ended.members[0].verdict.domain = Verdict::Domain::kNone;
  ended.members[0].verdict.code = "stopped";
  const GangStep end = DecideGang(ended);
  EXPECT_EQ(end.next, AttemptState::kFailed);
  EXPECT_EQ(end.verdict->code, "moved");
}

TEST(GangTest, FailuresAfterAStopCountAsTheStopExceptUserFaults) {
  Gang lost = Told(AttemptState::kStopping, {On("n", MemberState::kDone)});
  lost.members[0].verdict.domain = Verdict::Domain::kInfrastructure;
  lost.members[0].verdict.code = "rank_killed";
  EXPECT_EQ(DecideGang(lost).verdict->code, "moved");
  Gang bad = Told(AttemptState::kStopping, {On("n", MemberState::kDone)});
  bad.members[0].verdict = BadData();
  EXPECT_EQ(DecideGang(bad).verdict->code, BadData().code);
  bad.verdict = BadData();
  EXPECT_EQ(DecideGang(bad).next, AttemptState::kFailed);
}

TEST(GangTest, AStopThatComesTooLateLeavesASuccess) {
  Gang done = Told(AttemptState::kStopping, {On("n", MemberState::kDone)});
  done.members[0].verdict = Succeeded();
  EXPECT_EQ(DecideGang(done).next, AttemptState::kSucceeded);
}

TEST(GangTest, ACancelComesBeforeAnotherStop) {
  Gang gang = Told(AttemptState::kStopping, {On("n", MemberState::kDone)});
  gang.cancel_requested = true;
  EXPECT_EQ(DecideGang(gang).verdict->code, "cancelled");
}

}  // namespace
}  // namespace sft::server
