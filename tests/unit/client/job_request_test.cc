#include "client/base/job_request.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sft::client {
namespace {

v1::NeededFile Needed(const std::string& path, bool from_override) {
  v1::NeededFile needed;
  needed.set_path(path);
  needed.set_from_override(from_override);
  return needed;
}

TEST(LocalPathTest, CountsFromTheJobFileOrTheWorkingDirectory) {
  EXPECT_EQ(LocalPath(Needed("d.jsonl", false), "jobs/job.toml"), "jobs/d.jsonl");
  EXPECT_EQ(LocalPath(Needed("d.jsonl", false), "job.toml"), "d.jsonl");
  EXPECT_EQ(LocalPath(Needed("d.jsonl", true), "jobs/job.toml"), "d.jsonl");
  EXPECT_EQ(LocalPath(Needed("/a/d.jsonl", false), "jobs/job.toml"), "/a/d.jsonl");
}

TEST(CollectOverridesTest, SendsTheTextOfADeepspeedJson) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "job_request_test_ds.json";
  std::ofstream(path) << "{} // comment";
  SubmitFlags flags;
  flags.deepspeed = path.string();
  const auto overrides = CollectOverrides(flags);
  ASSERT_TRUE(overrides.ok()) << overrides.status();
  ASSERT_FALSE(overrides->empty());
  EXPECT_EQ(overrides->back().key(), "train.deepspeed_config");
  EXPECT_EQ(overrides->back().value(), "{} // comment");
  EXPECT_EQ(overrides->back().origin(), "--deepspeed");
  std::filesystem::remove(path);
}

TEST(CollectOverridesTest, RefusesADeepspeedJsonThatIsNotThere) {
  SubmitFlags flags;
  flags.deepspeed = "no/such/ds.json";
  EXPECT_FALSE(CollectOverrides(flags).ok());
}

TEST(CollectOverridesTest, SendsTheNamesOfVariablesThatLookLikeKeysAndNoSecrets) {
  setenv("TRAIN_BATCH_SIZE", "", 1);
  setenv("TRAIN_LERNING_RATE", "1e-4", 1);
  setenv("MODEL_API_KEY", "secret", 1);
  setenv("DEEPSPEED_CONFIG", "ds.json", 1);
  setenv("MODEL_EMPTY", "", 1);
  const auto overrides = CollectOverrides(SubmitFlags());
  for (const char* name : {"TRAIN_BATCH_SIZE", "TRAIN_LERNING_RATE", "MODEL_API_KEY",
                           "DEEPSPEED_CONFIG", "MODEL_EMPTY"}) {
    unsetenv(name);
  }
  ASSERT_TRUE(overrides.ok()) << overrides.status();
  std::string text;
  for (const v1::Override& o : *overrides) text += o.key() + "=" + o.value() + "\n";
  EXPECT_EQ(text, "DEEPSPEED_CONFIG=\nTRAIN_LERNING_RATE=\nMODEL_API_KEY=\n");
}

TEST(CollectOverridesTest, SendsUnslothsSwitchWithItsValueAndTheOthersOnceByName) {
  const std::pair<const char*, const char*> variables[] = {{"UNSLOTH_FORCE_SINGLE_GPU", "1"},
                                                           {"UNSLOTH_COMPILE_MAXIMUM", "1"},
                                                           {"UNSLOTH_RETURN_LOGITS", "1"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  const auto overrides = CollectOverrides(SubmitFlags());
  for (const auto& [name, value] : variables) unsetenv(name);
  ASSERT_TRUE(overrides.ok()) << overrides.status();
  std::string text;
  for (const v1::Override& o : *overrides) text += o.key() + "=" + o.value() + "\n";
  EXPECT_EQ(text, "UNSLOTH_FORCE_SINGLE_GPU=1\nUNSLOTH_COMPILE_MAXIMUM=\nUNSLOTH_RETURN_LOGITS=\n");
}

TEST(ProblemOfTest, TakesTheLineOutOfTheText) {
  EXPECT_EQ(ProblemLine(ProblemOf({"lora.r", "line 12: is bad"}), "job.toml"),
            "job.toml:12: lora.r: is bad");
  EXPECT_EQ(ProblemLine(ProblemOf({"lora.r", "line up: is bad"}), "job.toml"),
            "job.toml: lora.r: line up: is bad");
  EXPECT_EQ(ProblemLine(ProblemOf({"lora.r", "is bad"}), "job.toml"), "job.toml: lora.r: is bad");
}

TEST(ProblemLineTest, NamesWhatItKnows) {
  v1::Problem problem;
  problem.set_message("is bad");
  EXPECT_EQ(ProblemLine(problem, "job.toml"), "job.toml: is bad");
  problem.set_line(7);
  EXPECT_EQ(ProblemLine(problem, "job.toml"), "job.toml:7: is bad");
  problem.set_key("lora.r");
  EXPECT_EQ(ProblemLine(problem, "job.toml"), "job.toml:7: lora.r: is bad");
}

}  // namespace
}  // namespace sft::client
