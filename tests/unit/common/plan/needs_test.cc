#include "common/plan/needs.h"

#include <gtest/gtest.h>

#include "common/plan/parameters.h"
#include "tests/unit/common/plan/jobs.h"
#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

ModelConfig ConfigOf(const ModelShape& shape) {
  ModelConfig model;
  static_cast<ModelShape&>(model) = shape;
  model.max_positions = 40'960;
  return model;
}

constexpr int64_t kH100 = 85'520'809'984;

TEST(NeedsTest, TheSmallestIsWhatAPlanOfThatJobNeeds) {
  const Need need = NeedsOf(ConfigOf(Qwen3Of8B()), "H100", kH100)[0];
  EXPECT_EQ(need.method, "QLoRA");
  EXPECT_TRUE(need.smallest);
  EXPECT_EQ(need.gpus, 1);
  EXPECT_EQ(need.sequence_length, 512);
  PlanInput input = Input(Qlora(1, 1, 512), 0);
  input.memory_bytes = AllocatorBytes(input.job, need.memory_bytes, /*opened=*/false);
  EXPECT_TRUE(MakePlan(input).ok()) << "a GPU of so much memory is enough";
  input.memory_bytes -= input.memory_bytes / 50;
  EXPECT_FALSE(MakePlan(input).ok()) << "and one of less is not";
}

TEST(NeedsTest, TheFastestIsLoraAndFullFineTuningOnTheFewestGpus) {
  const auto needs = NeedsOf(ConfigOf(Qwen3Of8B()), "H100", kH100);
  ASSERT_EQ(needs.size(), 3U);
  const Need &lora = needs[1], &full = needs[2];
  EXPECT_EQ(lora.method, "LoRA");
  EXPECT_EQ(lora.gpus, 1);
  EXPECT_EQ(full.method, "full");
  EXPECT_GE(full.gpus, 1);
  for (const Need& need : {lora, full}) {
    EXPECT_FALSE(need.smallest);
    EXPECT_EQ(need.sequence_length, 2048);
    EXPECT_GT(need.memory_bytes, needs[0].memory_bytes);
    EXPECT_LE(need.memory_bytes, kH100);
    EXPECT_GT(need.tokens_per_second, 1000);
  }
}

TEST(NeedsTest, AModelThatOneGpuCannotHoldIsCutOverSeveral) {
  const auto on_l4 = NeedsOf(ConfigOf(Qwen3Of32B()), "L4", 24'000'000'000);
  EXPECT_EQ(on_l4[0].gpus, 1);
  EXPECT_EQ(on_l4[1].gpus, 8);
  EXPECT_GE(on_l4[2].gpus, 16);
  for (const Need& need : on_l4) EXPECT_LE(need.memory_bytes, 24'000'000'000);
  const auto on_half = NeedsOf(ConfigOf(Qwen3Of32B()), "L4", 12'000'000'000);
  EXPECT_GT(on_half[0].gpus, 1);
  const auto on_tiny = NeedsOf(ConfigOf(Qwen3Of32B()), "L4", 3'000'000'000);
  EXPECT_EQ(on_tiny[2].gpus, 0) << "64 are not enough";
  EXPECT_GT(on_tiny[2].memory_bytes, 3'000'000'000);
}

TEST(NeedsTest, WeightsInFourBitsAreForQloraAlone) {
  ModelConfig model = ConfigOf(Qwen3Of8B());
  model.stored.form = StoredForm::kNf4;
  const auto needs = NeedsOf(model, "H100", kH100);
  ASSERT_EQ(needs.size(), 2U);
  EXPECT_EQ(needs[1].method, "QLoRA");
  EXPECT_FALSE(needs[1].smallest);
  EXPECT_EQ(StoredText(model, 0), "bnb 4-bit");
}

TEST(NeedsTest, RowsAreNoLongerThanTheModelsPositions) {
  ModelConfig model = ConfigOf(SmolLm2());
  model.max_positions = 256;
  for (const Need& need : NeedsOf(model, "H100", kH100)) EXPECT_EQ(need.sequence_length, 256);
}

TEST(NeedsTest, ATypeThatIsNotKnownHasNoSpeed) {
  for (const Need& need : NeedsOf(ConfigOf(SmolLm2()), "MI300", kH100)) {
    EXPECT_EQ(need.gpus, 1);
    EXPECT_EQ(need.tokens_per_second, 0);
  }
}

TEST(NeedsTest, TheStoredTypeIsThatOfTheConfigOrOfTheSize) {
  ModelConfig model = ConfigOf(SmolLm2());
  const int64_t parameters = BaseParameters(model);
  EXPECT_EQ(StoredText(model, 0), "");
  EXPECT_EQ(StoredText(model, 2 * parameters), "16 bits");
  EXPECT_EQ(StoredText(model, 4 * parameters), "fp32");
  model.dtype = "bfloat16";
  EXPECT_EQ(StoredText(model, 4 * parameters), "bf16");
  model.stored.form = StoredForm::kFp8;
  EXPECT_EQ(StoredText(model, 0), "FP8");
  model.stored.form = StoredForm::kMxfp4;
  EXPECT_EQ(StoredText(model, 0), "MXFP4");
}

TEST(NeedsTest, TheTypeIsReadUnderBothNamesAndInsideAMultimodalConfig) {
  const std::string sizes = R"("model_type":"llama","hidden_size":64,"intermediate_size":96,
      "num_attention_heads":4,"num_hidden_layers":2,"vocab_size":128)";
  const auto dtype_of = [&](const std::string& extra) {
    const auto model = ParseModelConfig("{" + sizes + extra + "}");
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->dtype : "";
  };
  EXPECT_EQ(dtype_of(R"(,"torch_dtype":"float16")"), "float16");
  EXPECT_EQ(dtype_of(R"(,"dtype":"bfloat16")"), "bfloat16");
  EXPECT_EQ(dtype_of(R"(,"dtype":{"":"bfloat16"})"), "") << "nothing depends on it";
}

}  // namespace
}  // namespace sft::plan
