#include "worker/engine/data/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kIgnore = MicroBatch::kIgnore;

// Document i has `length(i)` tokens 1000 * i, 1000 * i + 1, ...; the second half carries loss.
std::shared_ptr<const Dataset> MakeDataset(int documents, int (*length)(int)) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> loss;
  for (int i = 0; i < documents; ++i) {
    tokens.emplace_back();
    loss.emplace_back();
    for (int j = 0; j < length(i); ++j) {
      tokens.back().push_back(1000 * i + j);
      loss.back().push_back(j >= length(i) / 2 ? 1 : 0);
    }
  }
  return Dataset::FromDocuments(tokens, loss);
}

std::shared_ptr<const Dataset> MakeDataset(int documents) {
  return MakeDataset(documents, [](int i) { return 2 + i % 5; });
}

// The documents (by their first token) that a step trains, over all ranks and micro-batches.
std::vector<int32_t> DocumentsOf(const StepPlan& plan, const Step& step, int world_size) {
  std::vector<int32_t> documents;
  int64_t tokens = 0;
  int64_t loss_tokens = 0;
  for (int micro = 0; micro < step.micro_batches; ++micro) {
    for (int rank = 0; rank < world_size; ++rank) {
      const MicroBatch batch = plan.GetMicroBatch(step, micro, rank);
      for (int64_t d = 0; d < batch.documents(); ++d) {
        const auto first = static_cast<size_t>(batch.cu_seqlens[static_cast<size_t>(d)]);
        documents.push_back(batch.tokens[first] / 1000);
      }
      tokens += batch.size();
      loss_tokens += batch.loss_tokens();
    }
  }
  EXPECT_EQ(tokens, step.tokens);
  EXPECT_EQ(loss_tokens, step.loss_tokens);
  return documents;
}

TEST(StepPlanTest, DocumentsLieEndToEndAndNeverPredictEachOther) {
  StepPlanOptions options{.shuffle = false, .packing = true, .sequence_length = 7};
  const StepPlan plan(MakeDataset(2, [](int i) { return 4 - i; }), options);
  ASSERT_EQ(plan.samples(), 1);
  const MicroBatch batch = plan.GetMicroBatch(plan.GetStep(0), 0, 0);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, 1000, 1001, 1002));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 4, 7));
  EXPECT_THAT(batch.targets, ElementsAre(kIgnore, 2, 3, kIgnore, 1001, 1002, kIgnore));
  EXPECT_THAT(batch.loss_rows, ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(batch.max_seqlen, 4);
  EXPECT_EQ(batch.longest_row, 7);
}

TEST(StepPlanTest, TheLongestRowIsADocumentWhereNoneArePacked) {
  const StepPlan plan(MakeDataset(4, [](int i) { return 4 + i; }),
                      {.per_device_batch = 2, .shuffle = false});
  EXPECT_EQ(plan.GetMicroBatch(plan.GetStep(0), 0, 0).longest_row, 5);
  EXPECT_EQ(plan.GetMicroBatch(plan.GetStep(1), 0, 0).longest_row, 7);
}

TEST(StepPlanTest, EveryRowIsTrainedOnceAnEpochInAnotherOrder) {
  for (const bool packing : {false, true}) {
    StepPlanOptions options{.per_device_batch = 2,
                            .gradient_accumulation_steps = 2,
                            .world_size = 3,
                            .n_epochs = 3,
                            .packing = packing,
                            .sequence_length = 8};
    const StepPlan plan(MakeDataset(31), options);
    std::set<std::vector<int32_t>> orders;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int32_t> seen;
      for (int64_t k = 0; k < plan.steps_per_epoch(); ++k) {
        const Step step = plan.GetStep(epoch * plan.steps_per_epoch() + k);
        EXPECT_EQ(step.epoch, epoch);
        const auto documents = DocumentsOf(plan, step, 3);
        seen.insert(seen.end(), documents.begin(), documents.end());
      }
      orders.insert(seen);
      std::ranges::sort(seen);
      std::vector<int32_t> all(31);
      for (int32_t i = 0; i < 31; ++i) all[static_cast<size_t>(i)] = i;
      EXPECT_EQ(seen, all);
    }
    EXPECT_EQ(orders.size(), 3U);
  }
}

TEST(StepPlanTest, TheRowsOfAStepDoNotDependOnHowTheBatchIsSplit) {
  const auto dataset = MakeDataset(29);
  const auto sets = [&dataset](int per_device, int accumulation, int world) {
    const StepPlan plan(dataset, {.per_device_batch = per_device,
                                  .gradient_accumulation_steps = accumulation,
                                  .world_size = world,
                                  .n_epochs = 2});
    EXPECT_EQ(plan.total_steps(), 8);
    std::vector<std::vector<int32_t>> steps;
    for (int64_t i = 0; i < plan.total_steps(); ++i) {
      steps.push_back(DocumentsOf(plan, plan.GetStep(i), world));
    }
    return steps;
  };
  const auto expected = sets(8, 1, 1);
  EXPECT_EQ(sets(1, 8, 1), expected);
  EXPECT_EQ(sets(2, 1, 4), expected);
  EXPECT_EQ(sets(1, 4, 2), expected);
  EXPECT_EQ(sets(1, 1, 8), expected);
}

TEST(StepPlanTest, AShortLastStepIsRunAndIdleRanksHaveNothing) {
  const StepPlan plan(MakeDataset(9),
                      {.per_device_batch = 2, .gradient_accumulation_steps = 1, .world_size = 4});
  EXPECT_EQ(plan.total_steps(), 2);
  const Step last = plan.GetStep(1);
  EXPECT_EQ(last.samples, 1);
  EXPECT_EQ(last.position, 8);
  EXPECT_EQ(last.micro_batches, 1);
  EXPECT_EQ(plan.GetMicroBatch(last, 0, 0).documents(), 1);
  for (int rank = 1; rank < 4; ++rank) {
    const MicroBatch idle = plan.GetMicroBatch(last, 0, rank);
    EXPECT_TRUE(idle.empty());
    EXPECT_THAT(idle.cu_seqlens, ElementsAre(0));
    EXPECT_THAT(idle.loss_rows, IsEmpty());
  }
}

TEST(StepPlanTest, AccumulationStopsEarlyWhereEveryRankIsIdle) {
  const StepPlan plan(MakeDataset(5),
                      {.per_device_batch = 1, .gradient_accumulation_steps = 4, .world_size = 2});
  EXPECT_EQ(plan.total_steps(), 1);
  EXPECT_EQ(plan.GetStep(0).micro_batches, 3);
}

TEST(StepPlanTest, StepsFollowEpochsAndMaxSteps) {
  const auto steps = [](double epochs, int64_t max_steps) {
    return StepPlan(MakeDataset(30), {.n_epochs = epochs, .max_steps = max_steps}).total_steps();
  };
  EXPECT_EQ(steps(1, 0), 30);
  EXPECT_EQ(steps(0.1, 0), 3);
  EXPECT_EQ(steps(0.11, 0), 4);
  EXPECT_EQ(steps(2.5, 0), 75);
  EXPECT_EQ(steps(0.001, 0), 1);
  EXPECT_EQ(steps(3, 7), 7);
  EXPECT_EQ(steps(1, 45), 45);
}

// Document i of the part has its tokens from 1000 * (first + i) on.
std::shared_ptr<const Dataset> PartOf(int first, int documents) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> loss;
  for (int i = 0; i < documents; ++i) {
    tokens.push_back({1000 * (first + i), 1000 * (first + i) + 1, 1000 * (first + i) + 2});
    loss.push_back({0, 1, 1});
  }
  return Dataset::FromDocuments(tokens, loss);
}

std::vector<int32_t> DocumentsOfEpoch(const StepPlan& plan, int64_t epoch) {
  std::vector<int32_t> documents;
  for (int64_t i = 0; i < plan.steps_per_epoch(); ++i) {
    const auto step = DocumentsOf(plan, plan.GetStep(epoch * plan.steps_per_epoch() + i), 1);
    documents.insert(documents.end(), step.begin(), step.end());
  }
  return documents;
}

TEST(StepPlanTest, WeightsSayHowOftenRowsAreSeen) {
  const auto dataset =
      Dataset::Join({{PartOf(0, 10), 2.5}, {PartOf(100, 8), 0.25}, {PartOf(200, 3), 1}});
  ASSERT_EQ(dataset->size(), 21);
  EXPECT_EQ(dataset->Get(18).tokens[0], 200'000);
  EXPECT_EQ(dataset->Length(20), 3);
  EXPECT_EQ(dataset->LossTokens(9), 2);
  const StepPlan plan(dataset, {.per_device_batch = 4, .n_epochs = 8});
  EXPECT_EQ(plan.samples(), 25 + 2 + 3);
  EXPECT_EQ(plan.total_steps(), 8 * 8);  // 30 rows in steps of 4
  std::vector<int> seen(300, 0);
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    std::vector<int> times(300, 0);
    for (const int32_t document : DocumentsOfEpoch(plan, epoch)) {
      ++times[static_cast<size_t>(document)];
      ++seen[static_cast<size_t>(document)];
    }
    int thrice = 0, quarter = 0;
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_TRUE(times[i] == 2 || times[i] == 3) << i;
      thrice += times[i] == 3;
    }
    for (size_t i = 100; i < 108; ++i) quarter += times[i];
    EXPECT_EQ(thrice, 5);
    EXPECT_EQ(quarter, 2);
    for (size_t i = 200; i < 203; ++i) EXPECT_EQ(times[i], 1);
  }
  // The part rotates: over four epochs of a quarter, or two of a half, all have had their turn.
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(seen[i], 20) << i;
  for (size_t i = 100; i < 108; ++i) EXPECT_EQ(seen[i], 2) << i;
  // A step is a function of seed and index alone.
  const StepPlan again(dataset, {.per_device_batch = 4, .n_epochs = 8});
  EXPECT_EQ(DocumentsOf(again, again.GetStep(37), 1), DocumentsOf(plan, plan.GetStep(37), 1));
}

TEST(StepPlanTest, OnePartWithWeightOneIsTheDataSetItself) {
  const auto dataset = MakeDataset(23);
  for (const bool packing : {false, true}) {
    const StepPlanOptions options{
        .per_device_batch = 3, .n_epochs = 2, .packing = packing, .sequence_length = 8};
    const StepPlan alone(dataset, options), joined(Dataset::Join({{dataset, 1}}), options);
    ASSERT_EQ(alone.total_steps(), joined.total_steps());
    for (int64_t i = 0; i < alone.total_steps(); ++i) {
      EXPECT_EQ(DocumentsOf(alone, alone.GetStep(i), 1), DocumentsOf(joined, joined.GetStep(i), 1));
    }
  }
}

TEST(StepPlanTest, APartMayBeEmpty) {
  const auto dataset = Dataset::Join({{PartOf(0, 0), 0.5}, {PartOf(0, 3), 1}, {PartOf(9, 0), 2}});
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_EQ(dataset->Get(0).tokens[0], 0);
  EXPECT_EQ(dataset->Get(2).tokens[0], 2000);
  for (const bool packing : {false, true}) {
    EXPECT_GT(StepPlan(dataset, {.packing = packing}).samples(), 0);
  }
}

TEST(StepPlanTest, WithoutShufflingPartsFollowEachOther) {
  const auto dataset = Dataset::Join({{PartOf(10, 2), 2}, {PartOf(0, 3), 1}});
  const StepPlan plan(dataset, {.per_device_batch = 9, .n_epochs = 2, .shuffle = false});
  EXPECT_THAT(DocumentsOfEpoch(plan, 0), ElementsAre(10, 11, 10, 11, 0, 1, 2));
  EXPECT_THAT(DocumentsOfEpoch(plan, 1), ElementsAre(10, 11, 10, 11, 0, 1, 2));
}

TEST(StepPlanTest, TheSeedDecidesTheOrder) {
  const auto first = [](uint64_t seed) {
    const StepPlan plan(MakeDataset(8), {.per_device_batch = 8, .seed = seed});
    return DocumentsOf(plan, plan.GetStep(0), 1);
  };
  EXPECT_NE(first(1), first(2));
  // Pinned: a run may be resumed by another build of the program.
  EXPECT_THAT(first(42), ElementsAre(3, 6, 0, 7, 1, 2, 5, 4));
}

TEST(StepPlanTest, ValidationReadsEveryRowOnceInFileOrder) {
  const StepPlan plan = StepPlan::ForValidation(
      MakeDataset(7), {.per_device_batch = 2, .world_size = 2, .n_epochs = 3, .max_steps = 9},
      MakeDataset(7)->stats().longest);
  ASSERT_EQ(plan.total_steps(), 1);
  const Step step = plan.GetStep(0);
  EXPECT_EQ(step.micro_batches, 2);
  EXPECT_THAT(DocumentsOf(plan, step, 2), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(plan.RowLines(step, 1, 0), ElementsAre(5, 6));
}

TEST(StepPlanTest, LongerRowsOfAValidationComeFewerAtATime) {
  const auto rows = MakeDataset(8);
  const int64_t longest = rows->stats().longest;
  const auto batches = [&](int64_t longest_trained) {
    const StepPlan plan = StepPlan::ForValidation(rows, {.per_device_batch = 4}, longest_trained);
    EXPECT_THAT(DocumentsOf(plan, plan.GetStep(0), 1), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
    return plan.GetStep(0).micro_batches;
  };
  EXPECT_EQ(batches(10 * longest), 2);
  EXPECT_EQ(batches(longest), 2);
  EXPECT_EQ(batches((longest + 1) / 2), 4);
  EXPECT_EQ(batches(1), 8);
}

TEST(StepPlanTest, AStepOutsideThePlanIsAFault) {
  const StepPlan plan(MakeDataset(3), {});
  EXPECT_THROW(plan.GetStep(3), InternalError);
  EXPECT_THROW(plan.GetMicroBatch(plan.GetStep(0), 1, 0), InternalError);
  EXPECT_THROW(StepPlan(MakeDataset(0), {}), InternalError);
}

}  // namespace
}  // namespace sft::engine
