#include "worker/engine/train/answer_judge.h"

#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/engine/train/trainer.h"
#include "worker/engine/train/validation.h"

namespace sft::engine {
namespace {

class AnswerJudgeTest : public testing::Test {
 protected:
  AnswerJudgeTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::path(testing::TempDir()) / (std::string("sft_judge_") + info->name());
    std::filesystem::remove_all(dir_);
    WriteTinyModel(model_dir());
  }
  ~AnswerJudgeTest() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path model_dir() const { return dir_ / "model"; }
  static std::shared_ptr<const Dataset> Rows(int count) { return CountingRows(count); }
  TrainerOptions Options(spec::Mode mode, int world) const {
    return TinyRun(model_dir(), mode, world);
  }

  RecordingObserver RunOne(const TrainerOptions& options) {
    RecordingObserver observer;
    const auto comm = MakeLocalCommunicator(at::kCPU);
    Trainer trainer(options, *comm, observer);
    result_ = trainer.Run();
    return observer;
  }

  std::filesystem::path dir_;
  TrainResult result_;
};

// Says what a test wants.
class ScriptedJudge : public AnswerJudge {
 public:
  explicit ScriptedJudge(std::vector<std::optional<double>> values) : values_(std::move(values)) {}
  Verdict Judge(TrainingModel&, Communicator&, const std::function<bool()>& goes_on) override {
    EXPECT_TRUE(goes_on());
    const std::optional<double> value = values_.at(asked_++);
    if (!value) return {.note = "no row could be graded"};
    return {.metrics = {{"val.f1", *value}}, .rows = 5};
  }
  size_t asked() const { return asked_; }

 private:
  std::vector<std::optional<double>> values_;
  size_t asked_ = 0;
};

TEST_F(AnswerJudgeTest, TheBestByAnAnswerMetricIsKeptAndEndsTheTraining) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.validation = Rows(5);
  auto& validation = options.spec.training.validation;
  validation.enabled = true;
  validation.eval_steps = 1;
  validation.metric_for_best_model = "val.f1";
  validation.greater_is_better = true;
  validation.early_stopping_patience = 2;
  // Before the first step, then after each: step 2 is the best, step 3 has no metric.
  auto judge = std::make_shared<ScriptedJudge>(
      std::vector<std::optional<double>>{90, 10, 50, std::nullopt, 40, 30, 99});
  options.judge = judge;
  const RecordingObserver observer = RunOne(options);
  EXPECT_EQ(result_.steps, 5);
  EXPECT_EQ(judge->asked(), 6u);
  ASSERT_EQ(observer.evals.size(), 6u);
  EXPECT_EQ(observer.evals[2].metrics.at(0).name, "val.f1");
  EXPECT_EQ(observer.evals[2].metrics.at(0).value, 50);
  EXPECT_EQ(observer.evals[2].answered_rows, 5);
  EXPECT_TRUE(observer.evals[3].metrics.empty());
  EXPECT_EQ(observer.evals[3].note, "no row could be graded");
}

TEST_F(AnswerJudgeTest, WhatFollowsFromTheLossIsAMetricToo) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.validation = Rows(5);
  options.validation_bytes = 7;
  auto& validation = options.spec.training.validation;
  validation.enabled = true;
  validation.eval_steps = 1;
  validation.metric_for_best_model = "val.perplexity";
  validation.early_stopping_patience = 1;
  // No step is so much better than the one before.
  validation.early_stopping_threshold = 1e5;
  const RecordingObserver observer = RunOne(options);
  EXPECT_EQ(result_.steps, 2);
  int64_t targets = 0;
  for (int64_t i = 0; i < options.validation->size(); ++i) {
    targets += options.validation->LossTokens(i);
  }
  const EvalReport& eval = observer.evals.at(0);
  ASSERT_EQ(eval.of_loss.size(), 2u);
  EXPECT_EQ(eval.of_loss[0].name, "val.perplexity");
  EXPECT_DOUBLE_EQ(eval.of_loss[0].value, std::exp(eval.loss));
  EXPECT_EQ(eval.of_loss[1].name, "val.bits_per_byte");
  EXPECT_NEAR(eval.of_loss[1].value, eval.loss * static_cast<double>(targets) / 7 / std::log(2),
              1e-9);
  // Without the bytes there is no share of them; a loss that overflows has no perplexity.
  EXPECT_EQ(MetricsOfLoss({.loss = 1, .targets = 3}, 0).size(), 1u);
  EXPECT_TRUE(MetricsOfLoss({.loss = 1e6, .targets = 3}, 0).empty());
  EXPECT_TRUE(MetricsOfLoss({.loss = 1, .preference = PreferenceReport()}, 5).empty());
}

TEST_F(AnswerJudgeTest, RowsAreAnsweredInEveryNthValidationAndInTheLast) {
  TrainerOptions options = Options(spec::Mode::kLora, 1);
  options.validation = Rows(5);
  options.spec.training.validation.enabled = true;
  options.spec.training.validation.eval_steps = 1;
  options.spec.training.validation.generate_every = 4;
  options.judge = std::make_shared<ScriptedJudge>(std::vector<std::optional<double>>(3, 1.0));
  const RecordingObserver observer = RunOne(options);
  std::vector<int64_t> answered;
  for (const EvalReport& eval : observer.evals) {
    if (eval.answered_rows > 0) answered.push_back(eval.step);
  }
  EXPECT_EQ(answered, (std::vector<int64_t>{0, 4, 6}));
}

// Compares what pages say of a prompt with a forward of the model in training.
class ComparingJudge : public AnswerJudge {
 public:
  Verdict Judge(TrainingModel& model, Communicator& comm, const std::function<bool()>&) override {
    const std::vector<int32_t> prompt = {3, 9, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8};
    MicroBatch batch;
    const std::vector<uint8_t> loss(prompt.size(), 0);
    batch.Append({prompt, loss, 1});
    const at::Tensor expected = at::log_softmax(model.Logits(batch), 1);
    BatchGenerator generator(model.config(), model.decoder(), comm.device(), model.compute_type(),
                             /*optional_adapters=*/false, {.cache_tokens = 64});
    generator.Add({.prompt = prompt, .max_new_tokens = 0, .prompt_scores = true});
    std::vector<GenerationAnswer> answers;
    while (answers.empty()) answers = generator.Step();
    double worst = 0;
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      const double wanted = expected[static_cast<int64_t>(i)][prompt[i + 1]].item<double>();
      worst = std::max(worst, std::abs(answers[0].prompt_scores[i].log_probability - wanted));
    }
    return {.metrics = {{"val.difference", worst}}, .rows = 1};
  }
};

TEST_F(AnswerJudgeTest, TheModelInTrainingAnswersWithItsOwnWeights) {
  const struct {
    const char* name;
    spec::Mode mode;
    void (*change)(spec::JobSpec&);
  } cases[] = {
      {"full", spec::Mode::kFullFinetune, [](spec::JobSpec&) {}},
      {"lora", spec::Mode::kLora, [](spec::JobSpec&) {}},
      {"dora", spec::Mode::kLora, [](spec::JobSpec& job) { job.lora.use_dora = true; }},
      {"qlora", spec::Mode::kLora, [](spec::JobSpec& job) { job.training.use_qlora = true; }},
      {"dropout", spec::Mode::kLora, [](spec::JobSpec& job) { job.lora.dropout = 0.5; }},
      {"whole", spec::Mode::kLora,
       [](spec::JobSpec& job) { job.lora.modules_to_save = {"lm_head"}; }},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    TrainerOptions options = Options(each.mode, 1);
    each.change(options.spec);
    options.validation = Rows(5);
    options.spec.training.validation.enabled = true;
    options.spec.training.validation.eval_steps = 3;
    options.judge = std::make_shared<ComparingJudge>();
    const RecordingObserver observer = RunOne(options);
    ASSERT_EQ(observer.evals.size(), 3u);
    for (const EvalReport& eval : observer.evals) {
      EXPECT_LT(eval.metrics.at(0).value, 1e-4) << "after step " << eval.step;
    }
    // Answers change nothing of the training.
    options.judge = nullptr;
    EXPECT_EQ(RunOne(options).Losses(), observer.Losses());
  }
}

TEST_F(AnswerJudgeTest, RanksThatKeepWholeWeightsAnswerEachByItself) {
  for (const spec::Sharding sharding :
       {spec::Sharding::kDdp, spec::Sharding::kZero1, spec::Sharding::kZero2}) {
    TrainerOptions options = Options(spec::Mode::kFullFinetune, 2);
    options.spec.parallelism.sharding = sharding;
    options.validation = Rows(5);
    options.spec.training.validation.enabled = true;
    options.spec.training.validation.eval_steps = 3;
    options.judge = std::make_shared<ComparingJudge>();
    for (const RecordingObserver& observer : RunTrainer(options, 2)) {
      ASSERT_EQ(observer.evals.size(), 3u);
      EXPECT_LT(observer.evals[2].metrics.at(0).value, 1e-4);
    }
  }
}

}  // namespace
}  // namespace sft::engine
