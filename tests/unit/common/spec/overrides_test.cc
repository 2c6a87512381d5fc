#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/spec/fields.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

TEST(OverridesTest, ALaterOneWins) {
  const Resolution r =
      ResolveText(Minimal("[hyperparameters]\nlearning_rate = 1e-6\n"),
                  {Env("TRAIN_LEARNING_RATE", "1e-4"), Set("train.learning_rate", "3e-4"),
                   Set("hyperparameters.learning_rate", "5e-4")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.learning_rate, 5e-4);
  EXPECT_EQ(OriginOf(r, "hyperparameters.learning_rate"), "--set");
}

TEST(OverridesTest, EveryVariableOfTheSourceDocumentsWorks) {
  const Resolution r = ResolveText(
      Minimal(),
      {Env("SYNTH_GPU_TYPE", "A100"), Env("NUM_GPUS", "4"), Env("TRAIN_BATCH_SIZE", "2"),
       Env("TRAIN_GRAD_ACCUM", "8"), Env("TRAIN_LEARNING_RATE", "1e-4"),
       Env("MODEL_MAX_SEQ_LEN", "1024"), Env("TRAIN_DATALOADER_NUM_WORKERS", "8"),
       Env("TRAIN_DATALOADER_PIN_MEMORY", "true"), Env("TRAIN_GRADIENT_CHECKPOINTING", "true")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.compute.variant, "A100-4x");
  EXPECT_EQ(r.spec.hyperparameters.per_device_batch, 2);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 8);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 64);
  EXPECT_EQ(r.spec.hyperparameters.learning_rate, 1e-4);
  EXPECT_EQ(r.spec.hyperparameters.sequence_length, 1024);
  EXPECT_TRUE(r.spec.parallelism.activation_checkpointing);
  EXPECT_EQ(TextOf(r, "train.dataloader_num_workers"), "8");
}

TEST(OverridesTest, AnUnknownVariableOnlyWarns) {
  const Resolution r = ResolveText(Minimal(), {Env("TRAIN_SPEED", "11")});
  EXPECT_TRUE(r.ok());
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_EQ(r.warnings[0].key, "TRAIN_SPEED");
}

TEST(OverridesTest, AMisspeltVariableSuggestsTheNearest) {
  const Resolution r = ResolveText(Minimal(), {Env("TRAIN_LERNING_RATE", "")});
  EXPECT_EQ(Describe(r.warnings),
            "TRAIN_LERNING_RATE:0: names no key of a job, so it has no effect; did you mean "
            "TRAIN_LEARNING_RATE?\n");
}

TEST(OverridesTest, AVariableOfAnotherToolNamesWhatTakesItsPlace) {
  for (const ForeignVariable& foreign : ForeignVariables()) {
    const Resolution r = ResolveText(Minimal(), {Env(std::string(foreign.name), "1")});
    ASSERT_EQ(r.warnings.size(), 1u) << foreign.name;
    EXPECT_THAT(r.warnings[0].message, HasSubstr(std::string(foreign.instead)));
  }
}

TEST(OverridesTest, AVariableOfUnslothThatMeansNothingHereIsNamed) {
  const Resolution r = ResolveText(Minimal(), {Env("UNSLOTH_RETURN_LOGITS", "")});
  EXPECT_TRUE(r.ok());
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_EQ(r.warnings[0].key, "UNSLOTH_RETURN_LOGITS");
  EXPECT_THAT(r.warnings[0].message, HasSubstr("setting of Unsloth's own code"));
}

TEST(OverridesTest, ASingleGpuIsForcedOverWhatTheFileSays) {
  const std::string file =
      "gpu_count = 16\nnodes = 2\ngpus_per_node = 8\nvariant = \"H100-8x\"\n"
      "[data.topology]\ntotal_gpus = 16\n[hyperparameters]\nper_device_batch = 1\n"
      "global_batch = 32\n[hyperparameters.parallelism]\nfsdp = true\n";
  for (const char* on : {"1", "true"}) {
    const Resolution r = ResolveText(Minimal(file), {Env("UNSLOTH_FORCE_SINGLE_GPU", on)});
    ASSERT_TRUE(r.ok()) << Describe(r.problems);
    EXPECT_EQ(r.spec.compute.gpu_count, 1);
    EXPECT_EQ(r.spec.compute.variant, "H100-1x");
    EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 32);
    EXPECT_EQ(OriginOf(r, "compute.gpu_count"), "UNSLOTH_FORCE_SINGLE_GPU");
  }
  for (const char* off : {"", "0", "false"}) {
    const Resolution r = ResolveText(Minimal(file), {Env("UNSLOTH_FORCE_SINGLE_GPU", off)});
    ASSERT_TRUE(r.ok()) << Describe(r.problems);
    EXPECT_EQ(r.spec.compute.gpu_count, 16);
  }
  const Resolution wrong = ResolveText(Minimal(), {Env("UNSLOTH_FORCE_SINGLE_GPU", "maybe")});
  EXPECT_EQ(Describe(wrong.problems),
            "UNSLOTH_FORCE_SINGLE_GPU:0: must be true or false, but is \"maybe\" (a string)\n");
}

TEST(OverridesTest, AnEmptyVariableIsNone) {
  const Resolution r =
      ResolveText(Minimal("[lora]\nr = 4"), {Env("TRAIN_BATCH_SIZE", ""), Env("MODEL_NAME", "")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(OriginOf(r, "job.model"), "job.toml:2");
}

TEST(OverridesTest, AnUnknownKeySuggestsTheNearest) {
  const Resolution r = ResolveText(Minimal(), {Set("hyperparameters.n_epoch", "1")});
  EXPECT_EQ(Describe(r.problems),
            "hyperparameters.n_epoch:0: unknown key (given by --set); did you mean "
            "hyperparameters.n_epochs?\n");
}

TEST(OverridesTest, AWrongValueNamesItsOrigin) {
  const Resolution r = ResolveText(Minimal(), {Env("TRAIN_BATCH_SIZE", "many")});
  EXPECT_EQ(Describe(r.problems),
            "hyperparameters.per_device_batch:0: must be a whole number from 1 to 65536, or "
            "\"auto\", but is \"many\" (given by TRAIN_BATCH_SIZE)\n");
}

// Values that the key's type allows but that do not work today.
std::vector<std::string> Unsupported(const Field& field) {
  std::vector<std::string> typed;
  if (field.type == Type::kBool) typed = {"true", "1", "yes", "on", "false", "0", "no", "off"};
  if (field.type == Type::kInt) typed = {"2", "3"};
  for (std::string_view choice : SplitWords(field.choices, '|')) typed.emplace_back(choice);
  const bool only_true = field.supported == "true";
  std::erase_if(typed, [&](const std::string& text) {
    const bool is_true = text == "true" || text == "1" || text == "yes" || text == "on";
    const auto supported = SplitWords(field.supported, '|');
    return field.type == Type::kBool
               ? is_true == only_true
               : std::find(supported.begin(), supported.end(), text) != supported.end();
  });
  return typed;
}

TEST(OverridesTest, UnsupportedValuesAreRefusedInOverridesToo) {
  int seen = 0;
  for (const Field* field : Fields()) {
    if (field->supported.empty()) continue;
    for (const std::string& value : Unsupported(*field)) {
      std::vector<Override> overrides = {Set(std::string(field->key), value)};
      for (const std::string& variable : EnvNames(*field))
        overrides.push_back(Env(variable, value));
      for (const Override& override_ : overrides) {
        ++seen;
        const Resolution r = ResolveText(Minimal(), {override_});
        ASSERT_EQ(r.problems.size(), 1u) << override_.key << "=" << value << Describe(r.problems);
        EXPECT_EQ(r.problems[0].key, field->key);
        EXPECT_THAT(r.problems[0].message, HasSubstr(std::string(field->refusal)));
      }
    }
  }
  EXPECT_GT(seen, 90);
}

TEST(OverridesTest, AutoRemovesWhatTheFileSays) {
  const Resolution r = ResolveText(
      Minimal("gpu_count = 2\n[hyperparameters]\nper_device_batch = 2\nglobal_batch = 16\n"
              "gradient_accumulation_steps = 9\n"),
      {Env("TRAIN_GRAD_ACCUM", "auto")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 4);
  EXPECT_TRUE(r.warnings.empty());
}

TEST(OverridesTest, AutoBatchIsLeftToThePlanThereToo) {
  const Resolution r = ResolveText(Minimal(), {Env("TRAIN_BATCH_SIZE", "auto")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.per_device_batch, 0);
}

TEST(OverridesTest, AContradictionBetweenOverridesNamesBoth) {
  const Resolution r =
      ResolveText(Minimal(), {Env("SYNTH_GPU_TYPE", "H100-4x"), Set("compute.gpus_per_node", "2")});
  ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
  EXPECT_THAT(r.problems[0].message, HasSubstr("SYNTH_GPU_TYPE"));
  EXPECT_THAT(r.problems[0].message, HasSubstr("compute.gpus_per_node = 2 (--set)"));
}

}  // namespace
}  // namespace sft::spec
