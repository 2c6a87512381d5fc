#include "worker/attempt/launch_plan.h"

#include "tests/unit/worker/base/test_node.h"

namespace sft::worker {
namespace {

class LaunchPlanTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    setup_.cpus = 16;
    dispatch_.set_job_id("job-1");
    dispatch_.set_resolved_json("{}");
    dispatch_.set_first_rank(0);
    dispatch_.set_world_size(2);
    dispatch_.add_slots(0);
    dispatch_.add_slots(1);
    job_.job.model = "org/tiny";
    staged_.model_dir = "/m";
    staged_.train_file = "/t";
  }
  LaunchFiles Plan(const Inventory& inventory) {
    return PlanLaunch({"a-1", 3, dispatch_, job_, staged_, "127.0.0.1:4000", torch_}, setup_,
                      inventory);
  }
  Inventory Gpus() {
    return Inventory(
        [] {
          return std::vector<GpuReading>{{"NVIDIA H100", "GPU-a", 80, 0, 0},
                                         {"NVIDIA H100", "GPU-b", 80, 0, 0},
                                         {"NVIDIA H100", "GPU-c", 80, 0, 0},
                                         {"NVIDIA H100", "GPU-d", 80, 0, 0}};
        },
        {}, 2, clock_);
  }

  FakeClock clock_;
  v1::Dispatch dispatch_;
  spec::JobSpec job_;
  StagedJob staged_;
  std::string torch_;
};

TEST_F(LaunchPlanTest, RanksOnGpusSeeTheirsAloneByUuid) {
  dispatch_.set_slots(0, 2);
  dispatch_.set_slots(1, 0);
  const LaunchFiles files = Plan(Gpus());
  EXPECT_EQ(files.rank.device, "cuda");
  EXPECT_EQ(files.shim.ranks[0].env.at("CUDA_VISIBLE_DEVICES"), "GPU-c,GPU-a");
  EXPECT_EQ(files.shim.prepare.env.at("CUDA_VISIBLE_DEVICES"), "");
  EXPECT_EQ(files.rank.threads_per_rank, 4);
  EXPECT_EQ(files.shim.ranks[0].env.at("OMP_NUM_THREADS"), "4");
}

TEST_F(LaunchPlanTest, ARankOfAWorkerWithSomeOfTheMachinesGpusLeavesTheOthersTheirCpus) {
  Inventory inventory = Gpus();
  inventory.SetMachineGpus(8);
  EXPECT_EQ(Plan(inventory).rank.threads_per_rank, 2) << "16 CPUs for 8 GPUs";
  setup_.cpus_given = true;
  EXPECT_EQ(Plan(inventory).rank.threads_per_rank, 4) << "--cpus 16 for the 4 that it offers";
}

TEST_F(LaunchPlanTest, CpuSlotsAndPretendedGpusComputeOnTheCpuWithTheirShareOfTheCores) {
  dispatch_.set_slots(0, 4);
  dispatch_.set_slots(1, 5);
  EXPECT_EQ(Plan(Gpus()).rank.device, "cpu");
  EXPECT_EQ(Plan(Gpus()).rank.threads_per_rank, 8);
  EXPECT_EQ(Plan(Gpus()).shim.ranks[0].env.at("CUDA_VISIBLE_DEVICES"), "");
  dispatch_.set_slots(0, 0);
  dispatch_.set_slots(1, 1);
  const Inventory pretended([] { return std::vector<GpuReading>(); }, {"H100", 64}, 0, clock_);
  EXPECT_EQ(Plan(pretended).rank.device, "cpu");
  EXPECT_EQ(Plan(pretended).rank.threads_per_rank, 1) << "never none";
}

TEST_F(LaunchPlanTest, EveryProcessGetsItsCommandLine) {
  dispatch_.set_first_rank(2);
  dispatch_.set_world_size(4);
  const LaunchFiles files = Plan(Gpus());
  const std::string launch = setup_.AttemptDir("a-1") + "/launch.json";
  EXPECT_EQ(files.shim.prepare.argv,
            (std::vector<std::string>{setup_.rank_binary, "prepare", "--launch", launch}));
  ASSERT_EQ(files.shim.ranks.size(), 2u);
  EXPECT_EQ(files.shim.ranks[1].name, "rank-3");
  EXPECT_EQ(
      files.shim.ranks[1].argv,
      (std::vector<std::string>{setup_.rank_binary, "train", "--launch", launch, "--rank", "3"}));
  EXPECT_EQ(files.rank.first_rank, 2);
  EXPECT_EQ(files.rank.local_ranks, 2);
  EXPECT_EQ(files.rank.world_size, 4);
  EXPECT_EQ(files.rank.model_name, "org/tiny");
  EXPECT_TRUE(channel::ParseShimLaunch(ToJson(files.shim)).ok());
  EXPECT_TRUE(channel::ParseRankLaunch(ToJson(files.rank)).ok());
}

TEST_F(LaunchPlanTest, RanksGetTheVariablesThatLaunchersSet) {
  dispatch_.set_first_rank(2);
  dispatch_.set_world_size(4);
  const auto env = Plan(Gpus()).shim.ranks[1].env;
  EXPECT_EQ(env.at("RANK"), "3");
  EXPECT_EQ(env.at("LOCAL_RANK"), "1");
  EXPECT_EQ(env.at("WORLD_SIZE"), "4");
  EXPECT_EQ(env.at("MASTER_ADDR"), "127.0.0.1");
  EXPECT_EQ(env.at("MASTER_PORT"), "4000");
  EXPECT_FALSE(Plan(Gpus()).shim.prepare.env.contains("RANK"));
}

TEST_F(LaunchPlanTest, WhatTheJobSaysOfNcclAndCudaReachesTheRanks) {
  EXPECT_FALSE(Plan(Gpus()).shim.ranks[0].env.contains("NCCL_DEBUG"));
  EXPECT_FALSE(Plan(Gpus()).shim.ranks[0].env.contains("CUDA_LAUNCH_BLOCKING"));
  job_.compute.nccl_debug = "INFO";
  job_.compute.network_interface = "eth7";
  job_.compute.cuda_launch_blocking = true;
  const auto env = Plan(Gpus()).shim.ranks[0].env;
  EXPECT_EQ(env.at("NCCL_DEBUG"), "INFO");
  EXPECT_EQ(env.at("NCCL_SOCKET_IFNAME"), "=eth7") << "not eth70";
  EXPECT_EQ(env.at("CUDA_LAUNCH_BLOCKING"), "1");
}

TEST_F(LaunchPlanTest, AGangOfOneNodeStaysOnTheLoopbackInterface) {
  setup_.network = {{"NCCL_SOCKET_IFNAME", "ib"}};
  EXPECT_EQ(Plan(Gpus()).shim.ranks[0].env.at("GLOO_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(Plan(Gpus()).shim.ranks[0].env.at("NCCL_SOCKET_IFNAME"), "=lo");
  dispatch_.set_world_size(4);
  setup_.address = "192.0.2.1";  // an address for documentation: no interface has it
  EXPECT_FALSE(Plan(Gpus()).shim.ranks[0].env.contains("GLOO_SOCKET_IFNAME"));
}

TEST_F(LaunchPlanTest, AFullModelIsWrittenIntoTheSharedFolder) {
  EXPECT_EQ(Plan(Gpus()).rank.output_dir, setup_.AttemptDir("a-1") + "/output");
  job_.training.mode = spec::Mode::kFullFinetune;
  EXPECT_EQ(Plan(Gpus()).rank.output_dir, setup_.shared_dir + "/job-1/model");
}

TEST_F(LaunchPlanTest, TheLibraryPathIsSetOnlyWhereItIsNeeded) {
  EXPECT_FALSE(Plan(Gpus()).shim.ranks[0].env.contains("LD_LIBRARY_PATH"));
  torch_ = "/t/lib";
  EXPECT_EQ(Plan(Gpus()).shim.prepare.env.at("LD_LIBRARY_PATH"), "/t/lib");
}

TEST_F(LaunchPlanTest, WhatTheOperatorSaysOfTheNetworkComesBetweenTheAddressAndTheJob) {
  dispatch_.set_world_size(4);
  const auto env = [&] { return Plan(Gpus()).shim.ranks[1].env; };
  EXPECT_EQ(env().at("NCCL_SOCKET_IFNAME"), "=lo") << "the interface of 127.0.0.1, exactly";
  setup_.network = {{"NCCL_SOCKET_IFNAME", "=ib0"}, {"NCCL_IB_TC", "106"}, {"NCCL_DEBUG", "WARN"}};
  EXPECT_EQ(env().at("NCCL_SOCKET_IFNAME"), "=ib0");
  EXPECT_EQ(env().at("GLOO_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(env().at("NCCL_IB_TC"), "106");
  EXPECT_EQ(env().at("NCCL_DEBUG"), "WARN");
  EXPECT_EQ(
      Plan(Gpus()).rank.network_settings,
      (std::vector<std::string>{"NCCL_DEBUG=WARN", "NCCL_IB_TC=106", "NCCL_SOCKET_IFNAME==ib0"}));
  job_.compute.network_interface = "eth7";
  job_.compute.nccl_debug = "INFO";
  EXPECT_EQ(env().at("NCCL_SOCKET_IFNAME"), "=eth7");
  EXPECT_EQ(env().at("NCCL_DEBUG"), "INFO");
}

TEST_F(LaunchPlanTest, AnInterfaceThatIsNotThereIsTheJobsFaultOrTheNodes) {
  EXPECT_TRUE(CheckNetwork(job_, 2, 4, setup_).ok());
  setup_.network = {{"NCCL_SOCKET_IFNAME", "=no-such-one"}};
  const absl::Status of_node = CheckNetwork(job_, 2, 4, setup_);
  EXPECT_TRUE(absl::IsInternal(of_node)) << of_node;
  EXPECT_NE(Message(of_node).find("NCCL_SOCKET_IFNAME (sft-worker --network-env)"),
            std::string_view::npos);
  EXPECT_TRUE(CheckNetwork(job_, 4, 4, setup_).ok()) << "one node stays on its loopback interface";
  job_.compute.network_interface = "no-such-one";
  const absl::Status of_job = CheckNetwork(job_, 4, 4, setup_);
  EXPECT_TRUE(absl::IsInvalidArgument(of_job)) << of_job;
  job_.compute.network_interface = "lo";
  EXPECT_TRUE(CheckNetwork(job_, 2, 4, setup_).ok()) << "the job's word counts";
}

TEST_F(LaunchPlanTest, AJobThatAnswersRunsGenerateWithItsAdapter) {
  job_.job.kind = spec::kGenerateKind;
  staged_.adapter_files = {{"adapter_config.json", "/blobs/a"}};
  LaunchFiles files = Plan(Gpus());
  EXPECT_EQ(files.shim.ranks[1].argv[1], "generate");
  EXPECT_EQ(files.shim.ranks[1].argv[2], "--launch");
  EXPECT_EQ(files.rank.adapter_dir, setup_.AttemptDir("a-1") + "/adapter");
  staged_.adapter_files.clear();
  staged_.adapter_dir = "/models/mine";
  files = Plan(Gpus());
  EXPECT_EQ(files.rank.adapter_dir, "/models/mine");
  job_.job.kind = spec::kTrainingKind;
  EXPECT_EQ(Plan(Gpus()).shim.ranks[1].argv[1], "train");
}

}  // namespace
}  // namespace sft::worker
