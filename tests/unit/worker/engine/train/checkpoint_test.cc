#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"

// When checkpoints are made, what is refused as one, and what a failing disk does to a training.

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : dir_(io::MakeTempDir("sft-checkpoint-test-").value()) {
    WriteTinyModel(dir_ / "model");
  }
  ~CheckpointTest() override { fs::remove_all(dir_); }

  fs::path Place() const { return dir_ / "checkpoints"; }
  fs::path Step(int64_t step) const { return Place() / CheckpointName(step); }

  TrainerOptions Options(int world = 1) const {
    TrainerOptions options = TinyRun(dir_ / "model", spec::Mode::kLora, world);
    options.checkpoints.dir = Place();
    options.spec.checkpoint.save_strategy = spec::SaveStrategy::kNo;
    return options;
  }
  TrainerOptions Every(int64_t steps, int world = 1) const {
    TrainerOptions options = Options(world);
    options.spec.checkpoint.save_strategy = spec::SaveStrategy::kSteps;
    options.spec.checkpoint.save_steps = static_cast<int>(steps);
    return options;
  }
  // Validates after each step. The loss falls, so with `greater` the first step is the best.
  static void Validate(TrainerOptions& options, bool greater) {
    options.validation = CountingRows(5);
    auto& validation = options.spec.training.validation;
    validation.enabled = true;
    validation.eval_steps = 1;
    validation.save_best_model_at_end = true;
    validation.greater_is_better = greater;
  }

  static RecordingObserver Run(const TrainerOptions& options, int64_t ask = -1, int64_t stop = -1) {
    const auto prepare = [&](std::vector<RecordingObserver>& observers) {
      observers.back().ask_after = ask;
      observers.back().stop_after = stop;
    };
    return RunTrainer(options, options.spec.compute.gpu_count, prepare)[0];
  }

  // What a run from `dir` is refused with: "<domain> <code>: <message>".
  static std::string Refusal(TrainerOptions options, const fs::path& dir,
                             const CheckpointLoader::Options& how = {}) {
    options.checkpoints.dir.clear();
    options.resume = how;
    options.resume.dir = dir;
    const auto text = [](const char* domain, const Error& error) {
      return std::string(domain) + " " + error.code() + ": " + error.what();
    };
    try {
      Run(options);
    } catch (const UserError& error) {
      return text("user", error);
    } catch (const InfrastructureError& error) {
      return text("infrastructure", error);
    }
    return "accepted";
  }

  // Names in the folder of checkpoints.
  std::vector<std::string> Names() const {
    return io::ListDir(Place().string()).value_or(std::vector<std::string>());
  }

  fs::path dir_;
};

void Edit(const fs::path& path, const std::function<void(std::string&)>& edit) {
  std::string text = io::ReadFile(path.string()).value();
  edit(text);
  std::ofstream(path, std::ios::binary) << text;
}

TEST_F(CheckpointTest, DamageIsRefusedOnEveryRankNamingTheFile) {
  TrainerOptions options = Every(3, 2);
  options.spec.parallelism.sharding = spec::Sharding::kZero2;
  Run(options);
  const std::string shard = "rank-1-of-2.safetensors";
  struct Damage {
    std::function<void(const fs::path&)> make;
    std::vector<std::string> says;
  };
  const Damage damages[] = {
      {[&](const fs::path& at) { fs::resize_file(at / shard, fs::file_size(at / shard) - 1); },
       {"infrastructure checkpoint_damaged", shard, "bytes, was written with"}},
      {[&](const fs::path& at) { Edit(at / shard, [](std::string& text) { text.back() ^= 1; }); },
       {"infrastructure checkpoint_damaged", shard, "was changed after it was written"}},
      {[&](const fs::path& at) { fs::remove(at / shard); },
       {"infrastructure checkpoint_damaged", shard, "is missing", "written by rank 1"}},
      {[](const fs::path& at) { fs::remove(at / "manifest.json"); },
       {"infrastructure checkpoint_damaged", "no complete checkpoint"}},
      {[](const fs::path& at) { fs::resize_file(at / "manifest.json", 100); },
       {"infrastructure checkpoint_damaged", "manifest.json is cut short"}},
      {[](const fs::path& at) {
         Edit(at / "manifest.json",
              [](std::string& text) { text.replace(text.find("\"step\": 3"), 9, "\"step\": 2"); });
       },
       {"infrastructure checkpoint_damaged", "manifest.json is not as it was written"}},
      {[](const fs::path& at) {
         Edit(at / "manifest.json", [](std::string& text) {
           text.replace(text.find("\"format_version\": 1"), 19, "\"format_version\": 2");
         });
       },
       {"user checkpoint_newer", "has format 2", "reads formats up to 1"}},
  };
  for (const Damage& damage : damages) {
    const fs::path copy = dir_ / "damaged";
    fs::remove_all(copy);
    fs::copy(Step(3), copy);
    damage.make(copy);
    const std::string refusal = Refusal(options, copy);
    for (const std::string& part : damage.says) EXPECT_THAT(refusal, HasSubstr(part));
  }
  EXPECT_EQ(Refusal(options, Step(3)), "accepted");
  EXPECT_THAT(Refusal(options, Step(4)), HasSubstr("no complete checkpoint"));
}

TEST_F(CheckpointTest, AnotherJobIsRefusedNamingWhatDiffers) {
  TrainerOptions options = Every(3);
  Run(options);
  const auto refusal = [&](const std::function<void(TrainerOptions&)>& change,
                           const CheckpointLoader::Options& how) {
    TrainerOptions other = options;
    change(other);
    return Refusal(other, Step(3), how);
  };
  struct Change {
    std::function<void(TrainerOptions&)> make;
    std::string says;
    bool acceptable;
  };
  const Change changes[] = {
      {[](TrainerOptions& o) { o.spec.lora.r = 8; }, "lora.r is 8, the checkpoint has 4", false},
      {[](TrainerOptions& o) { o.spec.lora.target_modules = {"q_proj"}; },
       "lora.target_modules is [\"q_proj\"], the checkpoint has [", false},
      {[](TrainerOptions& o) { o.spec.training.use_qlora = true; },
       "base.weights is nf4 with double quantisation, the checkpoint has as stored", false},
      {[](TrainerOptions& o) { o.spec.training.mode = spec::Mode::kFullFinetune; },
       "training.mode is full_finetune, the checkpoint has lora", false},
      {[this](TrainerOptions& o) {
         o.model_dir = dir_ / "other";
         WriteTinyModel(o.model_dir);
         Edit(o.model_dir / "model.safetensors", [](std::string& text) { text.back() ^= 1; });
       },
       "the model's weights are other than the checkpoint's", false},
      {[](TrainerOptions& o) { o.train = CountingRows(13); },
       "the rows of the training data are other than the checkpoint's", true},
      {[](TrainerOptions& o) { o.tokenizer = "other"; }, "the chat template or the tokenizer",
       true},
      {[](TrainerOptions& o) { o.spec.hyperparameters.learning_rate = 1e-3; },
       "hyperparameters.learning_rate is 0.001, the checkpoint has 0.005", true},
      {[](TrainerOptions& o) { o.spec.hyperparameters.optimizer = spec::Optimizer::kAdamW8bit; },
       "hyperparameters.optimizer is adamw_8bit, the checkpoint has adamw", true},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.says);
    const auto says = AllOf(HasSubstr("user checkpoint_mismatch"), HasSubstr(change.says));
    EXPECT_THAT(refusal(change.make, {}), says);
    EXPECT_EQ(refusal(change.make, {.changed = true}) == "accepted", change.acceptable);
    // What the job itself wrote, after its files were changed.
    EXPECT_THAT(refusal(change.make, {.changed = true, .engine_alone = true}), says);
  }
  EXPECT_EQ(Refusal(options, Step(3), {.changed = true, .engine_alone = true}), "accepted");
}

TEST_F(CheckpointTest, StatesOfAnotherStepAreDamage) {
  const TrainerOptions options = Every(3);
  Run(options);
  EXPECT_EQ(Refusal(options, Step(3), {.step = 3}), "accepted");
  EXPECT_THAT(Refusal(options, Step(3), {.step = 6}),
              AllOf(HasSubstr("infrastructure checkpoint_damaged"), HasSubstr("of step 3")));
}

TEST_F(CheckpointTest, AcceptedDifferencesAreReported) {
  TrainerOptions options = Every(3);
  Run(options);
  options.spec.hyperparameters.learning_rate = 1e-3;
  options.spec.hyperparameters.max_steps = 8;
  options.resume = {.dir = Step(3), .changed = true};
  const RecordingObserver observer = Run(options);
  ASSERT_EQ(observer.resumed.size(), 1u);
  EXPECT_THAT(observer.resumed[0].changes,
              ElementsAre(HasSubstr("learning_rate is 0.001"), HasSubstr("total_steps is 8")));
  EXPECT_EQ(observer.steps.size(), 5u);
}

TEST_F(CheckpointTest, AFullDiskIsAWarningAndTheNextCheckpointIsMade) {
  const std::vector<double> expected = Run(Options(2)).Losses();
  rlimit former{};
  getrlimit(RLIMIT_FSIZE, &former);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const auto limit = [&](rlim_t bytes) {
    const rlimit now{bytes, former.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  };
  const auto prepare = [&](std::vector<RecordingObserver>& observers) {
    observers[0].on_step = [&](int64_t step) {
      if (step == 3) limit(64);
    };
    observers[0].on_message = [&](std::string_view) { limit(former.rlim_cur); };
  };
  const auto observers = RunTrainer(Every(3, 2), 2, prepare);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(observers[0].Losses(), expected);
  EXPECT_THAT(observers[0].messages,
              AllOf(HasSubstr("WARNING: the checkpoint of step 3 was not written"),
                    HasSubstr("step-3.partial/rank-0-of-2.safetensors: File too large"),
                    HasSubstr("the training goes on")));
  EXPECT_THAT(Names(), ElementsAre("step-6"));
}

TEST_F(CheckpointTest, AFolderThatCannotBeMadeOnOneRankDropsTheCheckpointOnAll) {
  TrainerOptions options = Every(3, 2);
  options.spec.parallelism.sharding = spec::Sharding::kZero2;
  std::ofstream(dir_ / "file") << "no folder";
  std::vector<RecordingObserver> observers(2);
  RunRanks(2, [&](Communicator& comm) {
    TrainerOptions own = options;
    own.checkpoints = {comm.rank() == 0 ? Place() : dir_ / "file" / "checkpoints", comm.rank(), 1};
    Trainer(own, comm, observers[comm.rank()]).Run();
  });
  EXPECT_THAT(observers[0].messages, HasSubstr("step 3 was not written: rank 1 failed"));
  EXPECT_THAT(observers[1].messages, HasSubstr("file/checkpoints"));
  EXPECT_THAT(observers[0].checkpoints, IsEmpty());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(observers[0].steps.size(), 6u);
}

TEST_F(CheckpointTest, WhatAKilledRunLeftIsRemovedAndTheFormerCheckpointServes) {
  Run(Options(), /*ask=*/3, /*stop=*/3);
  ASSERT_THAT(Names(), ElementsAre("step-3"));
  fs::create_directories(Place() / "step-4.partial");
  std::ofstream(Place() / "step-4.partial" / "rank-0-of-1.safetensors.partial") << "half";
  TrainerOptions options = Every(100);
  options.resume.dir = Step(3);
  EXPECT_EQ(Run(options).steps.size(), 3u);
  EXPECT_THAT(Names(), ElementsAre("step-3"));
}

TEST_F(CheckpointTest, ACheckpointOfTheSameStepIsReplaced) {
  Run(Every(3));
  TrainerOptions options = Every(3);
  options.resume.dir = Step(3);
  const RecordingObserver observer = Run(options);
  EXPECT_THAT(Names(), ElementsAre("step-3", "step-6"));
  options.resume.dir = Step(6);
  EXPECT_THAT(Run(options).steps, IsEmpty());
}

TEST_F(CheckpointTest, OneThatIsAskedForOnAnyRankIsMadeAtThatStep) {
  const RecordingObserver observer = Run(Options(2), /*ask=*/2);
  ASSERT_EQ(observer.checkpoints.size(), 1u);
  const CheckpointReport& report = observer.checkpoints[0];
  EXPECT_EQ(report.step, 2);
  EXPECT_EQ(report.reason, "asked");
  EXPECT_EQ(report.path, Step(2).string());
  EXPECT_GE(report.seconds, report.stall_seconds);
  EXPECT_FALSE(report.metric);
  int64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(Step(2))) {
    bytes += static_cast<int64_t>(file.file_size());
  }
  EXPECT_EQ(report.bytes, bytes);
}

TEST_F(CheckpointTest, AStopSavesFirstWhereACheckpointWasAskedForWithIt) {
  const RecordingObserver straight = Run(Options(2));
  const RecordingObserver stopped = Run(Options(2), /*ask=*/3, /*stop=*/3);
  ASSERT_EQ(stopped.checkpoints.size(), 1u);
  EXPECT_EQ(stopped.checkpoints[0].reason, "stopping");
  EXPECT_THAT(stopped.artifacts, IsEmpty());
  TrainerOptions options = Options(2);
  options.resume.dir = Step(3);
  const RecordingObserver resumed = Run(options);
  EXPECT_EQ(resumed.consistency.weights_sha256, straight.consistency.weights_sha256);
}

TEST_F(CheckpointTest, AStopAloneLeavesNothingHalfWritten) {
  Run(Every(1, 2), -1, 2);
  for (const std::string& name : Names()) EXPECT_THAT(name, Not(HasSubstr("partial")));
}

TEST_F(CheckpointTest, AskingWithoutAFolderIsAMessage) {
  TrainerOptions options = Options();
  options.checkpoints = {};
  EXPECT_THAT(Run(options, 2).messages, HasSubstr("has no folder"));
}

// Advanced by the training thread, read by the one that writes too.
class SharedClock : public Clock {
 public:
  WallTime Wall() const override { return WallTime(Nanos(now_)); }
  MonoTime Mono() const override { return MonoTime(Nanos(now_)); }
  void Sleep(Nanos duration) override { now_ += duration.count(); }

 private:
  std::atomic<int64_t> now_ = 0;
};

TEST_F(CheckpointTest, TimeIsThatOfTheFirstRank) {
  TrainerOptions options = Options(2);
  options.spec.checkpoint.save_strategy = spec::SaveStrategy::kTime;
  options.spec.checkpoint.save_minutes = 10;
  options.spec.hyperparameters.max_steps = 9;
  SharedClock clocks[2];
  std::vector<RecordingObserver> observers(2);
  RunRanks(2, [&](Communicator& comm) {
    SharedClock& clock = clocks[comm.rank()];
    // Rank 1's goes an hour a step.
    const Nanos step_time = std::chrono::minutes(comm.rank() == 0 ? 3 : 60);
    observers[comm.rank()].on_step = [&clock, step_time](int64_t) { clock.Sleep(step_time); };
    Trainer(options, comm, observers[comm.rank()], clock).Run();
  });
  ASSERT_EQ(observers[0].checkpoints.size(), 1u);
  EXPECT_EQ(observers[0].checkpoints[0].step, 5);  // 12 minutes after the start
  EXPECT_EQ(observers[0].checkpoints[0].reason, "time");
  EXPECT_THAT(observers[1].checkpoints, IsEmpty());
}

TEST_F(CheckpointTest, EpochsEndWithOne) {
  TrainerOptions options = Options();
  options.train = CountingRows(6);  // three steps
  options.spec.checkpoint.save_strategy = spec::SaveStrategy::kEpoch;
  const RecordingObserver observer = Run(options);
  EXPECT_THAT(Names(), ElementsAre("step-3", "step-6"));
  EXPECT_EQ(observer.checkpoints.back().reason, "epoch");
}

TEST_F(CheckpointTest, TheBestStepIsSavedDeliveredAndSurvivesAResume) {
  TrainerOptions options = Every(100);
  Validate(options, /*greater=*/true);
  const RecordingObserver straight = Run(options);
  ASSERT_EQ(straight.checkpoints.size(), 1u) << straight.messages;
  EXPECT_EQ(straight.checkpoints[0].step, 1);
  EXPECT_EQ(straight.checkpoints[0].reason, "best");
  EXPECT_TRUE(straight.checkpoints[0].best);
  EXPECT_EQ(straight.checkpoints[0].metric, straight.evals.at(1).loss);
  EXPECT_THAT(straight.messages, HasSubstr("delivering the weights of step 1, whose val.loss"));

  const RecordingObserver stopped = Run(options, /*ask=*/4, /*stop=*/4);
  ASSERT_EQ(stopped.checkpoints.size(), 2u) << stopped.messages;
  EXPECT_FALSE(stopped.checkpoints[1].best);
  options.resume.dir = Step(4);
  const RecordingObserver resumed = Run(options);
  ASSERT_EQ(resumed.evals.size(), 2u);
  EXPECT_EQ(resumed.evals[0].step, 5);
  EXPECT_EQ(resumed.consistency.weights_sha256, straight.consistency.weights_sha256);
  options.resume.dir = Step(1);
  EXPECT_EQ(Run(options).consistency.weights_sha256, straight.consistency.weights_sha256);
}

TEST_F(CheckpointTest, PatienceEndsTheTrainingAndDelivers) {
  TrainerOptions options = Every(3);
  Validate(options, /*greater=*/true);
  options.spec.training.validation.early_stopping_patience = 2;
  const RecordingObserver observer = Run(options);
  EXPECT_EQ(observer.steps.size(), 3u);
  EXPECT_THAT(observer.messages, HasSubstr("the training ends after step 3"));
  EXPECT_EQ(observer.artifacts.size(), 1u);
  // What was saved there has nothing left to train.
  options.resume.dir = Step(3);
  const RecordingObserver resumed = Run(options);
  EXPECT_THAT(resumed.steps, IsEmpty());
  EXPECT_EQ(resumed.consistency.weights_sha256, observer.consistency.weights_sha256);
}

TEST_F(CheckpointTest, LargePartsAreSeveralFilesEachOfWhichIsVerified) {
  TrainerOptions options = Every(3, 2);
  options.spec.parallelism.sharding = spec::Sharding::kZero2;
  options.checkpoints.file_bytes = 2000;
  const std::vector<double> expected = Run(options).Losses();
  const Manifest manifest = ReadManifest(Step(3));
  size_t counts[2] = {};
  for (const CheckpointFile& file : manifest.files) {
    EXPECT_EQ(static_cast<uintmax_t>(file.size), fs::file_size(Step(3) / file.name));
    EXPECT_EQ(file.name, ShardName(file.rank, 2, counts[file.rank]++));
  }
  EXPECT_GT(counts[0], 2U);
  EXPECT_GT(counts[1], 2U);

  TrainerOptions again = options;
  again.checkpoints = {};
  again.resume.dir = Step(3);
  EXPECT_EQ(Run(again).Losses(), std::vector<double>(expected.begin() + 3, expected.end()));

  const std::string last = ShardName(1, 2, counts[1] - 1);
  Edit(Step(3) / last, [](std::string& text) { text.back() ^= 1; });
  EXPECT_THAT(Refusal(options, Step(3)), AllOf(HasSubstr("checkpoint_damaged"), HasSubstr(last)));
}

TEST_F(CheckpointTest, EachNodeHasTheFilesOfItsRanksAndTheFirstTheManifest) {
  for (const spec::Sharding sharding : {spec::Sharding::kFullShard, spec::Sharding::kDdp}) {
    TrainerOptions options = Every(3, 2);
    options.spec.parallelism.sharding = sharding;
    std::vector<RecordingObserver> observers(2);
    RunRanks(2, [&](Communicator& comm) {
      TrainerOptions own = options;
      own.checkpoints = {dir_ / (comm.rank() == 0 ? "a" : "b"), comm.rank(), 1};
      Trainer(own, comm, observers[comm.rank()]).Run();
    });
    const fs::path a = dir_ / "a" / "step-3", b = dir_ / "b" / "step-3";
    const std::string other = "rank-1-of-2.safetensors";
    EXPECT_TRUE(fs::exists(a / "manifest.json"));
    EXPECT_FALSE(fs::exists(a / other));
    EXPECT_FALSE(fs::exists(b / "manifest.json"));
    ASSERT_TRUE(fs::exists(b / other));
    EXPECT_EQ(observers[1].checkpoints.at(0).bytes, static_cast<int64_t>(fs::file_size(b / other)));
    EXPECT_EQ(observers[1].checkpoints.at(0).path, b.string());
    EXPECT_THAT(Refusal(options, a), HasSubstr(other));
    fs::copy(b / other, a);
    EXPECT_EQ(Refusal(options, a), "accepted");
    // With adapters on every rank the second has nothing that the first has not.
    const auto shard = SafetensorsFile::Open(a / other);
    EXPECT_EQ(shard->tensors().empty(), sharding == spec::Sharding::kDdp);
    fs::remove_all(dir_ / "a");
    fs::remove_all(dir_ / "b");
  }
}

}  // namespace
}  // namespace sft::engine
