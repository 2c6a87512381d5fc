#include "worker/daemon/lease.h"

#include <gmock/gmock.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "common/io/file.h"
#include "tests/unit/worker/daemon/agent_fixture.h"

namespace sft::worker {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

const WallTime kNow{seconds(1'795'000'000)};

std::string Epoch(seconds from_now) {
  return std::to_string((kNow + from_now).time_since_epoch() / seconds(1));
}

class LeaseTest : public testing::Test {
 protected:
  LeaseTest() {
    for (const char* name : kVariables) unsetenv(name);
    options_.ephemeral = true;
  }
  ~LeaseTest() override {
    for (const char* name : kVariables) unsetenv(name);
  }
  std::string Problem() {
    const auto lease = MakeLease(options_, kNow);
    EXPECT_TRUE(absl::IsInvalidArgument(lease.status())) << lease.status();
    return std::string(Message(lease.status()));
  }

  static constexpr std::array<const char*, 4> kVariables{"SLURM_JOB_ID", "SLURM_JOB_END_TIME",
                                                         "SLURM_RESTART_COUNT", "SLURMD_NODENAME"};
  Options options_;
};

TEST_F(LeaseTest, ANodeThatIsNotLentHasNone) {
  options_.ephemeral = false;
  setenv("SLURM_JOB_END_TIME", "1", 1);
  EXPECT_FALSE(MakeLease(options_, kNow).value().has_value());
  options_.leave_at = "5";
  EXPECT_THAT(Problem(), HasSubstr("--leave-at is for a node that is lent: add --ephemeral"));
}

TEST_F(LeaseTest, SlurmSaysWhoLendsItAndUntilWhen) {
  setenv("SLURM_JOB_ID", "17", 1);
  setenv("SLURM_JOB_END_TIME", Epoch(minutes(60)).c_str(), 1);
  const v1::Lease lease = *MakeLease(options_, kNow).value();
  EXPECT_EQ(lease.allocation(), "Slurm job 17");
  EXPECT_EQ(lease.end_us(), UnixMicros(kNow + minutes(60)));
  EXPECT_EQ(lease.lead_seconds(), 300);
}

TEST_F(LeaseTest, TheEndIsReadAsSqueuePrintsItAndInUtc) {
  options_.leave_at = FormatUtc(kNow + minutes(30));
  EXPECT_EQ(MakeLease(options_, kNow).value()->end_us(), UnixMicros(kNow + minutes(30)));
  setenv("TZ", "EST5EDT", 1);
  tzset();
  options_.leave_at = "2026-11-18T07:06:40";  // 12:06:40 in Greenwich
  EXPECT_EQ(MakeLease(options_, kNow).value()->end_us() / 1'000'000, 1'795'003'600);
  unsetenv("TZ");
  tzset();
  options_.leave_at = "UNLIMITED";
  EXPECT_EQ(MakeLease(options_, kNow).value()->end_us(), 0);
  for (const char* text :
       {"tomorrow", "-5", "2026-11-28", "2026-11-28T09:30:00+01:00", "99999999999999999"}) {
    options_.leave_at = text;
    EXPECT_THAT(Problem(), HasSubstr(std::string("--leave-at ") + text + ": not a time")) << text;
  }
}

TEST_F(LeaseTest, AnAllocationShorterThanACheckpointIsRefusedWithWhatWouldWork) {
  options_.leave_at = Epoch(seconds(600));
  EXPECT_THAT(Problem(),
              AllOf(HasSubstr("in 600 s: too soon for a job to begin and to write its checkpoint"),
                    HasSubstr("an allocation of at least 630 s (sbatch --time=11)"),
                    HasSubstr("--leave-lead 285s")));
  options_.leave_lead = "285s";
  EXPECT_TRUE(MakeLease(options_, kNow).ok());
  options_.leave_at = Epoch(seconds(-5));
  EXPECT_THAT(Problem(), HasSubstr("in 0 s"));
  // A worker that crashed has ranks to see to.
  options_.data_dir = io::MakeTempDir("lease-test").value();
  ASSERT_TRUE(io::MakeDirs(options_.data_dir + "/attempts").ok());
  EXPECT_TRUE(MakeLease(options_, kNow).ok());
  ASSERT_TRUE(io::RemoveAll(options_.data_dir).ok());
  options_.leave_lead = "soon";
  EXPECT_THAT(Problem(), HasSubstr("--leave-lead soon: not a time such as 5m"));
  options_.leave_lead = "5m";
  options_.leave_at = "";
  options_.leave_idle = "never";
  EXPECT_THAT(Problem(), HasSubstr("--leave-idle never: not a time such as 10m"));
}

TEST_F(LeaseTest, ANodeIsNamedByItsAllocation) {
  EXPECT_EQ(DefaultNodeName("h1", true), "h1");
  setenv("SLURM_JOB_ID", "17", 1);
  EXPECT_EQ(DefaultNodeName("h1", false), "h1");
  EXPECT_EQ(DefaultNodeName("h1", true), "h1-17");
  setenv("SLURMD_NODENAME", "gpu7", 1);
  setenv("SLURM_RESTART_COUNT", "2", 1);
  EXPECT_EQ(DefaultNodeName("h1", true), "gpu7-17-2");
}

class DepartureTest : public AgentTest {
 protected:
  static v1::Lease Lent() {
    v1::Lease lease;
    lease.set_lead_seconds(300);
    return lease;
  }
  std::string Said() {
    uint64_t models = 0;
    return agent_->Observe(models).leaving();
  }
};

TEST_F(DepartureTest, WithoutALeaseASignalEndsTheWorkerAndNobodyIsTold) {
  Departure departure(std::nullopt, Options(), *agent_);
  agent_->ServerHeard(agent_->Now());
  departure.OnSignal(SIGTERM);
  EXPECT_TRUE(departure.Ended());
  EXPECT_EQ(Said(), "");
}

TEST_F(DepartureTest, ALeasedNodeStaysUntilItIsDismissed) {
  Departure departure(Lent(), Options(), *agent_);
  clock_.Advance(seconds(1));
  agent_->ServerHeard(agent_->Now());
  departure.OnSignal(SIGUSR1);
  departure.OnSignal(SIGTERM);
  EXPECT_FALSE(departure.Ended());
  EXPECT_EQ(Said(), "its worker got signal 10 (User defined signal 1)");
  v1::Register message;
  departure.AddTo(message);
  EXPECT_EQ(message.leaving(), Said());
  EXPECT_TRUE(message.facts().has_lease());
  departure.OnDismissed();
  EXPECT_TRUE(departure.Ended());
}

TEST_F(DepartureTest, AServerThatNeverAnsweredIsNotWaitedForNorIsASecondInterrupt) {
  {
    Departure departure(Lent(), Options(), *agent_);
    departure.OnSignal(SIGTERM);
    EXPECT_TRUE(departure.Ended());
  }
  Departure departure(Lent(), Options(), *agent_);
  clock_.Advance(seconds(1));
  agent_->ServerHeard(agent_->Now());
  departure.OnSignal(SIGINT);
  EXPECT_FALSE(departure.Ended());
  departure.OnSignal(SIGINT);
  EXPECT_TRUE(departure.Ended());
}

TEST_F(DepartureTest, AnIdleNodeLeaves) {
  Options options;
  options.leave_idle = "10m";
  Departure departure(Lent(), options, *agent_);
  clock_.Advance(minutes(9));
  departure.Look();
  EXPECT_EQ(Said(), "");
  clock_.Advance(minutes(1));
  departure.Look();
  EXPECT_EQ(Said(), "no job for 10m");
}

}  // namespace
}  // namespace sft::worker
