#include "worker/rank/validation_answers.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/data/model_folder.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/train/training_model.h"

// Answers to validation rows by two ranks, which are threads.

namespace sft::rank {
namespace {

using engine::AnswerJudge;

constexpr int kRanks = 2, kRows = 6, kSeconds = 5;

// Its time goes on by itself while `leaps`: whoever looks at it twice is late.
class LeapingClock : public FakeClock {
 public:
  MonoTime Mono() const override {
    if (leaps) skipped_ += std::chrono::seconds(2 * kSeconds);
    return FakeClock::Mono() + skipped_;
  }
  bool leaps = false;

 private:
  mutable Nanos skipped_{0};
};

// Rows of six tokens, of which the last two are the answer.
std::shared_ptr<const engine::Dataset> Rows() {
  std::vector<std::vector<int32_t>> tokens;
  for (int32_t row = 0; row < kRows; ++row) tokens.push_back({5, 6, 7 + row, 8, 9, 10});
  return engine::Dataset::FromDocuments(
      tokens, std::vector<std::vector<uint8_t>>(kRows, {0, 0, 0, 0, 1, 1}));
}

TEST(ValidationAnswersTest, WhatAPartOfTheRanksAnsweredIsNoMetric) {
  const engine::ModelFolder text("", "<s>", "</s>");
  const auto tokenizer = engine::ChatTokenizer::Open(text.path(), {}, {.day = "2024-07-26"});
  const engine::TestFolder model_dir;
  engine::WriteTinyModel(model_dir.path());
  spec::JobSpec job;
  job.training.mode = spec::Mode::kLora;
  job.compute.gpu_count = job.compute.gpus_per_node = kRanks;
  job.training.validation.predict_with_generate = true;
  job.training.validation.generate_metrics = {"exact_match"};
  job.training.validation.generate_max_new_tokens = 4;
  job.training.validation.generate_seconds = kSeconds;
  std::array<std::vector<AnswerJudge::Verdict>, kRanks> verdicts;
  engine::RunRanks(kRanks, [&](engine::Communicator& comm) {
    const at::NoGradGuard no_grad;
    engine::TrainingModel model(job, model_dir.path(), comm);
    LeapingClock clock;
    const auto judge = MakeAnswerJudge(job, tokenizer, Rows(), Device(), clock);
    for (const bool late : {false, true, false}) {
      clock.leaps = late && comm.rank() == 1;
      verdicts[comm.rank()].push_back(judge->Judge(model, comm, [] { return true; }));
    }
  });
  for (const std::vector<AnswerJudge::Verdict>& of_rank : verdicts) {
    EXPECT_EQ(of_rank[0].rows, kRows);
    ASSERT_EQ(of_rank[0].metrics.size(), 1u);
    EXPECT_EQ(of_rank[0].metrics[0].name, "val.exact_match");
    // Rank 1 was late.
    EXPECT_EQ(of_rank[1].rows, 0);
    EXPECT_TRUE(of_rank[1].metrics.empty());
    // It answers fewer from then on.
    EXPECT_LT(of_rank[2].rows, kRows);
    EXPECT_GE(of_rank[2].rows, kRows / 2);
    EXPECT_EQ(of_rank[2].metrics.size(), 1u);
  }
  EXPECT_EQ(verdicts[0][1].note, "");
  EXPECT_THAT(verdicts[1][1].note, testing::HasSubstr("those of this validation do not count"));
}

}  // namespace
}  // namespace sft::rank
