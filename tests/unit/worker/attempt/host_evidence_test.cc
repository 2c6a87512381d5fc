#include "worker/attempt/host_evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "common/io/file.h"
#include "worker/attempt/fencing.h"
#include "worker/attempt/verdict.h"

namespace sft::worker {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(KernelLogTest, ARecordHasItsTimeAndItsText) {
  const auto line = ParseKernelLine("4,1234,5678901,-;NVRM: hello; world\n SUBSYSTEM=pci\n");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->since_boot, std::chrono::microseconds(5678901));
  EXPECT_EQ(line->message, "NVRM: hello; world");
  EXPECT_FALSE(ParseKernelLine("no record"));
  EXPECT_FALSE(ParseKernelLine("4,x;text"));
  EXPECT_TRUE(ReadKernelLog({}, "/nowhere").empty());
}

TEST(KernelLogTest, XidsAreReadAsTheDriverWritesThem) {
  const auto xid = ParseXid(
      "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the "
      "bus.");
  ASSERT_TRUE(xid);
  EXPECT_EQ(xid->number, 79);
  EXPECT_EQ(xid->pci, "0000:18:00");
  EXPECT_THAT(xid->text, HasSubstr("GPU has fallen off the bus."));
  EXPECT_EQ(ParseXid("[ 12.3] NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault")->number, 31);
  EXPECT_FALSE(ParseXid("NVRM: loading NVIDIA UNIX x86_64 Kernel Module"));
  EXPECT_FALSE(ParseXid("NVRM: Xid (PCI:0000:18:00): x"));
}

TEST(KernelLogTest, EachXidHasTheCatalogsAction) {
  for (const int xid : {13, 31, 32, 69, 94, 8, 11, 39}) {
    EXPECT_EQ(ActionOf(xid), XidAction::kRestartJob) << xid;
  }
  for (const int xid : {43, 63, 92, 121, 157}) EXPECT_EQ(ActionOf(xid), XidAction::kIgnore) << xid;
  for (const int xid : {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}) {
    EXPECT_EQ(ActionOf(xid), XidAction::kResetGpu) << xid;
  }
  EXPECT_EQ(ActionOf(79), XidAction::kRebootNode);
  for (const int xid : {45, 48, 74, 144, 150, 154}) {
    EXPECT_EQ(ActionOf(xid), XidAction::kFollowUp) << xid;
  }
  EXPECT_EQ(ActionOf(999), XidAction::kUnknown);
}

TEST(KernelLogTest, KillsForMemoryNameTheProcess) {
  const auto host = ParseOomKill("Out of memory: Killed process 1234 (sft-rank) total-vm:1kB");
  ASSERT_TRUE(host);
  EXPECT_EQ(host->pid, 1234);
  EXPECT_FALSE(host->cgroup);
  EXPECT_TRUE(ParseOomKill("Memory cgroup out of memory: Killed process 7 (x)")->cgroup);
  EXPECT_FALSE(ParseOomKill("Killed"));
}

class HostEvidenceTest : public testing::Test {
 protected:
  HostEvidenceTest() {
    status_.processes.push_back({"rank-1", 1, 1234, true, 0, SIGKILL, 1});
    verdict_ = SimpleVerdict(v1::Verdict::INFRASTRUCTURE, "rank_killed",
                             "rank 1 was killed by signal 9 (Killed)", "", "node-a");
    verdict_.set_rank(1);
    verdict_.set_process("rank-1");
  }
  void Kernel(const std::string& message) { host_.kernel.push_back({seconds(1), message}); }
  v1::Verdict Apply() {
    ApplyHostEvidence(host_, status_, verdict_);
    return verdict_;
  }

  HostEvidence host_;
  channel::ShimStatus status_;
  v1::Verdict verdict_;
};

TEST_F(HostEvidenceTest, WithoutAnyTheVerdictStays) {
  const std::string before = verdict_.SerializeAsString();
  EXPECT_EQ(Apply().SerializeAsString(), before);
}

TEST_F(HostEvidenceTest, AKilledRankOfAMachineWithoutMemoryIsExplained) {
  Kernel("Out of memory: Killed process 99 (other)");
  Kernel("Out of memory: Killed process 1234 (sft-rank) total-vm:1kB");
  const v1::Verdict verdict = Apply();
  EXPECT_EQ(verdict.code(), "host_oom");
  EXPECT_EQ(verdict.message(), "rank 1 was killed by signal 9 (Killed); the node's memory ran out");
  EXPECT_THAT(verdict.advice(), HasSubstr("node node-a needs more memory"));
  ASSERT_EQ(verdict.evidence_size(), 1);
  EXPECT_THAT(verdict.evidence(0), HasSubstr("Killed process 1234"));
}

TEST_F(HostEvidenceTest, TheCounterOfTheControlGroupIsEnough) {
  host_.oom_kills = 1;
  EXPECT_EQ(Apply().code(), "host_oom");
  EXPECT_EQ(verdict_.evidence(0), "memory.events: oom_kill grew by 1");
}

TEST_F(HostEvidenceTest, AnotherSignalOrAnExitIsNoKillForMemory) {
  host_.oom_kills = 1;
  status_.processes[0].signal = SIGSEGV;
  EXPECT_EQ(Apply().code(), "rank_killed");
  status_.processes[0].signal = 0;
  status_.processes[0].exit_code = 65;
  EXPECT_EQ(Apply().code(), "rank_killed");
}

TEST_F(HostEvidenceTest, TheWorstXidOfTheJobsGpusIsWhy) {
  host_.gpus = {{"0000:18:00", "GPU 0"}, {"0000:2a:00", "GPU 1"}};
  Kernel("NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.");
  Kernel("NVRM: Xid (PCI:0000:18:00): 43, pid=7, stopped processing");
  EXPECT_EQ(Apply().code(), "rank_killed") << "a neighbour's, and one that is to be ignored";
  Kernel("NVRM: Xid (PCI:0000:18:00): 31, pid=1234, MMU Fault");
  Kernel("NVRM: Xid (PCI:0000:2a:00): 95, Uncontained ECC error");
  const v1::Verdict verdict = Apply();
  EXPECT_EQ(verdict.code(), "gpu_fault");
  EXPECT_EQ(verdict.domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_THAT(verdict.message(), HasSubstr("XID 95 on GPU 1: Uncontained ECC error"));
  EXPECT_THAT(verdict.advice(), HasSubstr("reset the GPU"));
}

TEST_F(HostEvidenceTest, AGpuThatNvmlNoLongerListsIsWhy) {
  host_.gpu_problems = {{"GPU 3", "NVML no longer lists it: it fell off the bus or was reset"}};
  EXPECT_EQ(Apply().code(), "gpu_lost");
  EXPECT_THAT(verdict_.message(), HasSubstr("GPU 3: NVML no longer lists it"));
}

TEST_F(HostEvidenceTest, WhatIsTheUsersOrNobodysStays) {
  host_.oom_kills = 1;
  Kernel("NVRM: Xid (PCI:0000:18:00): 79, off the bus");
  for (const auto domain : {v1::Verdict::USER, v1::Verdict::NONE}) {
    verdict_.set_domain(domain);
    EXPECT_EQ(Apply().code(), "rank_killed");
    EXPECT_EQ(verdict_.evidence_size(), 0);
  }
}

TEST(FencingTest, TheJobSaysHowLongItsRanksGoOnWithoutTheServer) {
  using enum spec::OnUnreachable;
  const auto limit = [](spec::OnUnreachable what, const char* after) {
    spec::JobSpec::Compute compute;
    compute.on_unreachable = what;
    compute.unreachable_after = after;
    return FencingLimit(compute);
  };
  EXPECT_EQ(FencingLimit({}), seconds(900));
  EXPECT_EQ(limit(kWait, "5m"), Nanos(0));
  EXPECT_EQ(limit(kReplace, "5m"), seconds(300));
  EXPECT_EQ(limit(kReplace, "2h"), seconds(7200));
  EXPECT_EQ(limit(kReplace, "90s"), seconds(90));
  EXPECT_EQ(limit(kReplace, "soon"), seconds(900));
}

}  // namespace
}  // namespace sft::worker
