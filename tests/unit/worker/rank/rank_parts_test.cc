#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/spec/job_json.h"
#include "worker/engine/base/error.h"
#include "worker/rank/command_input.h"
#include "worker/rank/event_log.h"
#include "worker/rank/failure.h"
#include "worker/rank/group_variables.h"
#include "worker/rank/launch_file.h"

namespace sft::rank {
namespace {

using ::testing::HasSubstr;

class RankPartsTest : public ::testing::Test {
 protected:
  RankPartsTest() : dir_(io::MakeTempDir("sft-rank-test-").value()) {}
  ~RankPartsTest() override { std::filesystem::remove_all(dir_); }
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::string Read(const std::string& name) const { return io::ReadFile(Path(name)).value(); }
  std::string dir_;
};

TEST_F(RankPartsTest, EventsAreAppendedOneLineEach) {
  FakeClock clock;
  {
    EventLog log = EventLog::Open(Path("e"), clock);
    log.Write(channel::StepEvent{.step = 1, .loss = 0.1});
  }
  EventLog log = EventLog::Open(Path("e"), clock);
  log.Write(channel::EvalEvent{.step = 1, .loss = std::numeric_limits<double>::quiet_NaN()});
  log.Sync();
  const std::string text = Read("e");
  const size_t end = text.find('\n');
  const auto step = ParseJson(text.substr(0, end));
  EXPECT_EQ(step["event"], "step");
  EXPECT_EQ(step["time"], 1'700'000'000.0);
  EXPECT_EQ(DumpJson(step["loss"]), "0.1");
  EXPECT_EQ(ParseJson(text.substr(end + 1))["loss"], "nan");
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(RankPartsTest, AFullDiskEndsTheEventFileAtAWholeLine) {
  FakeClock clock;
  EventLog log = EventLog::Open(Path("e"), clock);
  log.Write(channel::EvalEvent{.step = 1});
  const std::string before = Read("e");
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit previous{};
  getrlimit(RLIMIT_FSIZE, &previous);
  const rlimit limit{before.size() + 5, previous.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THROW(log.Write(channel::EvalEvent{.step = 2}), engine::InfrastructureError);
  setrlimit(RLIMIT_FSIZE, &previous);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(Read("e"), before);
}

TEST_F(RankPartsTest, AnEventFileThatCannotBeOpenedNamesItsPath) {
  FakeClock clock;
  try {
    EventLog::Open(Path("none/e"), clock);
    FAIL();
  } catch (const engine::InfrastructureError& error) {
    EXPECT_THAT(error.what(), HasSubstr("none/e"));
  }
}

class CommandInputTest : public ::testing::Test {
 protected:
  CommandInputTest() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_ = io::UniqueFd(ends[0]);
    write_ = io::UniqueFd(ends[1]);
  }
  void Send(const std::string& text) {
    EXPECT_EQ(write(write_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  io::UniqueFd read_, write_;
};

TEST_F(CommandInputTest, TakesCommandsThatArriveInPieces) {
  CommandInput input(read_.get());
  input.Poll();
  EXPECT_EQ(input.stop_reason(), "");
  Send("{\"command\":\"check");
  input.Poll();
  EXPECT_FALSE(input.TakeCheckpoint());
  Send("point\"}\nnot json\n{\"command\":\"dance\"}\n");
  input.Poll();
  EXPECT_TRUE(input.TakeCheckpoint());
  EXPECT_FALSE(input.TakeCheckpoint());
  EXPECT_EQ(input.stop_reason(), "");
  Send("{\"command\":\"stop\",\"reason\":\"cancelled by ann\"}\n");
  input.Poll();
  EXPECT_EQ(input.stop_reason(), "cancelled by ann");
}

TEST_F(CommandInputTest, TheEndOfTheInputMeansThatTheShimIsGone) {
  CommandInput input(read_.get());
  EXPECT_TRUE(write_.Close().ok());
  write_ = io::UniqueFd();
  input.Poll();
  EXPECT_THAT(input.stop_reason(), HasSubstr("shim"));
  input.Poll();
}

TEST_F(CommandInputTest, InputThatIsNoPipeNeverEnds) {
  const io::UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  CommandInput input(null.get());
  input.Poll();
  EXPECT_EQ(input.stop_reason(), "");
}

TEST(FailureTest, DomainsGiveTheExitCode) {
  const Failure user = DescribeFailure(engine::UserError("m", "nan_loss", "a"));
  EXPECT_EQ(user.event.domain, "user");
  EXPECT_EQ(user.event.code, "nan_loss");
  EXPECT_EQ(user.event.message, "m");
  EXPECT_EQ(user.event.advice, "a");
  EXPECT_EQ(user.exit_code, channel::kExitUserError);
  const Failure node = DescribeFailure(engine::InfrastructureError("m"));
  EXPECT_EQ(node.event.domain, "infrastructure");
  EXPECT_EQ(node.event.code, "infrastructure");
  EXPECT_EQ(node.exit_code, channel::kExitInfrastructure);
  EXPECT_EQ(DescribeFailure(engine::InternalError("m")).exit_code, channel::kExitInternal);
  EXPECT_EQ(DescribeFailure(std::runtime_error("m")).event.domain, "internal");
}

TEST(FailureTest, AnErrorOfLibTorchHasATraceForTheLog) {
  try {
    TORCH_CHECK(false, "sizes differ");
  } catch (const c10::Error& error) {
    const std::string trace = TraceOf(error);
    EXPECT_NE(trace.find("frame #0"), std::string::npos) << trace;
    EXPECT_EQ(trace.find("sizes differ"), std::string::npos) << trace;
  }
  EXPECT_EQ(TraceOf(std::runtime_error("m")), "");
  EXPECT_EQ(TraceOf(engine::InternalError("m")), "");
}

// The fatal event of a rank that ran out of memory, with one line of [hyperparameters].
channel::FatalEvent OutOfMemory(const spec::JobSpec& spec) {
  const c10::OutOfMemoryError oom({"f", "f.cpp", 1},
                                  "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee docs");
  return DescribeFailure(oom, {.rank = 3, .spec = &spec, .peak_memory_bytes = 79'100'000'000})
      .event;
}

TEST(FailureTest, MemoryThatRanOutNamesRankPeakAndTheKeysOfTheMethodWithTheirValues) {
  spec::JobSpec spec;
  spec.training.use_qlora = true;
  spec.hyperparameters.per_device_batch = 8;
  spec.hyperparameters.gradient_accumulation_steps = 2;
  spec.hyperparameters.sequence_length = 4096;
  spec.compute.gpu_count = 2;
  const channel::FatalEvent qlora = OutOfMemory(spec);
  EXPECT_EQ(qlora.domain, "user");
  EXPECT_EQ(qlora.code, "cuda_oom");
  EXPECT_EQ(qlora.message,
            "CUDA out of memory. Tried to allocate 2.00 GiB. (rank 3, peak 79.1 GB)");
  EXPECT_THAT(qlora.advice,
              testing::StartsWith("One of: lower per_device_batch (now 8) and raise "
                                  "gradient_accumulation_steps (now 2) by the same factor"));
  EXPECT_THAT(qlora.advice, HasSubstr("activation_checkpointing (gradient_checkpointing) (now "
                                      "false)"));
  EXPECT_THAT(qlora.advice, testing::Not(HasSubstr("load_in_4bit")));
  spec.training.use_qlora = false;
  EXPECT_THAT(OutOfMemory(spec).advice, HasSubstr("set use_qlora (load_in_4bit) (now false)"));
  spec.training.mode = spec::Mode::kFullFinetune;
  spec.parallelism.activation_checkpointing = true;
  spec.hyperparameters.per_device_batch = 0;
  const channel::FatalEvent full = OutOfMemory(spec);
  EXPECT_THAT(full.advice,
              testing::StartsWith("One of: shorten sequence_length (now 4096); raise gpu_count "
                                  "(now 2) and shard over them with fsdp = true or DeepSpeed ZeRO "
                                  "(now ddp); lower per_device_batch (now auto)"));
  EXPECT_THAT(full.advice, testing::Not(HasSubstr("load_in_4bit")));
  EXPECT_THAT(full.advice, testing::Not(HasSubstr("checkpointing")));
}

TEST(FailureTest, MemoryThatALibraryLackedIsToldTheSameWay) {
  const c10::Error nccl({"f", "f.cpp", 1}, "NCCL error: Failed to CUDA malloc: out of memory");
  EXPECT_EQ(DescribeFailure(nccl).event.code, "cuda_oom");
  EXPECT_EQ(DescribeFailure(nccl).event.message,
            "CUDA out of memory: NCCL error: Failed to CUDA malloc: out of memory");
}

// The message that the function throws with, "" when it returns.
template <typename Function>
std::string Thrown(const Function& function) {
  try {
    function();
    return "";
  } catch (const engine::UserError& error) {
    EXPECT_EQ(error.code(), "no_process_group");
    EXPECT_THAT(error.advice(), HasSubstr("RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and"));
    return error.what();
  }
}

TEST(GroupVariablesTest, ARankWithoutItsGroupSaysWhatIsMissing) {
  std::map<std::string, std::string> set;
  const EnvLookup env = [&](const std::string& name) {
    return set.contains(name) ? std::optional(set[name]) : std::nullopt;
  };
  const auto meet = [&](const channel::RankLaunch& launch) {
    return Thrown([&] { MeetingAddress(launch, env); });
  };
  channel::RankLaunch launch{.world_size = 2, .local_ranks = 2};
  EXPECT_EQ(meet(launch),
            "Process group not initialized: a rank of a world of 2 has no "
            "rendezvous: MASTER_ADDR and MASTER_PORT are not set");
  set["MASTER_ADDR"] = "10.0.0.1";
  EXPECT_THAT(meet(launch), HasSubstr("MASTER_PORT is not set"));
  set["MASTER_PORT"] = "12355";
  EXPECT_EQ(MeetingAddress(launch, env), "10.0.0.1:12355");
  set["MASTER_ADDR"] = "fe80::1";
  EXPECT_EQ(MeetingAddress(launch, env), "[fe80::1]:12355");
  set["WORLD_SIZE"] = "4";
  EXPECT_EQ(meet(launch),
            "Process group not initialized: WORLD_SIZE is 4, the launch file's "
            "world_size is 2");
  set["WORLD_SIZE"] = "2";
  launch.rendezvous = "h:1";
  EXPECT_EQ(MeetingAddress(launch, env), "h:1") << "the launch file's goes first";

  EXPECT_EQ(Thrown([&] { GlobalRank(-1, env); }),
            "Process group not initialized: neither --rank N nor RANK is given");
  set["RANK"] = "x";
  EXPECT_THAT(Thrown([&] { GlobalRank(-1, env); }), HasSubstr("RANK is \"x\", not a number"));
  set["RANK"] = "1";
  EXPECT_EQ(GlobalRank(-1, env), 1);
  EXPECT_EQ(GlobalRank(0, env), 0) << "the flag goes first";
  launch.first_rank = 4;
  EXPECT_EQ(LocalRank(5, launch, env), 1);
  set["LOCAL_RANK"] = "0";
  EXPECT_EQ(LocalRank(5, launch, env), 0);
}

TEST(FailureTest, MemoryThatRanOutAdvisesASmallerBatchOfTheSameResult) {
  const c10::OutOfMemoryError oom({"f", "f.cpp", 1},
                                  "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee docs");
  const Failure cuda = DescribeFailure(oom);
  EXPECT_EQ(cuda.event.domain, "user");
  EXPECT_EQ(cuda.event.code, "cuda_oom");
  EXPECT_EQ(cuda.event.message, "CUDA out of memory. Tried to allocate 2.00 GiB.");
  EXPECT_THAT(cuda.event.advice, HasSubstr("per_device_batch"));
  EXPECT_THAT(cuda.event.advice, HasSubstr("gradient_accumulation_steps"));
  EXPECT_EQ(DescribeFailure(std::bad_alloc()).event.code, "host_oom");
  const c10::Error device({"f", "f.cpp", 1}, "CUDA error: an illegal memory access");
  EXPECT_EQ(DescribeFailure(device).event.domain, "infrastructure");
  const c10::Error other({"f", "f.cpp", 1}, "shape mismatch");
  EXPECT_EQ(DescribeFailure(other).event.domain, "internal");
}

TEST_F(RankPartsTest, ALaunchFileIsReadWithItsJob) {
  spec::JobSpec spec;
  spec.hyperparameters.seed = 11;
  channel::RankLaunch launch{.job_json = DumpJson(spec::ToJson(spec)),
                             .device = "cpu",
                             .model_dir = "m",
                             .train_file = "t",
                             .cache_dir = "c",
                             .attempt_dir = dir_,
                             .output_dir = "o"};
  const auto put = [&] {
    EXPECT_TRUE(io::WriteFileAtomic(Path("launch.json"), channel::ToJson(launch)).ok());
    const auto result = ReadLaunch(Path("launch.json"));
    return result.ok() ? "read" : std::string(Message(result.status()));
  };
  EXPECT_EQ(put(), "read");
  EXPECT_EQ(ReadLaunch(Path("launch.json"))->spec.hyperparameters.seed, 11u);
  EXPECT_EQ(EventPath(*ReadLaunch(Path("launch.json")), "rank-0"), dir_ + "/rank-0.events");
  launch.device = "tpu";
  EXPECT_THAT(put(), HasSubstr("not \"tpu\""));
  launch.device = "cpu";
  launch.first_rank = 1;
  EXPECT_THAT(put(), HasSubstr("ranks 1 to 1"));
  launch.first_rank = 0;
  launch.train_file = "";
  EXPECT_THAT(put(), HasSubstr("train_file is empty"));
  launch.train_file = "t";
  launch.job_json = "{";
  EXPECT_THAT(put(), HasSubstr("job_json is not JSON"));
  EXPECT_THAT(Message(ReadLaunch(Path("none")).status()), HasSubstr("none"));
}

}  // namespace
}  // namespace sft::rank
