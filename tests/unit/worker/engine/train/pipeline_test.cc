#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"

// Whole runs over the stages of a pipeline against runs of the same rows without one: the same bits
// in every loss, norm and delivered weight.

namespace sft::engine {
namespace {

using ::testing::HasSubstr;

enum class Method { kFull, kLora, kQlora, kLora8bit };

// How the ranks of a run are laid out.
struct Ranks {
  int stages = 1;
  int pieces = 1;  // of a stage
  int rows = 1;    // ranks that take different ones
  spec::Sharding sharding = spec::Sharding::kDdp;

  std::string Name() const {
    return fmt::format("{} stages of {} pieces, {} rows, sharding {}", stages, pieces, rows,
                       static_cast<int>(sharding));
  }
};

class PipelineTest : public testing::Test {
 protected:
  PipelineTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + info->name();
    std::replace(name.begin(), name.end(), '/', '_');
    dir_ = std::filesystem::path(testing::TempDir()) / ("sft_" + name);
    std::filesystem::remove_all(dir_);
    WriteModel("");
  }
  ~PipelineTest() override { std::filesystem::remove_all(dir_); }

  // Eight layers; `extra`: more members of its config.json.
  void WriteModel(const std::string& extra) const {
    WriteTinyModel(dir_ / "model", TinyConfig(", \"num_hidden_layers\": 8" + extra));
  }

  TrainerOptions Options(Method method, const Ranks& ranks, int accumulation) const {
    const int world = ranks.stages * ranks.rows;
    const bool full = method == Method::kFull;
    TrainerOptions options =
        TinyRun(dir_ / "model", full ? spec::Mode::kFullFinetune : spec::Mode::kLora, world);
    spec::JobSpec& job = options.spec;
    job.training.use_qlora = method == Method::kQlora || method == Method::kLora8bit;
    job.quantization.bits = !job.training.use_qlora ? 0 : method == Method::kLora8bit ? 8 : 4;
    job.parallelism.sharding = ranks.sharding;
    job.parallelism.pipeline_parallel_size = ranks.stages;
    job.parallelism.virtual_pipeline_parallel_size = ranks.pieces;
    job.parallelism.ddp_bucket_cap_mb = 0.01;  // several buckets
    job.hyperparameters.gradient_accumulation_steps = accumulation;
    job.hyperparameters.global_batch = 2 * ranks.rows * accumulation;
    job.hyperparameters.max_steps = 4;
    job.checkpoint.save_strategy = spec::SaveStrategy::kNo;
    // The last step of an epoch is short: ranks are left without rows.
    options.train = CountingRows(27);
    options.validation = CountingRows(9);
    job.training.validation.enabled = true;
    job.training.validation.eval_steps = 2;
    options.output_dir = dir_ / fmt::format("output-{}", outputs_++);
    return options;
  }

  RecordingObserver Run(const TrainerOptions& options) const {
    const auto observers = RunTrainer(options, options.spec.compute.gpu_count);
    for (const RecordingObserver& other : observers) {
      EXPECT_EQ(other.Losses(), observers[0].Losses());
      EXPECT_TRUE(other.consistency.consistent);
    }
    return observers[0];
  }

  static std::map<std::string, std::string> FilesOf(const std::filesystem::path& dir) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      files[entry.path().lexically_relative(dir).string()] =
          std::string(std::istreambuf_iterator<char>(file), {});
    }
    return files;
  }

  static void ExpectSameBits(const RecordingObserver& actual, const RecordingObserver& expected) {
    ASSERT_EQ(actual.steps.size(), expected.steps.size());
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      EXPECT_EQ(actual.steps[i].loss, expected.steps[i].loss) << i;
      EXPECT_EQ(actual.steps[i].grad_norm, expected.steps[i].grad_norm) << i;
      EXPECT_EQ(actual.steps[i].tokens, expected.steps[i].tokens) << i;
    }
    ASSERT_EQ(actual.evals.size(), expected.evals.size());
    for (size_t i = 0; i < expected.evals.size(); ++i) {
      EXPECT_EQ(actual.evals[i].loss, expected.evals[i].loss) << i;
    }
    EXPECT_EQ(actual.consistency.weights_sha256, expected.consistency.weights_sha256);
    ASSERT_EQ(actual.artifacts.size(), 1u);
    EXPECT_EQ(FilesOf(actual.artifacts[0].path), FilesOf(expected.artifacts[0].path));
  }

  // A pipeline of `ranks` against the same rows without one; `change` is made to both jobs.
  void ExpectBitsOfOneStage(
      Method method, const Ranks& ranks, int accumulation,
      const std::function<void(TrainerOptions&)>& change = [](TrainerOptions&) {}) const {
    SCOPED_TRACE(ranks.Name());
    TrainerOptions whole =
        Options(method, {.rows = ranks.rows, .sharding = ranks.sharding}, accumulation);
    TrainerOptions divided = Options(method, ranks, accumulation);
    change(whole);
    change(divided);
    ExpectSameBits(Run(divided), Run(whole));
  }

  std::filesystem::path dir_;
  mutable int outputs_ = 0;
};

class PipelineMethodTest : public PipelineTest, public testing::WithParamInterface<Method> {};

TEST_P(PipelineMethodTest, EveryNumberOfStagesAndPiecesHasTheBitsOfOneRank) {
  for (const int accumulation : {1, 5}) {
    const RecordingObserver whole = Run(Options(GetParam(), {}, accumulation));
    for (const int pieces : {1, 2}) {
      for (const int stages : {2, 3, 4}) {
        const Ranks ranks{.stages = stages, .pieces = pieces};
        SCOPED_TRACE(fmt::format("{}, accumulation {}", ranks.Name(), accumulation));
        ExpectSameBits(Run(Options(GetParam(), ranks, accumulation)), whole);
      }
    }
  }
}

TEST_P(PipelineMethodTest, ShardsAndReplicasOfStagesHaveTheBitsOfThoseOfTheWholeModel) {
  for (const auto sharding : {spec::Sharding::kDdp, spec::Sharding::kZero1, spec::Sharding::kZero2,
                              spec::Sharding::kFullShard}) {
    ExpectBitsOfOneStage(GetParam(), {.stages = 2, .rows = 2, .sharding = sharding}, 3);
  }
  ExpectBitsOfOneStage(
      GetParam(), {.stages = 2, .pieces = 2, .rows = 2, .sharding = spec::Sharding::kFullShard}, 2);
}

std::string NameOf(const testing::TestParamInfo<Method>& info) {
  static constexpr const char* kNames[] = {"Full", "Lora", "Qlora", "Lora8bit"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Methods, PipelineMethodTest,
                         testing::Values(Method::kFull, Method::kLora, Method::kQlora,
                                         Method::kLora8bit),
                         NameOf);

TEST_F(PipelineTest, PackedRowsOfUnlikeLengthsTravel) {
  ExpectBitsOfOneStage(Method::kLora, {.stages = 3}, 4, [](TrainerOptions& options) {
    options.spec.data.packing = true;
    options.spec.hyperparameters.sequence_length = 31;
    options.spec.hyperparameters.per_device_batch = 1;
    options.spec.hyperparameters.global_batch /= 2;
  });
}

TEST_F(PipelineTest, MasksAndNoiseAreThoseOfTheRankThatHoldsAll) {
  for (const int rows : {1, 2}) {
    ExpectBitsOfOneStage(Method::kLora, {.stages = 2, .rows = rows}, 3,
                         [](TrainerOptions& options) {
                           options.spec.lora.dropout = 0.1;
                           options.spec.hyperparameters.neftune_noise_alpha = 5;
                         });
  }
}

// Stages below the first adapter run no backward and are sent no gradient; the first has nothing
// to update.
TEST_F(PipelineTest, AdaptersOfUpperLayersAlone) {
  for (const int pieces : {1, 2}) {
    ExpectBitsOfOneStage(Method::kLora, {.stages = 4, .pieces = pieces}, 3,
                         [](TrainerOptions& options) {
                           options.spec.lora.target_modules = {"layers.5.self_attn.q_proj",
                                                               "layers.7.mlp.down_proj"};
                         });
  }
}

TEST_F(PipelineTest, RecomputedActivationsChangeNothing) {
  ExpectBitsOfOneStage(Method::kFull, {.stages = 2}, 3, [](TrainerOptions& options) {
    options.spec.parallelism.activation_checkpointing = true;
  });
}

TEST_F(PipelineTest, DoraMeasuresTheRowsOfItsOwnStage) {
  ExpectBitsOfOneStage(Method::kLora, {.stages = 2}, 2,
                       [](TrainerOptions& options) { options.spec.lora.use_dora = true; });
}

// A frozen table has a copy beside the head.
TEST_F(PipelineTest, AFrozenTableThatIsTheHeadToo) {
  WriteModel(", \"tie_word_embeddings\": true");
  ExpectBitsOfOneStage(Method::kLora, {.stages = 3}, 3);
  ExpectBitsOfOneStage(Method::kQlora,
                       {.stages = 2, .rows = 2, .sharding = spec::Sharding::kFullShard}, 2);
}

// A trained one is summed over both stages: lookups and logits are added up apart, so the last bits
// may differ, and nothing else.
TEST_F(PipelineTest, ATrainedTableThatIsTheHeadTooIsSummedOverBothStages) {
  WriteModel(", \"tie_word_embeddings\": true");
  for (const auto sharding : {spec::Sharding::kDdp, spec::Sharding::kFullShard}) {
    for (const int rows : {1, 2}) {
      const Ranks ranks{.stages = 3, .rows = rows, .sharding = sharding};
      SCOPED_TRACE(ranks.Name());
      const RecordingObserver whole =
          Run(Options(Method::kFull, {.rows = rows, .sharding = sharding}, 3));
      const RecordingObserver divided = Run(Options(Method::kFull, ranks, 3));
      for (size_t i = 0; i < whole.steps.size(); ++i) {
        EXPECT_NEAR(divided.steps[i].loss, whole.steps[i].loss, 1e-6 * whole.steps[i].loss);
        EXPECT_NEAR(divided.steps[i].grad_norm, whole.steps[i].grad_norm,
                    1e-5 * whole.steps[i].grad_norm);
      }
    }
  }
}

TEST_F(PipelineTest, ACheckpointOfFourStagesGoesOnWithoutAPipelineAndBack) {
  const auto save = [&](TrainerOptions options, int64_t step, const std::string& name) {
    options.checkpoints.dir = dir_ / name;
    options.spec.checkpoint.save_strategy = spec::SaveStrategy::kSteps;
    options.spec.checkpoint.save_steps = static_cast<int>(step);
    return options;
  };
  for (const Method method : {Method::kFull, Method::kLora}) {
    const Ranks stages{.stages = 4, .pieces = 2}, one{};
    const RecordingObserver straight = Run(Options(method, one, 2));
    for (const auto& [from, to] : {std::pair(stages, one), std::pair(one, stages)}) {
      SCOPED_TRACE(from.Name() + " to " + to.Name());
      std::filesystem::remove_all(dir_ / "saved");
      Run(save(Options(method, from, 2), 2, "saved"));
      TrainerOptions second = Options(method, to, 2);
      second.resume.dir = dir_ / "saved" / "step-2";
      const RecordingObserver resumed = Run(second);
      ASSERT_EQ(resumed.steps.size(), 2u);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(resumed.steps[i].loss, straight.steps[i + 2].loss);
        EXPECT_EQ(resumed.steps[i].grad_norm, straight.steps[i + 2].grad_norm);
      }
      EXPECT_EQ(resumed.consistency.weights_sha256, straight.consistency.weights_sha256);
    }
  }
}

TEST_F(PipelineTest, ATableOfModulesIsObeyed) {
  ExpectBitsOfOneStage(Method::kLora, {.stages = 2}, 2, [](TrainerOptions& options) {
    if (options.spec.parallelism.pipeline_parallel_size == 1) return;
    options.spec.parallelism.device_map = {"model=0", "model.layers.6=1", "model.layers.7=1",
                                           "model.norm=1", "lm_head=1"};
  });
}

// The neighbours say which stage did not come, and with what.
TEST_F(PipelineTest, AStageThatHasGoneIsNamedByThoseThatWaitForIt) {
  TrainerOptions options = Options(Method::kLora, {.stages = 3}, 4);
  std::vector<std::string> said(3);
  RunRanksOverGloo(
      3,
      [&](Communicator& comm) {
        RecordingObserver observer;
        const auto rank = static_cast<size_t>(comm.rank());
        if (rank == 1) {
          observer.on_step = [](int64_t) { throw InternalError("this stage is gone"); };
        }
        try {
          Trainer(options, comm, observer).Run();
        } catch (const Error& error) {
          said[rank] = error.what();
        }
      },
      std::chrono::seconds(20));
  EXPECT_EQ(said[1], "this stage is gone");
  EXPECT_THAT(said[0], HasSubstr("stage 0 of 3 waited for stage 1 to "));
  EXPECT_THAT(said[2], HasSubstr("stage 2 of 3 waited for stage 1 to send the activations of "
                                 "micro-batch 0"));
}

TEST_F(PipelineTest, MoreStagesThanLayersAreRefused) {
  try {
    Run(Options(Method::kLora, {.stages = 3, .pieces = 4}, 2));
    FAIL() << "12 pieces of 8 layers";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("12 pieces, and it has 8 layers: at most 2 pieces "
                                        "in each of 3 stages"));
  }
}

}  // namespace
}  // namespace sft::engine
