#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/io/sha256.h"
#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"
#include "worker/channel/launch.h"
#include "worker/daemon/agent.h"

namespace sft::worker {

// Real shims; a test may replace the result of a start and the knowledge of an end.
class TestShims : public ShimProcesses {
 public:
  using ShimProcesses::ShimProcesses;
  absl::Status Start(const std::string& shim_json) override {
    ++starts;
    return start ? start(shim_json) : ShimProcesses::Start(shim_json);
  }

  absl::StatusOr<channel::Answer> Ask(const std::string& socket_path,
                                      const channel::Command& command) override {
    if (ask) SFT_RETURN_IF_ERROR(ask(command));
    return ShimProcesses::Ask(socket_path, command);
  }

  int starts = 0;
  std::function<absl::Status(const std::string&)> start;
  std::function<absl::Status(const channel::Command&)> ask;  // an error: the shim does not answer
};

// A node with the real shim and a fake rank program; the test makes each step itself. Shims become
// children of the test, so that it can wait for their end.
class AgentTest : public TestNode {
 protected:
  using Status = v1::AttemptStatus;

  void SetUp() override {
    TestNode::SetUp();
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    setup_.grace_seconds = 0.2;
    NewLife();
  }
  void TearDown() override {
    agent_.reset();
    TestNode::TearDown();
  }

  // As if the daemon had been killed and started again.
  void NewLife() {
    agent_.reset();
    inventory_ = std::make_unique<Inventory>(
        [this]() -> absl::StatusOr<std::vector<GpuReading>> {
          SFT_RETURN_IF_ERROR(driver_);
          return gpus_;
        },
        gpus_.empty() ? SimulatedGpus{"H100", 4} : SimulatedGpus{}, 0, clock_);
    agent_ =
        std::make_unique<Agent>(Agent::Options{.io_threads = false}, setup_, stager_, *inventory_,
                                server_, shims_, clock_, [this] { return torch_; });
    ASSERT_TRUE(agent_->Load().ok());
  }

  // `mode` is that of the fake rank program.
  v1::DesiredAttempt& Want(const std::string& mode, int ranks = 1) {
    const std::string data = "{\"text\":\"fake:" + mode + "\"}\n";
    const std::string hash = io::Sha256Hex(data);
    server_.blobs[hash] = data;
    v1::DesiredAttempt& wanted = *desired_.add_attempts();
    wanted.set_attempt_uid("a-1");
    wanted.set_epoch(1);
    wanted.set_intent(v1::DesiredAttempt::RUN);
    v1::Dispatch& dispatch = *wanted.mutable_dispatch();
    dispatch.set_job_id("job-1");
    dispatch.set_resolved_json(ResolvedJson("tiny"));
    dispatch.set_world_size(ranks);
    for (int i = 0; i < ranks; ++i) dispatch.add_slots(i);
    v1::JobFileRef& file = *dispatch.add_files();
    file.set_key("job.data");
    file.set_sha256(hash);
    file.set_size(static_cast<int64_t>(data.size()));
    return wanted;
  }
  void Tell() {
    agent_->ServerHeard(clock_.Mono());
    agent_->OnDesired(desired_);
    agent_->Step();
  }
  v1::Observed Observe() {
    uint64_t models = 0;
    return agent_->Observe(models);
  }
  Status Only() {
    const v1::Observed observed = Observe();
    EXPECT_EQ(observed.attempts_size(), 1);
    return observed.attempts_size() == 1 ? observed.attempts(0) : Status();
  }
  // Steps until the shim runs.
  void Launch() {
    Tell();
    agent_->StepIo();
    ASSERT_EQ(Only().state(), Status::READY) << Only().reason();
    desired_.mutable_attempts(0)->set_rendezvous(Only().rendezvous());
    Tell();
    ASSERT_EQ(Only().state(), Status::PREPARING) << Only().reason();
  }
  channel::ShimStatus ShimStatus() {
    return *channel::ParseShimStatus(*io::ReadFile(setup_.AttemptDir("a-1") + "/status.json"));
  }
  void WaitForShimEnd() {
    const pid_t pid = static_cast<pid_t>(ShimStatus().shim_pid);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  }
  // An attempt on a GPU with readings, up to the end of its ranks.
  void EndRanksOnAGpu() {
    gpus_ = {{"NVIDIA H100", "GPU-a", 80'000'000'000, 500'000'000, 0}};
    NewLife();
    Want("ok");
    Launch();
    WaitForShimEnd();
    agent_->Step();
  }
  void FinishAfterShim() {
    WaitForShimEnd();
    agent_->Step();
    for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
    ASSERT_EQ(Only().state(), Status::DONE) << Only().reason();
  }

  FakeClock clock_;
  FakeServer server_;
  Stager stager_{setup_, server_};
  TestShims shims_{SFT_BINARY_DIR "/bin/sft-shim"};
  std::unique_ptr<Inventory> inventory_;
  std::vector<GpuReading> gpus_;  // empty: simulated ones
  absl::Status driver_;           // the driver's error, instead of readings
  absl::StatusOr<std::string> torch_ = std::string();
  std::unique_ptr<Agent> agent_;
  v1::Desired desired_;
};

}  // namespace sft::worker
