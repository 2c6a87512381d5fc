#include "worker/rank/model_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/data/front_matter.h"
#include "common/io/file.h"

namespace sft::rank {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TrainingFacts Facts() {
  return {.job = "job-a",
          .base = "org/base@abc",
          .base_card = "---\nlicense: apache-2.0\nlanguage: en\n---\nText\n",
          .device = "cpu",
          .ranks = 2,
          .seconds = 90,
          .engine = "1.0 (build 00)",
          .template_digest = "d1",
          .data = {{"rows.jsonl", "beef"}},
          .rows = 7,
          .skipped = 1,
          .tokens = 100,
          .loss_tokens = 40,
          .losses = {{1, 3.0}, {2, 2.5}},
          .validations = {{2, 2.75}}};
}

nlohmann::ordered_json FrontOf(const std::string& card) {
  const auto matter = data::ParseFrontMatter(card);
  EXPECT_TRUE(matter.ok()) << card;
  return matter.value_or(nlohmann::ordered_json());
}

TEST(ModelCardTest, AnAdaptersCardSaysBaseLicenceDataSettingsAndCurve) {
  spec::JobSpec spec;
  spec.lora.r = 24;
  spec.training.use_qlora = true;
  const std::string card = TrainingCard(Facts(), spec);
  const nlohmann::ordered_json front = FrontOf(card);
  EXPECT_EQ(front["base_model"], "org/base");
  EXPECT_EQ(front["base_model_relation"], "adapter");
  EXPECT_EQ(front["library_name"], "peft");
  EXPECT_EQ(front["license"], "apache-2.0");
  EXPECT_THAT(card, HasSubstr("Job job-a of sft 1.0 (build 00): LoRA on a base in NF4 on 2 x cpu"));
  EXPECT_THAT(card, HasSubstr("`rows.jsonl`, sha256 `beef`"));
  EXPECT_THAT(card, HasSubstr("7 rows used, 1 left out; 100 tokens, 40 of them with loss"));
  EXPECT_THAT(card, HasSubstr("| `lora.r` | 24 |"));
  EXPECT_THAT(card, Not(HasSubstr("`lora.alpha`"))) << "what is at its default is left out";
  EXPECT_THAT(card, HasSubstr("| 2 | 2.5000 |"));
  EXPECT_THAT(card, HasSubstr("last loss 2.5000, validation 2.7500"));
  EXPECT_THAT(card, HasSubstr("--max-lora-rank 32")) << "the next rank that vLLM has";
}

TEST(ModelCardTest, TheDifferencesThatTheJobFoundAreInTheCard) {
  TrainingFacts facts = Facts();
  EXPECT_THAT(TrainingCard(facts, {}), Not(HasSubstr("checked by the job")));
  facts.checks = CardChecks{.packing = 2.5e-7, .delivered = 0};
  EXPECT_THAT(TrainingCard(facts, {}),
              HasSubstr("- checked by the job: logits of these files, read back, differ from the "
                        "trained model's by at most 0 of the largest; those of a packed document "
                        "from those it has alone by at most 2.5e-07\n"));
}

TEST(ModelCardTest, ItSaysWhatATrainingStartedFromAndHowOnlyWhatIsServedIsServed) {
  spec::JobSpec spec;
  EXPECT_THAT(TrainingCard(Facts(), spec), Not(HasSubstr("started from")));
  EXPECT_THAT(TrainingCard(Facts(), spec), HasSubstr("vllm serve"));
  spec.job.adapter = "job-before";
  spec.lora.bias = spec::Bias::kLoraOnly;
  EXPECT_THAT(TrainingCard(Facts(), spec), HasSubstr("- started from: `job-before`\n"));
  EXPECT_THAT(TrainingCard(Facts(), spec), Not(HasSubstr("vllm serve")));
}

TEST(ModelCardTest, ACardIsReadBelowItsFolderOrItsHubCacheAlone) {
  const std::string dir = *io::MakeTempDir("sft-card-test");
  const std::string model = dir + "/cache/models--a--b/snapshots/c";
  for (const std::string& each :
       {model, dir + "/cache/models--a--b/blobs", dir + "/other/snapshots"}) {
    ASSERT_TRUE(io::MakeDirs(each).ok());
  }
  ASSERT_TRUE(io::WriteFileAtomic(dir + "/cache/models--a--b/blobs/1", "card").ok());
  ASSERT_TRUE(io::WriteFileAtomic(dir + "/other/secret", "secret").ok());
  const std::string link = model + "/README.md";
  EXPECT_EQ(ReadCard(model), "");
  std::filesystem::create_symlink("../../blobs/1", link);
  EXPECT_EQ(ReadCard(model), "card");
  for (const std::string& target : {dir + "/other/secret", dir + "/none", dir}) {
    std::filesystem::remove(link);
    std::filesystem::create_symlink(target, link);
    EXPECT_EQ(ReadCard(model), "") << target;
  }
  std::filesystem::remove(link);
  ASSERT_TRUE(io::WriteFileAtomic(link, "own").ok());
  EXPECT_EQ(ReadCard(model), "own");
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

TEST(ModelCardTest, AnUnknownLicenceIsNotInvented) {
  TrainingFacts facts = Facts();
  facts.base_card = "no front matter";
  EXPECT_EQ(FrontOf(TrainingCard(facts, {}))["license"], "other");
  facts.base = "/models/mine";
  const nlohmann::ordered_json front = FrontOf(TrainingCard(facts, {}));
  EXPECT_EQ(front["license"], "other");
  EXPECT_FALSE(front.contains("base_model")) << "a folder of a node is no model of a hub";
}

TEST(ModelCardTest, WhatABaseSaysOfItselfCannotAddLinesToTheFrontMatter) {
  TrainingFacts facts = Facts();
  facts.base_card = "---\nlicense: \"mit\\nbase_model: evil/model\"\n---\n";
  const nlohmann::ordered_json front = FrontOf(TrainingCard(facts, {}));
  EXPECT_EQ(front["base_model"], "org/base");
}

TEST(ModelCardTest, ALongCurveIsThinnedAndKeepsItsEnds) {
  TrainingFacts facts = Facts();
  facts.losses.clear();
  for (int64_t step = 1; step <= 1000; ++step) facts.losses.emplace_back(step, 1.0);
  facts.first_step = 501;
  const std::string card = TrainingCard(facts, {});
  EXPECT_THAT(card, HasSubstr("| 1 | 1.0000 |"));
  EXPECT_THAT(card, HasSubstr("| 1000 | 1.0000 |"));
  EXPECT_THAT(card, Not(HasSubstr("| 2 | 1.0000 |")));
  EXPECT_THAT(card, HasSubstr("the curve begins at step 501"));
}

TEST(ModelCardTest, AnExportsCardHasItsNumbersAndTheTrainingOfTheAdapter) {
  const ExportFacts facts{.base = "org/base",
                          .base_card = Facts().base_card,
                          .adapter_card = TrainingCard(Facts(), {}),
                          .result = {{"type", "bf16"},
                                     {"trained_on", "nf4"},
                                     {"merged_into", "original"},
                                     {"compared",
                                      {{"original",
                                        {{"tokens", 2048},
                                         {"largest_logit_difference", 0.5},
                                         {"mean_logit_difference", 0.01},
                                         {"same_likeliest_token", 0.995},
                                         {"loss_merged", 2.1},
                                         {"loss_as_trained", 2.0}}}}}}};
  const std::string card = ExportCard(facts);
  EXPECT_EQ(FrontOf(card)["base_model_relation"], "finetune");
  EXPECT_THAT(card, HasSubstr("| original | 2048 | 0.5 | 0.01 | 99.50 % | 2.1000 | 2.0000 |"));
  EXPECT_THAT(card, HasSubstr("trained on the nf4 base and is merged here into the original one"));
  EXPECT_THAT(card, HasSubstr("## Training\n\nJob job-a"));
  EXPECT_THAT(card, Not(HasSubstr("PeftModel")));
  EXPECT_THAT(card, Not(HasSubstr("before the weights were rounded")));
}

TEST(ModelCardTest, AFileInEightBitsIsNotQuantisedAgainAndItsNumbersAreOfTheMerge) {
  ExportFacts facts{.base = "org/base", .gguf = "model-q8_0.gguf"};
  facts.result = {{"type", "q8_0"}, {"compared", {{"original", {{"tokens", 8}}}}}};
  EXPECT_THAT(ExportCard(facts), Not(HasSubstr("llama-quantize")));
  EXPECT_THAT(ExportCard(facts), HasSubstr("before the weights were rounded to q8_0"));
  facts.result["type"] = "bf16";
  EXPECT_THAT(ExportCard(facts), HasSubstr("llama-quantize model-q8_0.gguf"));
}

TEST(ModelCardTest, AnAdapterForVllmSaysHowItIsServed) {
  ExportFacts facts{.base = "org/base@abc", .vllm_rank = 12};
  facts.result = {{"form", "vllm"}, {"linears", 32}};
  const std::string card = ExportCard(facts);
  EXPECT_EQ(FrontOf(card)["base_model_relation"], "adapter");
  EXPECT_THAT(card, HasSubstr("# Adapter for vLLM of org/base@abc"));
  EXPECT_THAT(card,
              HasSubstr("vllm serve org/base --enable-lora --max-lora-rank 16 --lora-modules"));
  EXPECT_THAT(card, Not(HasSubstr("PeftModel")));
  EXPECT_THAT(card, Not(HasSubstr("## Merge")));
}

}  // namespace
}  // namespace sft::rank
