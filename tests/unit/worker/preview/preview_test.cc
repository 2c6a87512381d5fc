#include "worker/preview/preview.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/base/error.h"

namespace sft::preview {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(PreviewOptionsTest, FlagsAreReadAndWrongOnesNamed) {
  const auto options = ParseOptions({"rows.jsonl", "--model", "m", "--columns", "prompt=a,text=b",
                                     "--sequence-length", "4096", "--json"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->file, "rows.jsonl");
  EXPECT_EQ(options->columns, (std::vector<std::string>{"prompt=a", "text=b"}));
  EXPECT_EQ(options->sequence_length, 4096);
  EXPECT_TRUE(options->json);
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "no FILE"},
      {{"rows.jsonl"}, "--model DIR is missing"},
      {{"a", "b", "--model", "m"}, "unknown argument \"b\""},
      {{"a", "--modle", "m"}, "unknown argument \"--modle\""},
      {{"a", "--model"}, "--model needs a value"},
      {{"a", "--model", "m", "--batch", "0"}, "--batch takes a whole number"},
      {{"a", "--model", "m", "--batch", "1x"}, "not \"1x\""},
      {{"a", "--model", "m", "--gpu-type", "GTX"}, "--gpu-type GTX is not known; these are: H200"},
      {{"a", "--model", "m", "--loss-on", "user"}, "--loss-on takes assistant or all"},
      {{"a", "--model", "m", "--template-date", "26.11."}, "--template-date takes a day such as"},
      {{"a", "--model", "m", "--template-argument", "high"}, "\"high\" is not NAME=VALUE"},
  };
  for (const auto& [args, problem] : cases) {
    EXPECT_THAT(std::string(Message(ParseOptions(args).status())), HasSubstr(problem));
  }
}

class PreviewTest : public ::testing::Test {
 protected:
  Options Of(const std::string& rows) const {
    Options options;
    options.file = folder_.Write("rows.json", rows);
    options.model = folder_.path();
    options.sequence_length = 64;
    options.batch = 2;
    return options;
  }
  const engine::ModelFolder folder_{"chatml_tools", "<s>", "<|im_end|>"};
};

TEST_F(PreviewTest, WhatAJobWouldFindIsSaidInWordsAndInJson) {
  std::string words;
  for (int i = 0; i < 200; ++i) words += "word ";
  Options options = Of(R"([{"conversations": [{"from": "human", "value": "2+2?"},
                                              {"from": "gpt", "value": "It is 4."}]},
    {"text": ")" + words +
                       R"("},
    {"prompt": "a", "chosen": "b", "rejected": "c"}])");
  const Found found = Preview(options);
  EXPECT_TRUE(found.refused);
  const std::string& text = found.text;
  EXPECT_THAT(text, HasSubstr("2 of 3 can be used: 1 ShareGPT, 1 text, 1 preference pairs"));
  EXPECT_THAT(text, HasSubstr("line 4: wrong form: a preference pair"));
  EXPECT_THAT(text, HasSubstr("1 rows (50.0 %), too long for sequence_length"));
  EXPECT_THAT(text, HasSubstr(">>It is 4.<|im_end|><<"));
  options.color = true;
  EXPECT_THAT(Preview(options).text, HasSubstr("\x1b[32mIt is 4.<|im_end|>\x1b[0m"));
  options.json = true;
  const nlohmann::json json = ParseJson(Preview(options).text);
  EXPECT_EQ(json.at("used"), 2);
  EXPECT_EQ(json.at("forms").at("ShareGPT"), 1);
  EXPECT_EQ(json.at("first_bad_rows").at(0).at("line"), 4);
  EXPECT_EQ(json.at("samples").size(), 2U);
}

TEST_F(PreviewTest, WhatStandsInRowsCannotSteerATerminal) {
  Options options = Of(R"([{"prompt": "a\u001b[2Jb\n\u202ec", "completion": "d\u0007"},
                           {"messages": [{"role": "x\u001b[31m", "content": "y"}]}])");
  for (const bool color : {false, true}) {
    options.color = color;
    const std::string text = Preview(options).text;
    EXPECT_EQ(text.find("\x1b[2J"), std::string::npos) << text;
    EXPECT_EQ(text.find("\x1b[31m"), std::string::npos) << text;
    EXPECT_EQ(text.find('\x07'), std::string::npos) << text;
    EXPECT_EQ(text.find("\u202e"), std::string::npos) << text;
    EXPECT_THAT(text, HasSubstr("a_[2Jb\n_c"));
  }
  options.json = true;
  EXPECT_THAT(ParseJson(Preview(options).text).at("samples").at(0).at("text").get<std::string>(),
              HasSubstr("a\x1b[2Jb"));
}

TEST_F(PreviewTest, AnEpochsTimeIsToldOfAGpu) {
  Options options = Of(R"([{"prompt": "ask", "completion": "answer"}])");
  EXPECT_EQ(Preview(options).text.find("an epoch on one"), std::string::npos);
  options.gpu_type = "H100";
  EXPECT_THAT(Preview(options).text, HasSubstr("time        not known: "));
  folder_.Write("config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
      "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000,
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
      "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
  EXPECT_THAT(Preview(options).text, HasSubstr("an epoch on one H100: LoRA in bf16, packed"));
  options.json = true;
  EXPECT_GT(ParseJson(Preview(options).text).at("epoch_seconds").get<double>(), 0);
}

TEST(PreviewTemplateTest, TheDayAndTheArgumentsOfTheTemplateAreSaid) {
  const engine::ModelFolder folder("channels", "<s>", "</s>");
  Options options;
  options.file = folder.Write("rows.json", R"([{"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}]}])");
  options.model = folder.path();
  EXPECT_THAT(Preview(options).text, HasSubstr("today's; a job has that of its submission"));
  options.template_date = "2026-11-26";
  options.template_arguments = {"reasoning_effort=high", "enable_thinking=false"};
  const std::string text = Preview(options).text;
  EXPECT_THAT(text, HasSubstr("day         2026-11-26, which the chat template prints"));
  EXPECT_THAT(text, HasSubstr("no effect   enable_thinking (data.template_arguments)"));
  EXPECT_THAT(text, HasSubstr("Day: 2026-11-26\nEffort: high"));
  options.json = true;
  const nlohmann::json json = ParseJson(Preview(options).text);
  EXPECT_EQ(json.at("template_date"), "2026-11-26");
  EXPECT_EQ(json.at("unused_template_arguments").at(0), "enable_thinking");
}

TEST_F(PreviewTest, LossIsOnWhatTheJobSays) {
  Options options = Of(R"([{"prompt": "ask", "completion": "answer"}])");
  EXPECT_THAT(Preview(options).text, HasSubstr("ask>>answer"));
  options.loss_on_all = true;
  EXPECT_EQ(Preview(options).text.find("ask>>"), std::string::npos);
}

TEST_F(PreviewTest, APairIsOneRowAndBothItsAnswersAreShown) {
  std::string rows;
  for (int i = 0; i < 16; ++i) {
    rows += fmt::format(R"({{"prompt":"ask {}","chosen":" good","rejected":" bad"}})", i) + "\n";
  }
  rows += R"({"prompt":"ask","chosen":" same","rejected":" same"})";
  Options options = Of(rows);
  options.batch = 8;
  options.loss = "dpo";
  const Found found = Preview(options);
  EXPECT_FALSE(found.refused) << "equal answers are always left out";
  EXPECT_THAT(found.text, HasSubstr("an epoch    2 steps of 8 pairs\n"));
  EXPECT_THAT(found.text, Not(HasSubstr("packed")));
  EXPECT_THAT(found.text, HasSubstr("line 16, chosen, "));
  EXPECT_THAT(found.text, HasSubstr("line 16, rejected, "));
  options.json = true;
  EXPECT_EQ(ParseJson(Preview(options).text).at("steps"), 2);
  EXPECT_TRUE(ParseJson(Preview(options).text).at("packed_steps").is_null());
  options.loss = "kto";
  EXPECT_EQ(ParseJson(Preview(options).text).at("steps"), 4);
  options.json = false;
  options.sequence_length = 2;
  EXPECT_THAT(Preview(options).text, HasSubstr("32 rows (100.0 %), too long"));
}

TEST_F(PreviewTest, OrpoLearnsThePromptTooUnlessToldOtherwise) {
  const auto loss_on_all = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"rows.jsonl", "--model", "m", "--loss"};
    args.insert(args.end(), more.begin(), more.end());
    return ParseOptions(args)->loss_on_all;
  };
  EXPECT_TRUE(loss_on_all({"orpo"}));
  EXPECT_FALSE(loss_on_all({"orpo", "--loss-on", "assistant"}));
  EXPECT_FALSE(loss_on_all({"dpo"}));
  EXPECT_FALSE(
      ParseOptions({"rows.jsonl", "--model", "m", "--loss", "dpo", "--loss-on", "all"}).ok());
}

TEST_F(PreviewTest, DataThatNoJobCouldUseIsRefused) {
  EXPECT_FALSE(Preview(Of(R"([{"text": "a"}])")).refused);
  EXPECT_TRUE(Preview(Of(R"([{"text": "a"}, {}])")).refused);
  EXPECT_THAT([&] { Preview(Of("[]")); },
              ThrowsMessage<engine::UserError>(HasSubstr("the file has no rows")));
  EXPECT_THAT([&] { Preview(Of("[{}]")); },
              ThrowsMessage<engine::UserError>(HasSubstr("none of its 1 rows can be used")));
  Options options = Of(R"([{"text": "a"}])");
  options.model = "/nowhere";
  EXPECT_THROW(Preview(options), engine::UserError);
}

TEST_F(PreviewTest, WhatAJobWouldTrainOnIsSaid) {
  std::string rows;
  for (int i = 0; i < 10; ++i) {
    rows += fmt::format(R"({{"prompt":"ask {}","completion":" answer"}})", i) + "\n";
  }
  rows += R"({"prompt":"ask 3","completion":" answer"})" + std::string("\n");
  rows += R"({"prompt":"long","completion":")" + std::string(300, '!') + "\"}\n";
  const std::string file = folder_.Write("rows.jsonl", rows);
  const auto of = [&](std::vector<std::string> settings) {
    std::vector<std::string> args = {
        file, "--model", folder_.path(), "--sequence-length", "64", "--batch", "4"};
    for (std::string& setting : settings) {
      args.emplace_back("--set");
      args.push_back(std::move(setting));
    }
    const auto options = ParseOptions(args);
    EXPECT_TRUE(options.ok()) << options.status();
    return options.value_or(Options());
  };
  const Found refused = Preview(of({"data.dedup=off"}));
  EXPECT_TRUE(refused.refused);
  EXPECT_THAT(refused.text, HasSubstr("This job would be refused: "));
  EXPECT_THAT(refused.text, HasSubstr("line 12: "));
  Options options = of({"data.on_long_rows=split", "data.dedup=exact", "data.val_split=2 rows"});
  const Found cut = Preview(options);
  EXPECT_FALSE(cut.refused);
  EXPECT_THAT(cut.text, HasSubstr("This job would train on 9 rows in "));
  EXPECT_THAT(cut.text, HasSubstr("held out    2 rows for validation (data.val_split = 2 rows)"));
  EXPECT_THAT(cut.text,
              HasSubstr("repeats     1 rows left out (data.dedup = exact), first line 11"));
  EXPECT_THAT(cut.text,
              HasSubstr("cut         1 rows that are too long (data.on_long_rows = split)"));
  options.json = true;
  const nlohmann::json json = ParseJson(Preview(options).text).at("job");
  EXPECT_TRUE(json.at("refused").is_null());
  EXPECT_EQ(json.at("rows"), 9);
  EXPECT_EQ(json.at("held_out"), 2);
  EXPECT_GT(json.at("documents").get<int>(), 9);
  EXPECT_FALSE(json.at("packing").get<bool>());
  Options packed = of({"data.on_long_rows=skip", "data.packing=true"});
  EXPECT_THAT(Preview(packed).text, HasSubstr("left out    1 rows: 1 too long, 0 bad"));
  EXPECT_THAT(Preview(packed).text, HasSubstr("steps of 4 packed sequences"));
  packed.first = 2;
  EXPECT_THAT(Preview(packed).text, HasSubstr("2 of 2 can be used"));
  EXPECT_THAT(std::string(Message(
                  ParseOptions({file, "--model", "m", "--set", "data.dedup=near"}).status())),
              HasSubstr("data.dedup: "));
  EXPECT_THAT(std::string(Message(ParseOptions({file, "--model", "m", "--set", "x"}).status())),
              HasSubstr("must be KEY=VALUE"));
}

}  // namespace
}  // namespace sft::preview
