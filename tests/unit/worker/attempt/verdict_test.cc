#include "worker/attempt/verdict.h"

#include <csignal>

#include "tests/unit/worker/base/test_node.h"

namespace sft::worker {
namespace {

using channel::ShimStatus;

ShimStatus Ended(std::vector<ShimStatus::Process> processes, const std::string& cause = "failure") {
  ShimStatus status;
  status.state = "exited";
  status.cause = cause;
  status.reason = "reason of the shim";
  status.processes = std::move(processes);
  return status;
}

ShimStatus::Process Exit(int rank, int code, int order) {
  return {rank < 0 ? "prepare" : "rank-" + std::to_string(rank), rank, 100, true, code, 0, order};
}
ShimStatus::Process Killed(int rank, int signal, int order) {
  return {"rank-" + std::to_string(rank), rank, 100, true, 0, signal, order};
}

TEST(VerdictTest, AllZeroIsSuccess) {
  const v1::Verdict verdict = MakeVerdict(Ended({Exit(-1, 0, 1), Exit(0, 0, 2)}, ""), {}, "n");
  EXPECT_EQ(verdict.code(), "succeeded");
  EXPECT_EQ(verdict.domain(), v1::Verdict::NONE);
  EXPECT_EQ(verdict.rank(), -1);
}

TEST(VerdictTest, AStopIsNobodysFaultHoweverTheRanksWent) {
  const v1::Verdict verdict =
      MakeVerdict(Ended({Killed(0, SIGKILL, 1), Exit(1, 67, 2)}, "command"), {}, "n");
  EXPECT_EQ(verdict.code(), "stopped");
  EXPECT_EQ(verdict.domain(), v1::Verdict::NONE);
}

TEST(VerdictTest, ARankThatWasAskedToEndIsNotToBlame) {
  const v1::Verdict asked = MakeVerdict(Ended({Exit(0, 67, 1)}), {}, "n");
  EXPECT_EQ(asked.code(), "rank_stopped");
  EXPECT_EQ(asked.domain(), v1::Verdict::INFRASTRUCTURE);
  const v1::Verdict shut_down = MakeVerdict(Ended({Exit(0, 67, 1)}, "signal"), {}, "n");
  EXPECT_EQ(shut_down.code(), "rank_killed");
  EXPECT_EQ(shut_down.domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(shut_down.node(), "n");
}

TEST(VerdictTest, TheFirstToFailIsBlamedNotThoseThatWereEndedAfterIt) {
  const v1::Verdict verdict =
      MakeVerdict(Ended({Killed(0, SIGTERM, 2), Killed(1, SIGKILL, 1)}), {}, "node-a");
  EXPECT_EQ(verdict.rank(), 1);
  EXPECT_EQ(verdict.node(), "node-a");
  EXPECT_EQ(verdict.message(), "rank 1 was killed by signal 9 (Killed)");
  EXPECT_EQ(verdict.domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(verdict.code(), "rank_killed");
  ASSERT_EQ(verdict.evidence_size(), 2);
  EXPECT_EQ(verdict.evidence(0), "rank 1 was killed by signal 9 (Killed)");
  EXPECT_EQ(verdict.evidence(1), "rank 0 was killed by signal 15 (Terminated)");
  EXPECT_EQ(verdict.process(), "rank-1");
}

TEST(VerdictTest, WhatEndedWellIsNoEvidence) {
  const v1::Verdict verdict =
      MakeVerdict(Ended({Exit(-1, 0, 1), Exit(0, 0, 2), Killed(1, SIGKILL, 3)}), {}, "node-a");
  ASSERT_EQ(verdict.evidence_size(), 1);
  EXPECT_EQ(verdict.evidence(0), "rank 1 was killed by signal 9 (Killed)");
}

TEST(VerdictTest, TheAdviceNamesTheLogOfTheProcessThatFailed) {
  const v1::Verdict prepare = MakeVerdict(Ended({Exit(-1, 64, 1)}), {}, "n");
  EXPECT_EQ(prepare.process(), "prepare");
  EXPECT_NE(prepare.advice().find("sftctl logs JOB --prepare"), std::string::npos)
      << prepare.advice();
  const v1::Verdict rank = MakeVerdict(Ended({Exit(-1, 0, 1), Exit(3, 65, 2)}), {}, "n");
  EXPECT_NE(rank.advice().find("sftctl logs JOB --rank 3"), std::string::npos) << rank.advice();
}

TEST(VerdictTest, ALogOfAnyBytesMakesEvidenceThatTravels) {
  ProcessTraces traces;
  traces.log_tail = "cut \xa9 here";
  const v1::Verdict verdict = MakeVerdict(Ended({Exit(0, 66, 1)}), {{"rank-0", traces}}, "n");
  EXPECT_EQ(verdict.evidence(1), "last lines of rank-0's log:\ncut \xef\xbf\xbd here");
}

TEST(VerdictTest, ACrashIsNotCalledInfrastructure) {
  const v1::Verdict verdict = MakeVerdict(Ended({Killed(0, SIGSEGV, 1)}), {}, "n");
  EXPECT_EQ(verdict.code(), "rank_crashed");
  EXPECT_EQ(verdict.domain(), v1::Verdict::UNKNOWN);
}

TEST(VerdictTest, AUserErrorGoesBeforeTheNeighbourThatOnlyLostItsPeer) {
  const v1::Verdict verdict = MakeVerdict(Ended({Exit(0, 65, 1), Exit(1, 64, 2)}), {}, "n");
  EXPECT_EQ(verdict.rank(), 1);
  EXPECT_EQ(verdict.domain(), v1::Verdict::USER);
}

ProcessTraces LostPeer() {
  ProcessTraces traces;
  traces.fatal = channel::FatalEvent{"infrastructure", "collective_failed", "closed by peer", ""};
  return traces;
}

TEST(VerdictTest, ThoseThatOnlyLostAPeerAreNotBlamedHoweverEarlyTheyEnd) {
  const channel::ShimStatus status =
      Ended({Exit(0, 65, 1), Exit(1, 67, 2), Killed(2, SIGKILL, 3), Killed(3, SIGTERM, 4)});
  const v1::Verdict verdict = MakeVerdict(status, {{"rank-0", LostPeer()}}, "n");
  EXPECT_EQ(verdict.rank(), 2);
  EXPECT_EQ(verdict.code(), "rank_killed");
  EXPECT_EQ(verdict.evidence_size(), 4);
}

TEST(VerdictTest, WhereAllLostAPeerItIsOnAnotherNode) {
  const v1::Verdict verdict = MakeVerdict(Ended({Exit(0, 65, 1), Exit(1, 65, 2)}),
                                          {{"rank-0", LostPeer()}, {"rank-1", LostPeer()}}, "n");
  EXPECT_EQ(verdict.code(), kCascadeCode);
  EXPECT_EQ(verdict.rank(), 0);
}

TEST(VerdictTest, WhatTheWatchFoundIsInfrastructureAlsoWhenOnlyTheShimRemembersIt) {
  const v1::Verdict verdict = MakeVerdict(Ended({Killed(0, SIGKILL, 1)}, "watch"), {}, "n");
  EXPECT_EQ(verdict.code(), "rank_hang");
  EXPECT_EQ(verdict.domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(verdict.message(), "reason of the shim");
}

TEST(VerdictTest, TheFatalEventSaysWhatToDo) {
  ProcessTraces traces;
  traces.fatal = channel::FatalEvent{"user", "nan_loss", "the loss is NaN at step 7",
                                     "lower the learning rate"};
  traces.log_tail = "step 7\nnan";
  const v1::Verdict verdict = MakeVerdict(Ended({Exit(0, 64, 1)}), {{"rank-0", traces}}, "n");
  EXPECT_EQ(verdict.domain(), v1::Verdict::USER);
  EXPECT_EQ(verdict.code(), "nan_loss");
  EXPECT_EQ(verdict.message(), "rank 0: the loss is NaN at step 7");
  EXPECT_EQ(verdict.advice(), "lower the learning rate");
  EXPECT_EQ(verdict.evidence(1), "last lines of rank-0's log:\nstep 7\nnan");
}

TEST(VerdictTest, WhatAKilledRankSaidBeforeIsNotWhyItEnded) {
  ProcessTraces traces;
  traces.fatal = channel::FatalEvent{"user", "bad_data", "x", "y"};
  EXPECT_EQ(MakeVerdict(Ended({Killed(0, SIGKILL, 1)}), {{"rank-0", traces}}, "n").code(),
            "rank_killed");
}

TEST(VerdictTest, EachExitCodeHasItsDomain) {
  const auto domain = [](int code) {
    return MakeVerdict(Ended({Exit(0, code, 1)}), {}, "n").domain();
  };
  EXPECT_EQ(domain(channel::kExitUserError), v1::Verdict::USER);
  EXPECT_EQ(domain(channel::kExitInfrastructure), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(domain(channel::kExitInternal), v1::Verdict::UNKNOWN);
  EXPECT_EQ(domain(channel::kExitUsage), v1::Verdict::UNKNOWN);
  EXPECT_EQ(domain(1), v1::Verdict::UNKNOWN);
}

TEST(VerdictTest, FencingIsInfrastructure) {
  EXPECT_EQ(MakeVerdict(Ended({Killed(0, SIGKILL, 1)}, "fencing"), {}, "n").code(), "fenced");
}

TEST(VerdictTest, WhoLostAThingIsBlamedForIt) {
  EXPECT_EQ(MakeStagingVerdict(NotFound("no model"), "n").domain(), v1::Verdict::USER);
  EXPECT_EQ(MakeStagingVerdict(PermissionDenied("outside"), "n").domain(), v1::Verdict::USER);
  EXPECT_EQ(MakeStagingVerdict(InvalidArgument("broken"), "n").domain(), v1::Verdict::USER);
  EXPECT_EQ(MakeStagingVerdict(Internal("x"), "n").code(), "staging_failed");
  EXPECT_EQ(MakeStagingVerdict(ResourceExhausted("cannot write /x: no space"), "n").code(),
            "disk_full");
  const v1::Verdict lost = MakeStagingVerdict(FailedPrecondition("blob is damaged"), "n");
  EXPECT_EQ(lost.domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(lost.code(), "dataset_lost");
  EXPECT_EQ(lost.node(), "") << "no node is to blame";
  EXPECT_NE(lost.advice().find("upload the data set again"), std::string::npos);
  EXPECT_EQ(MakeStagingVerdict(DataLoss("x"), "n").code(), "checkpoint_lost");
}

TEST(VerdictTest, WhatTheNodeItselfCannotDoIsNeverTheUsers) {
  for (const absl::Status& status : {NotFound("no shim"), PermissionDenied("/data"),
                                     InvalidArgument("x"), Internal("x"), Unavailable("x")}) {
    EXPECT_EQ(MakeStartVerdict(status, "n").domain(), v1::Verdict::INFRASTRUCTURE) << status;
    EXPECT_EQ(MakeStartVerdict(status, "n").code(), "start_failed") << status;
  }
  EXPECT_EQ(MakeStartVerdict(ResourceExhausted("no space"), "n").code(), "disk_full");
}

TEST(VerdictTest, AProgramThatLacksALibraryIsTheNodesFault) {
  const v1::Verdict verdict = MakeVerdict(Ended({Exit(0, 127, 1)}), {}, "n");
  EXPECT_EQ(verdict.domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(verdict.code(), "start_failed");
}

TEST(VerdictTest, AFullDiskExplainsARankThatCouldNotSayWhyItEnded) {
  ProcessTraces traces;
  traces.disk_full = true;
  const v1::Verdict verdict = MakeVerdict(Ended({Exit(0, 65, 1)}), {{"rank-0", traces}}, "node-a");
  EXPECT_EQ(verdict.code(), "disk_full");
  EXPECT_EQ(verdict.domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(verdict.advice(), "free space on node node-a, then submit again");
  EXPECT_EQ(MakeVerdict(Ended({Exit(0, 64, 1)}), {{"rank-0", traces}}, "n").code(), "user_error");
  traces.fatal = channel::FatalEvent{"infrastructure", "peer_lost", "m", "a"};
  EXPECT_EQ(MakeVerdict(Ended({Exit(0, 65, 1)}), {{"rank-0", traces}}, "n").code(), "peer_lost");
}

class TracesTest : public TestNode {};

TEST_F(TracesTest, AreTheLastFatalEventAndTheLastLines) {
  std::string log;
  for (int i = 0; i < 100; ++i) log += "line " + std::to_string(i) + "\n";
  Write(dir_ + "/rank-0.log", log);
  Write(dir_ + "/rank-0.events",
        channel::ToLine({1, channel::StepEvent{}}) + "broken\n" +
            channel::ToLine({2, channel::FatalEvent{"user", "a", "", ""}}) +
            channel::ToLine({3, channel::FatalEvent{"user", "b", "", ""}}) + "{\"event\":");
  const ProcessTraces traces = ReadTraces(dir_, "rank-0");
  ASSERT_TRUE(traces.fatal.has_value());
  EXPECT_EQ(traces.fatal->code, "b");
  EXPECT_EQ(traces.log_tail,
            "line 92\nline 93\nline 94\nline 95\nline 96\nline 97\nline 98\nline 99");
  EXPECT_FALSE(ReadTraces(dir_, "rank-7").fatal.has_value());
}

}  // namespace
}  // namespace sft::worker
