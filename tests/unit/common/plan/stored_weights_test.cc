#include "common/plan/stored_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/plan/memory.h"
#include "common/plan/model_config.h"
#include "common/plan/parameters.h"
#include "tests/unit/common/plan/jobs.h"

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

// A model of four layers whose quantization_config has these members.
std::string Stored(const std::string& members) {
  return R"({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 100,
    "quantization_config": {)" +
         members + "}}";
}

// As transformers writes it.
constexpr char kBnb[] = R"("_load_in_4bit": true, "_load_in_8bit": false,
    "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true,
    "llm_int8_enable_fp32_cpu_offload": false, "llm_int8_has_fp16_weight": false,
    "llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp", "model.layers.2.self_attn.k_proj"],
    "llm_int8_threshold": 6.0, "load_in_4bit": true, "load_in_8bit": false,
    "quant_method": "bitsandbytes")";

spec::JobSpec OneRow() {
  spec::JobSpec job = Qlora(1, 1, 512);
  job.lora.target_modules = {"all-linear"};
  return job;
}

TEST(StoredWeightsTest, ReadsWhatBitsandbytesQuantised) {
  const auto model = ParseModelConfig(Stored(kBnb));
  ASSERT_TRUE(model.ok()) << model.status();
  const StoredWeights& stored = model->stored;
  EXPECT_EQ(stored.form, StoredForm::kNf4);
  EXPECT_TRUE(stored.double_quant);
  EXPECT_TRUE(stored.Holds("", "model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(stored.Holds("", "model.layers.2.self_attn.q_proj"));
  EXPECT_FALSE(stored.Holds("", "model.layers.2.self_attn.k_proj"));
  EXPECT_FALSE(stored.Holds("", "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(stored.Holds("", "lm_head"));
}

TEST(StoredWeightsTest, SkippedModulesMayHaveTheirNamesAtRunTime) {
  StoredWeights stored{.form = StoredForm::kNf4,
                       .skipped = {"model.language_model.layers.1.mlp", "vision_tower"}};
  EXPECT_FALSE(stored.Holds("language_model.", "language_model.model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(stored.Holds("language_model.", "language_model.model.layers.3.mlp.up_proj"));
  stored.skipped = {"language_model.model.layers.3.mlp"};
  EXPECT_FALSE(stored.Holds("language_model.", "language_model.model.layers.3.mlp.up_proj"));
}

TEST(StoredWeightsTest, OlderFilesOfBitsandbytesNameNoMethod) {
  const auto model = ParseModelConfig(Stored(
      R"("load_in_4bit": true, "bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": null)"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->stored.form, StoredForm::kNf4);
  EXPECT_FALSE(model->stored.double_quant);
}

TEST(StoredWeightsTest, ReadsFp8) {
  const auto blocks = ParseModelConfig(
      Stored(R"("quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"])"));
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(blocks->stored.form, StoredForm::kFp8);
  EXPECT_EQ(blocks->stored.block, 128);
  EXPECT_FALSE(blocks->stored.Holds("", "lm_head"));
  const auto whole = ParseModelConfig(
      Stored(R"("quant_method": "fp8", "activation_scheme": "static", "weight_block_size": null,
                "ignored_layers": ["lm_head"])"));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->stored.block, 0);
  EXPECT_FALSE(whole->stored.Holds("", "lm_head"));
}

TEST(StoredWeightsTest, AMultimodalModelMayHaveItBesideOrWithinTheText) {
  constexpr char kText[] = R"("text_config": {"model_type": "gemma3_text")";
  constexpr char kFp8[] = R"("quantization_config": {"quant_method": "fp8"})";
  for (const std::string& config :
       {std::string(R"({"model_type": "gemma3", )") + kText + "}, " + kFp8 + "}",
        std::string(R"({"model_type": "gemma3", )") + kText + ", " + kFp8 + "}}"}) {
    const auto model = ParseModelConfig(config);
    ASSERT_TRUE(model.ok()) << config << model.status();
    EXPECT_EQ(model->stored.form, StoredForm::kFp8) << config;
  }
}

TEST(StoredWeightsTest, ExpertsInMxfp4AreWholeBlocks) {
  const auto read = [](int64_t hidden, int64_t intermediate) {
    return ParseModelConfig(fmt::format(R"({{"model_type": "gpt_oss", "hidden_size": {},
        "intermediate_size": {}, "num_hidden_layers": 2, "num_local_experts": 4,
        "quantization_config": {{"quant_method": "mxfp4"}}}})",
                                        hidden, intermediate));
  };
  const auto model = read(64, 96);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->stored.form, StoredForm::kMxfp4);
  EXPECT_THAT(read(48, 96).status().message(), HasSubstr("which experts with 48 do not divide"));
  EXPECT_THAT(read(64, 100).status().message(), HasSubstr("which experts with 100 do not divide"));
}

TEST(StoredWeightsTest, OtherFormsAreRefusedWithTheKeyAndWhatToUse) {
  struct Case {
    std::string members;
    std::string says;
  };
  const std::string bnb = R"("quant_method": "bitsandbytes", )";
  const std::string fp8 = R"("quant_method": "fp8", )";
  for (const auto& [members, says] : std::vector<Case>{
           {R"("quant_method": "gptq", "bits": 4)",
            "\"quant_method\" \"gptq\" is not read: use the "
            "original weights"},
           {R"("quant_method": "awq")", "\"quant_method\" \"awq\" is not read: use the original"},
           {R"("quant_method": "compressed-tensors")", "\"compressed-tensors\" is not read"},
           {R"("quant_method": "mxfp4")", "\"mxfp4\" is read of gpt_oss's experts alone"},
           {R"("bits": 4)", "\"quant_method\" \"\" is not read"},
           {R"("quant_method": 8)", "\"quant_method\" has the wrong type"},
           {bnb + R"("load_in_8bit": true)",
            "\"load_in_8bit\" says that the weights are stored in 8 "
            "bits, which are not read: use the original weights "
            "with quantization.bits = 8"},
           {R"("load_in_8bit": true)", "\"load_in_8bit\" says"},
           {bnb + R"("load_in_4bit": false)", "\"load_in_4bit\" must be true"},
           {bnb + R"("load_in_4bit": true, "bnb_4bit_quant_type": "fp4")",
            "\"bnb_4bit_quant_type\" \"fp4\" is not read, \"nf4\" is: use the original weights"},
           {bnb + R"("load_in_4bit": true)", "\"bnb_4bit_quant_type\" \"fp4\" is not read"},
           {bnb + R"("load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
                     "bnb_4bit_quant_storage": "bfloat16")",
            "\"bnb_4bit_quant_storage\" \"bfloat16\" is not read, \"uint8\" is"},
           {bnb + R"("load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
                     "llm_int8_skip_modules": "lm_head")",
            "\"llm_int8_skip_modules\" has the wrong type"},
           {fp8 + R"("weight_block_size": [64, 128])", "\"weight_block_size\" must be [128, 128]"},
           {fp8 + R"("weight_block_size": [128])", "\"weight_block_size\" must be [128, 128]"},
           {fp8 + R"("fmt": "e5m2")", "\"fmt\" \"e5m2\" is not read, \"e4m3\" is"},
       }) {
    const auto model = ParseModelConfig(Stored(members));
    ASSERT_FALSE(model.ok()) << members;
    EXPECT_THAT(std::string(Message(model.status())),
                HasSubstr("config.json: quantization_config: "));
    EXPECT_THAT(std::string(Message(model.status())), HasSubstr(says));
  }
  const auto text = ParseModelConfig(R"({"model_type": "llama", "quantization_config": "gptq"})");
  EXPECT_THAT(std::string(Message(text.status())), HasSubstr("is missing"));
}

TEST(StoredWeightsTest, WeightsInFourBitsAreForQloraInFourBits) {
  const auto model = ParseModelConfig(Stored(kBnb));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(CheckJob(*model, OneRow()).has_value());
  spec::JobSpec lora = OneRow();
  lora.training.use_qlora = false;
  lora.quantization.bits = 0;
  spec::JobSpec full = lora;
  full.training.mode = spec::Mode::kFullFinetune;
  spec::JobSpec eight = OneRow();
  eight.quantization.bits = 8;
  const auto expect = [&](const spec::JobSpec& job, const char* key, const char* says) {
    const auto problem = CheckJob(*model, job);
    ASSERT_TRUE(problem.has_value()) << key;
    EXPECT_EQ(problem->key, key);
    EXPECT_THAT(problem->message, HasSubstr(says));
    EXPECT_THAT(problem->message, HasSubstr("original model"));
  };
  expect(lora, "training.use_qlora", "use_qlora = true trains on them as they are");
  expect(full, "training.mode", "use mode = \"lora\" with use_qlora = true");
  expect(eight, "quantization.bits", "quantization.bits = 4 trains on them as they are");
  // What is stored in FP8 is de-quantised for any job.
  const auto fp8 = ParseModelConfig(Stored(R"("quant_method": "fp8")"));
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  for (const spec::JobSpec& job : {lora, full, eight, OneRow()}) {
    EXPECT_FALSE(CheckJob(*fp8, job).has_value());
  }
}

TEST(StoredWeightsTest, MemoryIsThatOfTheWeightsAsTheyAreStored) {
  const auto held = [](const ModelShape& shape, const spec::JobSpec& job) {
    const auto units = MakeUnits(shape, job);
    EXPECT_TRUE(units.ok()) << units.status();
    return PlanMemory(*units, job, Device::kGpu);
  };
  ModelShape shape = Qwen3Of8B();
  spec::JobSpec job = OneRow();
  const Memory quantised = held(shape, job);
  shape.stored = {.form = StoredForm::kNf4, .double_quant = true, .skipped = {"lm_head"}};
  EXPECT_EQ(held(shape, job).frozen_weights, quantised.frozen_weights);
  // The checkpoint decides about its scales.
  job.quantization.double_quant = false;
  EXPECT_EQ(held(shape, job).frozen_weights, quantised.frozen_weights);
  shape.stored.double_quant = false;
  job.quantization.double_quant = true;
  const int64_t elements = int64_t{36} * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 12288);
  EXPECT_EQ(held(shape, job).quantized_weights, elements / 2 + elements / 64 * 4);
  // What was skipped is held in bf16.
  shape.stored.skipped.push_back("model.layers.7.mlp");
  const int64_t mlp = int64_t{3} * 4096 * 12288;
  EXPECT_EQ(held(shape, job).quantized_weights, (elements - mlp) / 2 + (elements - mlp) / 64 * 4);
  const Memory skipped = held(shape, job);
  EXPECT_EQ(skipped.frozen_weights - skipped.quantized_weights,
            quantised.frozen_weights - quantised.quantized_weights + 2 * mlp);
  // FP8 is held as what the job asks for.
  shape.stored = {.form = StoredForm::kFp8, .block = 128};
  EXPECT_EQ(held(shape, job).frozen_weights, quantised.frozen_weights);
}

}  // namespace
}  // namespace sft::plan
