#include "common/spec/docs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/spec/fields.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

TEST(DocsTest, ConfigPageIsTheGeneratedOne) {
  std::ifstream in(SFT_SOURCE_DIR "/docs/config.md");
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), ConfigMarkdown()) << "run: sft-config-doc > docs/config.md";
}

TEST(DocsTest, ExplainTakesKeysAliasesAndTables) {
  EXPECT_EQ(ExplainKey("lora.dropout"),
            "lora.dropout\n"
            "  Dropout on the adapters' input while training.\n"
            "  value     a number from 0 to 0.999\n"
            "  default   0\n"
            "  spellings tuning.lora.dropout, lora_dropout, lora.lora_dropout\n");
  EXPECT_EQ(ExplainKey("lora_dropout"), ExplainKey("lora.dropout"));
  EXPECT_THAT(ExplainKey("lora"), HasSubstr("lora.use_rslora"));
  EXPECT_EQ(ExplainKey("nothing"), "");
  EXPECT_THAT(ExplainKey("compute.variant"), HasSubstr("SYNTH_GPU_TYPE"));
}

TEST(DocsTest, ThePageNamesEveryVariableAndEveryWordThatGivesAWarning) {
  const std::string page = ConfigMarkdown();
  for (const Field* field : Fields()) {
    for (std::string_view name : SplitWords(field->env, ' ')) {
      EXPECT_THAT(page, HasSubstr("`" + std::string(name) + "`"));
    }
    EXPECT_THAT(page, HasSubstr(std::string(field->note)));
  }
}

TEST(DocsTest, ExplainTakesAVariable) {
  EXPECT_EQ(ExplainKey("TRAIN_BATCH_SIZE"), ExplainKey("hyperparameters.per_device_batch"));
}

TEST(DocsTest, ExplainAllHasALineForEachKey) {
  const std::string text = ExplainAll();
  for (const Field* field : Fields()) EXPECT_THAT(text, HasSubstr(std::string(field->key) + " "));
}

}  // namespace
}  // namespace sft::spec
