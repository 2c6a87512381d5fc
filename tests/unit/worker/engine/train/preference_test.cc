#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "common/spec/visit.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"

// Whole runs on preferences: the same curve however rows are divided, with a reference that is
// computed once.

namespace sft::engine {
namespace {

constexpr double kTolerance = 2e-5;

// Pairs: a prompt, then an answer that counts upwards against one that counts downwards.
std::shared_ptr<const Dataset> Pairs(int count, bool prompt_too = false) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> marks;
  for (int pair = 0; pair < count; ++pair) {
    for (const int direction : {1, -1}) {
      std::vector<int32_t>& document = tokens.emplace_back();
      std::vector<uint8_t>& mark = marks.emplace_back();
      const int prompt = 2 + pair % 3;
      for (int i = 0; i < prompt + 4 + (pair + direction) % 3; ++i) {
        const int value = pair * 7 + (i < prompt ? i : prompt + direction * (i - prompt));
        document.push_back(((value % kTinyVocabulary) + kTinyVocabulary) % kTinyVocabulary);
        const uint8_t before =
            prompt_too && direction > 0 && i > 0 ? kPredicted | kBesideAnswer : 0;
        const uint8_t answer = direction > 0 ? kPredicted : kPredicted | kOfBadAnswer;
        mark.push_back(i < prompt ? before : answer);
      }
    }
  }
  return Dataset::FromDocuments(tokens, marks);
}

class PreferenceTest : public testing::TestWithParam<spec::Loss> {
 protected:
  PreferenceTest() {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    dir_ = std::filesystem::path(testing::TempDir()) / ("sft_preference_" + name);
    std::filesystem::remove_all(dir_);
    WriteTinyModel(dir_ / "model");
  }
  ~PreferenceTest() override { std::filesystem::remove_all(dir_); }

  // Twelve rows a step on all ranks.
  TrainerOptions Options(spec::Mode mode = spec::Mode::kLora, int world = 1,
                         int micro_batches = 1) const {
    TrainerOptions options = TinyRun(dir_ / "model", mode, world);
    spec::JobSpec& job = options.spec;
    job.training.loss = GetParam();
    job.training.preference.beta = GetParam() == spec::Loss::kSimPo ? 2.0 : 0.5;
    job.hyperparameters.per_device_batch = 12 / world / micro_batches;
    job.hyperparameters.gradient_accumulation_steps = micro_batches;
    job.hyperparameters.global_batch = 12;
    job.checkpoint.save_strategy = spec::SaveStrategy::kNo;
    options.train = Pairs(30, GetParam() == spec::Loss::kOrpo);
    return options;
  }

  static RecordingObserver Run(const TrainerOptions& options) {
    return RunTrainer(options, options.spec.compute.gpu_count)[0];
  }

  static void ExpectSameCurve(const RecordingObserver& a, const RecordingObserver& b) {
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, kTolerance * a.steps[i].loss) << i;
      EXPECT_NEAR(a.steps[i].grad_norm, b.steps[i].grad_norm, 1e-3 * a.steps[i].grad_norm) << i;
      EXPECT_NEAR(a.steps[i].preference->rewards_margins, b.steps[i].preference->rewards_margins,
                  1e-4)
          << i;
      EXPECT_NEAR(a.steps[i].preference->kl, b.steps[i].preference->kl, 1e-4) << i;
    }
  }

  std::filesystem::path dir_;
};

TEST_P(PreferenceTest, ARunLearnsToPreferTheChosenAnswers) {
  const RecordingObserver observer = Run(Options());
  ASSERT_EQ(observer.steps.size(), 6u);
  const StepReport &first = observer.steps.front(), &last = observer.steps.back();
  EXPECT_LT(last.loss, first.loss);
  ASSERT_TRUE(first.preference && last.preference);
  EXPECT_GT(last.preference->rewards_margins, first.preference->rewards_margins);
  EXPECT_GT(last.preference->rewards_accuracies, 0.8);
  EXPECT_TRUE(observer.consistency.consistent);
  EXPECT_THAT(observer.warnings, testing::IsEmpty());
  if (GetParam() == spec::Loss::kDpo) {
    EXPECT_NEAR(first.loss, std::log(2.0), 1e-6) << "the reference is the model before training";
    EXPECT_NEAR(first.preference->rewards_margins, 0.0, 1e-6);
  }
}

TEST_P(PreferenceTest, RanksAndMicroBatchesGiveTheSameCurve) {
  const RecordingObserver one = Run(Options());
  ExpectSameCurve(one, Run(Options(spec::Mode::kLora, 1, 3)));
  ExpectSameCurve(one, Run(Options(spec::Mode::kLora, 2, 2)));
  TrainerOptions sharded = Options(spec::Mode::kLora, 2);
  sharded.spec.parallelism.sharding = spec::Sharding::kFullShard;
  ExpectSameCurve(one, Run(sharded));
}

// The head's own gradient takes the path that makes the logits twice.
TEST_P(PreferenceTest, FullFineTuningIsTheSameSharded) {
  TrainerOptions whole = Options(spec::Mode::kFullFinetune);
  whole.spec.hyperparameters.learning_rate = 1e-3;
  TrainerOptions sharded = Options(spec::Mode::kFullFinetune, 2, 2);
  sharded.spec.hyperparameters.learning_rate = 1e-3;
  sharded.spec.parallelism.sharding = spec::Sharding::kFullShard;
  ExpectSameCurve(Run(whole), Run(sharded));
}

TEST_P(PreferenceTest, AQuantisedBaseIsItsOwnReference) {
  TrainerOptions options = Options();
  options.spec.training.use_qlora = true;
  options.spec.quantization.bits = 4;
  const RecordingObserver one = Run(options);
  EXPECT_LT(one.steps.back().loss, one.steps.front().loss);
  TrainerOptions sharded = Options(spec::Mode::kLora, 2);
  sharded.spec.training.use_qlora = true;
  sharded.spec.quantization.bits = 4;
  sharded.spec.parallelism.sharding = spec::Sharding::kFullShard;
  ExpectSameCurve(one, Run(sharded));
}

TEST_P(PreferenceTest, AResumedRunGoesOnWithTheSameBits) {
  TrainerOptions options = Options();
  options.cache_dir = dir_ / "cache";
  std::filesystem::create_directories(options.cache_dir);
  options.checkpoints.dir = dir_ / "checkpoints";
  options.spec.checkpoint.save_strategy = spec::SaveStrategy::kSteps;
  options.spec.checkpoint.save_steps = 3;
  const RecordingObserver whole = Run(options);
  TrainerOptions rest = options;
  rest.checkpoints.dir = dir_ / "more";
  rest.resume = {options.checkpoints.dir / "step-3", 3};
  const auto losses = [](const RecordingObserver& run) { return run.Losses(); };
  const std::vector<double> all = losses(whole);
  const std::vector<double> last(all.begin() + 3, all.end());
  const RecordingObserver resumed = Run(rest);
  EXPECT_EQ(losses(resumed), last);
  const bool has_reference = options.spec.has_reference();
  EXPECT_EQ(resumed.messages.find("as computed before") != std::string::npos, has_reference);
  // Without the files, or with damaged ones, the reference is computed again, from the base.
  for (const auto& entry : std::filesystem::directory_iterator(options.cache_dir)) {
    std::ofstream(entry.path(), std::ios::trunc) << "cut";
  }
  rest.checkpoints.dir = dir_ / "again";
  const RecordingObserver again = Run(rest);
  EXPECT_EQ(losses(again), last);
  EXPECT_EQ(again.messages.find("one pass over the rows") != std::string::npos, has_reference);
}

TEST_P(PreferenceTest, ValidationHasTheSameMetrics) {
  TrainerOptions options = Options();
  options.spec.training.validation.enabled = true;
  options.spec.training.validation.eval_steps = 3;
  options.validation = Pairs(5, GetParam() == spec::Loss::kOrpo);
  options.spec.hyperparameters.per_device_batch = 2;
  options.spec.hyperparameters.gradient_accumulation_steps = 6;
  const RecordingObserver one = Run(options);
  ASSERT_EQ(one.evals.size(), 3u);
  EXPECT_GE(one.validating, 3 * 3) << "a long pass is no hang: each micro-batch is told";
  ASSERT_TRUE(one.evals[0].preference);
  EXPECT_LT(one.evals[2].loss, one.evals[0].loss);
  TrainerOptions two = Options(spec::Mode::kLora, 2);
  two.spec.training.validation = options.spec.training.validation;
  two.validation = options.validation;
  const RecordingObserver divided = Run(two);
  for (size_t i = 0; i < one.evals.size(); ++i) {
    EXPECT_NEAR(divided.evals[i].loss, one.evals[i].loss, kTolerance * one.evals[i].loss);
    EXPECT_NEAR(divided.evals[i].preference->rewards_margins,
                one.evals[i].preference->rewards_margins, 1e-4);
  }
}

TEST_P(PreferenceTest, TheReferenceIsOfTheRowsThatTheTrainingReaches) {
  TrainerOptions options = Options();
  options.spec.hyperparameters.max_steps = 1;
  const RecordingObserver part = Run(options);
  const RecordingObserver whole = Run(Options());
  EXPECT_NEAR(part.steps[0].loss, whole.steps[0].loss, kTolerance);
  EXPECT_NEAR(part.steps[0].preference->kl, whole.steps[0].preference->kl, 1e-4);
  if (!options.spec.has_reference()) return;
  const int answers = options.spec.pairs() ? 24 : 12;
  EXPECT_THAT(part.messages, testing::HasSubstr(fmt::format("of {} answers", answers)));
  EXPECT_THAT(whole.messages, testing::HasSubstr("of 60 answers"));
  ASSERT_FALSE(part.progress.empty());
  EXPECT_EQ(part.progress[0], "reference 0/1");
}

class KtoTest : public PreferenceTest {};

TEST_P(KtoTest, GoodAnswersAloneAreOutOfBalanceAndToldSo) {
  TrainerOptions options = Options();
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> marks;
  const std::shared_ptr<const Dataset> pairs = Pairs(30);
  for (int64_t row = 0; row < pairs->size(); row += 2) {
    const Document good = pairs->Get(row);
    tokens.emplace_back(good.tokens.begin(), good.tokens.end());
    marks.emplace_back(good.loss.begin(), good.loss.end());
  }
  options.train = Dataset::FromDocuments(tokens, marks);
  const RecordingObserver observer = Run(options);
  ASSERT_EQ(observer.warnings.size(), 1u);
  EXPECT_THAT(observer.warnings[0], testing::HasSubstr("30 good answers and no bad ones"));
  EXPECT_TRUE(std::isnan(observer.steps[0].preference->rewards_rejected));
  EXPECT_LT(observer.steps.back().loss, observer.steps.front().loss);
}

INSTANTIATE_TEST_SUITE_P(Losses, KtoTest, testing::Values(spec::Loss::kKto));

INSTANTIATE_TEST_SUITE_P(Losses, PreferenceTest,
                         testing::Values(spec::Loss::kDpo, spec::Loss::kOrpo, spec::Loss::kSimPo,
                                         spec::Loss::kKto),
                         [](const auto& info) { return std::string(spec::EnumName(info.param)); });

}  // namespace
}  // namespace sft::engine
