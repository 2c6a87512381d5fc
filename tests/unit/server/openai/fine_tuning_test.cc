#include "server/openai/fine_tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/openai/errors.h"

namespace sft::server::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string ParamNamed(const absl::Status& status) {
  const auto body = nlohmann::json::parse(ErrorOf(status, Asks::kTraining).body);
  return body["error"]["param"].is_null() ? "" : body["error"]["param"].get<std::string>();
}

v1::File FileOf(const std::string& id, const std::string& name) {
  v1::File file;
  file.set_name("files/" + id);
  file.set_sha256(std::string(64, 'a'));
  file.set_size(10);
  file.set_file_name(name);
  return file;
}

TEST(OpenAiFineTuningTest, ARequestBecomesAJobFileWithItsFiles) {
  const auto asked = ReadFineTuning(
      R"({"model": "Qwen/Qwen3-8B", "training_file": "file-a", "validation_file": "file-b",
          "suffix": "mine", "seed": 7, "integrations": null, "metadata": {"team": "v"},
          "method": {"type": "dpo", "dpo": {"hyperparameters":
            {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5, "beta": 0.2}}},
          "sft": {"variant": "H100-4x", "set": {"lora.r": 16, "lora.dropout": 0.5,
                  "scheduling.hold": true, "lora.target_modules": ["q_proj", "v_proj"]}}})");
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->learning_rate_multiplier, 0.5);
  const v1::File training = FileOf("file-a", "train.jsonl"),
                 validation = FileOf("file-b", "val.csv");
  const v1::SubmitJobRequest submit = SubmitOf(*asked, "base", "job-x", training, &validation);
  const auto file = nlohmann::json::parse(submit.source_text());
  EXPECT_EQ(file, nlohmann::json::parse(R"({
      "job": {"model": "base", "data": "file-a", "adapter": "job-x", "name": "mine"},
      "compute": {"variant": "H100-4x"}, "data": {"val": "file-b"},
      "training": {"loss": "dpo", "preference": {"beta": 0.2}},
      "hyperparameters": {"n_epochs": 2.0, "global_batch": 8, "seed": 7}})"));
  std::map<std::string, std::string> set;
  for (const v1::Override& each : submit.overrides()) set[each.key()] = each.value();
  EXPECT_THAT(set, ElementsAre(Pair("lora.dropout", "0.5"), Pair("lora.r", "16"),
                               Pair("lora.target_modules", "q_proj,v_proj"),
                               Pair("scheduling.hold", "true")));
  ASSERT_EQ(submit.files_size(), 2);
  EXPECT_EQ(submit.files(0).key(), "job.data");
  EXPECT_EQ(submit.files(0).client_path(), "train.jsonl");
  EXPECT_EQ(submit.files(1).key(), "data.val");
  EXPECT_EQ(submit.metadata().at("team"), "v");
  // The same request is the same job, byte for byte.
  EXPECT_EQ(submit.source_text(),
            SubmitOf(*asked, "base", "job-x", training, &validation).source_text());
}

TEST(OpenAiFineTuningTest, WhatIsLeftOutOrAutoIsAsTheServiceHasIt) {
  for (const char* more :
       {"", R"(, "hyperparameters": {})", R"(, "method": {"type": "supervised"})",
        R"(, "hyperparameters": {"n_epochs": "auto", "batch_size": "auto",
                                "learning_rate_multiplier": "auto"})",
        R"(, "method": {"type": "supervised", "supervised": {}})",
        R"(, "metadata": null, "suffix": null, "seed": null)", R"(, "integrations": [])"}) {
    const auto asked =
        ReadFineTuning(std::string(R"({"model": "m", "training_file": "file-a")") + more + "}");
    ASSERT_TRUE(asked.ok()) << more << asked.status();
    const auto submit = SubmitOf(*asked, "m", "", FileOf("file-a", "a.jsonl"), nullptr);
    EXPECT_EQ(nlohmann::json::parse(submit.source_text()),
              nlohmann::json::parse(R"({"job": {"model": "m", "data": "file-a"}})"))
        << more;
    EXPECT_TRUE(submit.overrides().empty()) << more;
  }
}

TEST(OpenAiFineTuningTest, WhatIsWrongOrNotServedIsNamed) {
  struct Case {
    const char* more;
    const char* param;
    const char* words = "";
  };
  for (const Case& each : {
           Case{R"("model": "m")", "training_file", "missing"},
           Case{R"("training_file": "file-a")", "model", "missing"},
           Case{R"("model": 1, "training_file": "file-a")", "model", "no text"},
           Case{R"("model": "m", "training_file": "a", "nonsense": 1)", "nonsense"},
           Case{R"("model": "m", "training_file": "a", "integrations": [{"type": "wandb"}])",
                "integrations", "sft.export.wandb"},
           Case{R"("model": "m", "training_file": "a", "suffix": ")"
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
                "suffix", "64"},
           Case{R"("model": "m", "training_file": "a", "suffix": "a:b")", "suffix", "colon"},
           Case{R"("model": "m", "training_file": "a", "suffix": "a\nb")", "suffix"},
           Case{R"("model": "m", "training_file": "a", "seed": -1)", "seed"},
           Case{R"("model": "m", "training_file": "a", "seed": 1e99)", "seed"},
           Case{R"("model": "m", "training_file": "a", "metadata": {"a": 1})", "metadata"},
           Case{R"("model": "m", "training_file": "a", "metadata": [])", "metadata"},
           Case{R"("model": "m", "training_file": "a", "method": {"type": "reinforcement"})",
                "method.type", "not served"},
           Case{R"("model": "m", "training_file": "a", "method": {})", "method.type", "missing"},
           Case{
               R"("model": "m", "training_file": "a", "method": {"type": "dpo", "supervised": {}})",
               "method.supervised"},
           Case{R"("model": "m", "training_file": "a", "hyperparameters": {"n_epochs": 0})",
                "hyperparameters.n_epochs", "above 0"},
           Case{R"("model": "m", "training_file": "a", "hyperparameters": {"n_epochs": "many"})",
                "hyperparameters.n_epochs"},
           Case{R"("model": "m", "training_file": "a", "hyperparameters": {"batch_size": 1.5})",
                "hyperparameters.batch_size"},
           Case{R"("model": "m", "training_file": "a", "hyperparameters": {"beta": 0.1})",
                "hyperparameters.beta", "not served"},
           Case{R"("model": "m", "training_file": "a",
                   "hyperparameters": {}, "method": {"type": "dpo"})",
                "hyperparameters", "beside method"},
           Case{R"("model": "m", "training_file": "a", "method": {"type": "supervised",
                   "supervised": {"hyperparameters": {"beta": 0.1}}})",
                "method.supervised.hyperparameters.beta"},
           Case{R"("model": "m", "training_file": "a", "sft": {"priority": "high"})",
                "sft.priority"},
           Case{R"("model": "m", "training_file": "a", "sft": {"set": {"lora.r": {"a": 1}}})",
                "sft.set.lora.r"},
       }) {
    const auto asked = ReadFineTuning(std::string("{") + each.more + "}");
    ASSERT_FALSE(asked.ok()) << each.more;
    EXPECT_EQ(ParamNamed(asked.status()), each.param) << each.more;
    EXPECT_THAT(std::string(asked.status().message()), HasSubstr(each.words)) << each.more;
  }
  for (const char* body : {"", "[]", "{", "{\"model\": \"m\", \"model\": \"n\"}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadFineTuning(body).status())) << body;
  }
}

TEST(OpenAiFineTuningTest, AMultiplierIsOfTheRateThatTheJobWouldHave) {
  v1::ResolveJobResponse resolved;
  v1::ResolvedValue& rate = *resolved.add_resolved();
  rate.set_key("hyperparameters.learning_rate");
  rate.set_value("5e-06");
  v1::SubmitJobRequest submit;
  ASSERT_TRUE(SetLearningRate(3, resolved, submit).ok());
  ASSERT_EQ(submit.overrides_size(), 1);
  EXPECT_EQ(submit.overrides(0).value(), "1.5e-05");
  EXPECT_EQ(submit.overrides(0).origin(), "learning_rate_multiplier 3");
  EXPECT_TRUE(absl::IsInternal(SetLearningRate(3, v1::ResolveJobResponse(), submit)));
}

TEST(OpenAiFineTuningTest, AProblemOfTheJobIsOneOfItsParameter) {
  const auto asked = ReadFineTuning(
      R"({"model": "m", "training_file": "a", "validation_file": "b", "seed": 1,
          "method": {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 1, "batch_size": 3,
            "learning_rate_multiplier": 2, "beta": 0.1}}},
          "sft": {"set": {"hyperparameters.warmup_ratio": 7}}})");
  ASSERT_TRUE(asked.ok()) << asked.status();
  const std::string in = "method.dpo.hyperparameters.";
  for (const auto& [key, param] : std::map<std::string, std::string>{
           {"job.model", "model"},
           {"job.data", "training_file"},
           {"data.val", "validation_file"},
           {"hyperparameters.seed", "seed"},
           {"hyperparameters.n_epochs", in + "n_epochs"},
           {"hyperparameters.global_batch", in + "batch_size"},
           {"hyperparameters.gradient_accumulation_steps", in + "batch_size"},
           {"hyperparameters.learning_rate", in + "learning_rate_multiplier"},
           {"training.preference.beta", in + "beta"},
           {"compute.variant", "sft.variant"},
           {"hyperparameters.warmup_ratio", "sft.set.hyperparameters.warmup_ratio"},
           {"lora.r", "sft.set.lora.r"}}) {
    EXPECT_EQ(ParamOfKey(*asked, key), param);
  }
}

}  // namespace
}  // namespace sft::server::openai
