#include "common/spec/job_file_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;
using Read = std::variant<std::vector<RawEntry>, ReadError>;

// "line: message" of a text that was refused; empty if it was read.
std::string WhyRefused(const Read& read) {
  const auto* error = std::get_if<ReadError>(&read);
  return error == nullptr ? "" : std::to_string(error->line) + ": " + error->message;
}

std::string Times(std::string_view piece, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += piece;
  return text;
}

// A job file of each form with the same keys and values.
constexpr std::string_view kToml = R"(# A job.
[job]
model = "google/gemma-3-27b-it"
data = "d.jsonl"
group = "v2-lr"

[compute]
variant = "H100-2x"

[training]
mode = "lora"
use_qlora = true

[lora]
r = 32
alpha = 64
dropout = 0.1
target_modules = ["q_proj", "v_proj"]

[hyperparameters]
learning_rate = 1e-4
per_device_batch = 2
gradient_accumulation_steps = 4
n_epochs = 1
seed = 7
)";
constexpr std::string_view kYaml = R"(# A job.
job:
  model: google/gemma-3-27b-it
  data: d.jsonl
  group: "v2-lr"

compute: {variant: H100-2x}

training:
  mode: lora
  use_qlora: yes

lora:
  r: 32
  alpha: 64
  dropout: .1
  target_modules:
    - q_proj
    - v_proj

hyperparameters:
  learning_rate: 1e-4
  per_device_batch: 2
  gradient_accumulation_steps: 4
  n_epochs: 1
  seed: 7
)";
constexpr std::string_view kJson = R"(// A job.
{
  "job": {"model": "google/gemma-3-27b-it", "data": "d.jsonl", "group": "v2-lr"},
  "compute": {"variant": "H100-2x"},
  "training": {"mode": "lora", "use_qlora": true},
  "lora": {"r": 32, "alpha": 64, "dropout": 0.1, "target_modules": ["q_proj", "v_proj"]},
  "hyperparameters": {
    "learning_rate": 1e-4, "per_device_batch": 2, "gradient_accumulation_steps": 4,
    "n_epochs": 1, "seed": 7
  }
}
)";

TEST(JobFileReaderTest, TheThreeFormsSayTheSame) {
  const Resolution toml = Resolve(kToml, "a.toml", {});
  ASSERT_TRUE(toml.ok()) << Describe(toml.problems);
  for (const auto& [text, name] :
       {std::pair{kYaml, "a.yaml"}, std::pair{kYaml, "a.YML"}, std::pair{kYaml, "a"},
        std::pair{kJson, "a.json"}, std::pair{kJson, "a"}}) {
    const Resolution other = Resolve(text, name, {Set("job.name", "a")});
    ASSERT_TRUE(other.ok()) << name << Describe(other.problems);
    for (const ResolvedValue& value : toml.values) {
      EXPECT_EQ(TextOf(other, value.key), value.text) << name << " " << value.key;
    }
    EXPECT_EQ(Resolve(text, name, {}).spec.job.name, "a");
  }
  EXPECT_EQ(toml.spec.job.group, "v2-lr");
  EXPECT_EQ(OriginOf(Resolve(kYaml, "dir/a.yaml", {}), "lora.r"), "dir/a.yaml:14");
  EXPECT_EQ(OriginOf(Resolve(kYaml, "a.yaml", {}), "lora.target_modules"), "a.yaml:17");
  EXPECT_EQ(OriginOf(Resolve(kJson, "a.json", {}), "lora.r"), "a.json:6");
  EXPECT_EQ(OriginOf(Resolve(kJson, "a.json", {}), "hyperparameters.seed"), "a.json:9");
}

TEST(JobFileReaderTest, TheNameSaysTheFormAndElseTheText) {
  EXPECT_EQ(FormOf("a: 1", "x.toml"), FileForm::kToml);
  EXPECT_EQ(FormOf("", "x.yaml"), FileForm::kYaml);
  EXPECT_EQ(FormOf("{a: 1}", "x.yml"), FileForm::kYaml);
  EXPECT_EQ(FormOf("", "x.json"), FileForm::kJson);
  EXPECT_EQ(FormOf("# c\n\n [job]\n", "x"), FileForm::kToml);
  EXPECT_EQ(FormOf("a.b = 1", "x"), FileForm::kToml);
  EXPECT_EQ(FormOf("\"a: b\" = 1", "x"), FileForm::kToml);
  EXPECT_EQ(FormOf("", "x"), FileForm::kToml);
  EXPECT_EQ(FormOf("\xef\xbb\xbf# c\n'a = b': 1", "x.txt"), FileForm::kYaml);
  EXPECT_EQ(FormOf("a:\n  b = 1", "x"), FileForm::kYaml);
  EXPECT_EQ(FormOf("---\na: 1", "x"), FileForm::kYaml);
  EXPECT_EQ(FormOf("\n {\"a\": 1}", "x"), FileForm::kJson);
  EXPECT_EQ(FormOf("/* c */ {}", "x"), FileForm::kJson);
  EXPECT_EQ(FormOf("[[a.b]] # c\n", "x"), FileForm::kToml);
  EXPECT_EQ(FormOf("[{\"a\": 1}]", "x.json"), FileForm::kJson);
  EXPECT_EQ(FormOf("[\n{\"a\": 1}]", "x.json"), FileForm::kJson);
  EXPECT_EQ(FormOf("[a]: 1", "x.yaml"), FileForm::kYaml);
  EXPECT_EQ(FormOf("[1]", "x.json"), FileForm::kJson);
  EXPECT_EQ(FormOf("[\"job\"]", "x.json"), FileForm::kJson);
  EXPECT_EQ(FormOf("[[]]", "x.yaml"), FileForm::kYaml);
  EXPECT_EQ(FormOf("model_name=x: 1", "x.yaml"), FileForm::kYaml);
  EXPECT_EQ(FormOf("model_name=x: 1", "x"), FileForm::kYaml);
  EXPECT_EQ(FormOf("// lr = 1\n{}", "x.json"), FileForm::kJson);
  EXPECT_EQ(FormOf("// lr = 1\n{}", "x"), FileForm::kJson);
  EXPECT_EQ(FormOf("--- # a = b\na: 1", "x.yaml"), FileForm::kYaml);
  // Read as TOML when every job file was, whatever its name.
  EXPECT_EQ(FormOf("[job]\nmodel = 'm'\n", "x.yaml"), FileForm::kToml);
  EXPECT_EQ(FormOf("job.model = 'm'\n", "x.json"), FileForm::kToml);
}

TEST(JobFileReaderTest, AnErrorNamesLineKeyAndTheNearestKey) {
  const std::string yaml = "job:\n  model: m\n  data: d\n  modle: x\ncompute:\n  gpu_type: H100\n";
  EXPECT_EQ(Describe(Resolve(yaml, "a.yaml", {}).problems),
            "job.modle:4: unknown key; did you mean job.model?\n");
  const std::string json =
      "{\"job\": {\"model\": \"m\",\n\"data\": \"d\"},\n\"compute\": {\"gpu_type\": \"H100\",\n"
      "\"gpu_count\": \"two\"}}";
  EXPECT_THAT(Describe(Resolve(json, "a.json", {}).problems),
              HasSubstr("compute.gpu_count:4: must be a whole number"));
  EXPECT_THAT(Describe(Resolve("job: [m\n", "a.yaml", {}).problems), HasSubstr("is not YAML: "));
  EXPECT_THAT(Describe(Resolve("{\n\"job\": }", "a.json", {}).problems),
              HasSubstr(":2: is not JSON: "));
}

// YAML 1.1 reads no, on and 1:30 otherwise than those who write them, and 1e-4 as text.
TEST(JobFileReaderTest, UnquotedWordsOfYamlHaveTheTypeOfTheirKey) {
  const std::string yaml = R"(
job: {model: m, data: d, name: 2024}
compute: {gpu_type: H100}
training:
  use_qlora: On
  mode: lora
  validation: {enabled: off, evaluation_strategy: no}
checkpoint: {save_strategy: no}
hyperparameters: {learning_rate: 1e-4, weight_decay: 0, max_steps: null, seed: ~}
scheduling: {time_limit: 8h}
lora:
data: {val_split: 0.05, roles: [user=1]}
)";
  const Resolution r = Resolve(yaml, "a.yaml", {});
  EXPECT_EQ(Describe(r.problems), "");
  EXPECT_EQ(r.spec.job.name, "2024");
  EXPECT_TRUE(r.spec.training.use_qlora);
  EXPECT_FALSE(r.spec.training.validation.enabled);
  EXPECT_EQ(r.spec.training.validation.strategy, EvalStrategy::kNo);
  EXPECT_EQ(r.spec.checkpoint.save_strategy, SaveStrategy::kNo);
  EXPECT_EQ(r.spec.hyperparameters.learning_rate, 1e-4);
  EXPECT_EQ(r.spec.hyperparameters.seed, JobSpec().hyperparameters.seed) << "null leaves it out";
  EXPECT_EQ(r.spec.data.val_split, "0.05");
}

TEST(JobFileReaderTest, WhatTwoReadersOfYamlTakeForDifferentNumbersIsNone) {
  for (const char* text : {"010", "0x10", "0o10", "1_000", "1:30", ".inf", ".nan", "1e", "1.2.3",
                           "99999999999999999999", "\"7\"", "- 7", "+", "."}) {
    const std::string yaml = std::string(
                                 "job: {model: m, data: d}\ncompute: {gpu_type: H100}\n"
                                 "hyperparameters:\n  seed: ") +
                             text + "\n";
    const Resolution r = Resolve(yaml, "a.yaml", {});
    EXPECT_FALSE(r.ok()) << text;
    EXPECT_EQ(r.problems.empty() ? 0 : r.problems[0].line, 4) << text << Describe(r.problems);
  }
}

TEST(JobFileReaderTest, WhatWouldHideAValueIsRefused) {
  EXPECT_THAT(WhyRefused(ReadYaml("a: 1\nb: &x 2\n")), HasSubstr("2: has an anchor"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: &x\n  b: 1\n")), HasSubstr("1: has an anchor"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: 1\nb: *x\n")), HasSubstr("2: has an alias"));
  EXPECT_THAT(WhyRefused(ReadYaml("a:\n  <<: {b: 1}\n")), HasSubstr("2: merges another table"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: !!float 1\n")), HasSubstr("1: has a tag"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: !x [1]\n")), HasSubstr("1: has a tag"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: 1\n---\nb: 1\n")), HasSubstr("2: holds several documents"));
  EXPECT_THAT(WhyRefused(ReadYaml("[a]: 1\n")), HasSubstr("1: has a list or a table as a key"));
  EXPECT_THAT(WhyRefused(ReadYaml("? {a: 1}\n: 1\n")), HasSubstr("has a list or a table as a key"));
  EXPECT_EQ(WhyRefused(ReadYaml("a: {b: 1}\nc: 2\na: {d: 1}\n")),
            "3: gives \"a\" twice, here and in line 1; keep one");
  EXPECT_EQ(WhyRefused(ReadJson("{\"a\": 1,\n\"b\": {\"a\": 1},\n\"a\": 2}")),
            "3: gives \"a\" twice, here and in line 1; keep one");
  for (const char* text : {"- a\n", "just text", "3", "[1, 2]"}) {
    EXPECT_THAT(WhyRefused(ReadYaml(text)), HasSubstr("1: must be sections and keys")) << text;
  }
  EXPECT_THAT(WhyRefused(ReadJson("[1]")), HasSubstr("1: must be sections and keys"));
  EXPECT_THAT(WhyRefused(ReadJson("3")), HasSubstr("1: must be sections and keys"));
  EXPECT_THAT(WhyRefused(ReadJson("")), HasSubstr("1: is not JSON"));
  EXPECT_THAT(WhyRefused(ReadJson("{} {}")), HasSubstr("1: is not JSON"));
  EXPECT_THAT(WhyRefused(ReadJson("{\"a\": 1e999}")), HasSubstr("1: is not JSON"));
  EXPECT_EQ(WhyRefused(ReadYaml("a:\n  \"\": 1\n")), "2: has a key without a name");
  EXPECT_EQ(WhyRefused(ReadJson("{\"\": 1}")), "1: has a key without a name");
  EXPECT_EQ(WhyRefused(ReadYaml("")), "");
  EXPECT_EQ(WhyRefused(ReadYaml("%YAML 1.2\n---\na: 1\n...\n")), "");
}

TEST(JobFileReaderTest, BytesThatAreNoTextHaveTheirLine) {
  EXPECT_THAT(WhyRefused(ReadYaml("a: 1\nb: \x01\n")), HasSubstr("2: is not YAML: control"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: 1\n\nb: \xff\n")), HasSubstr("3: is not YAML: "));
  EXPECT_THAT(WhyRefused(ReadYaml(std::string("a: 1\nb: \0\n", 9))), HasSubstr("2: is not YAML: "));
  EXPECT_THAT(WhyRefused(ReadYaml("a:\n\tb: 1\n")), HasSubstr("2: is not YAML: "));
  EXPECT_THAT(WhyRefused(ReadJson("{\n\"a\": \"\xff\"}")), HasSubstr("2: is not JSON: "));
  EXPECT_THAT(WhyRefused(ReadJson(std::string("{\n\0}", 4))), HasSubstr("2: is not JSON: "));
}

TEST(JobFileReaderTest, DeepOrWideTextIsRefused) {
  constexpr size_t kMany = 200'000;
  EXPECT_THAT(WhyRefused(ReadYaml(Times("{a: ", kMany))), HasSubstr("nests more than 16 levels"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: " + Times("[", 900))),
              HasSubstr("nests more than 16 levels"));
  EXPECT_NE(WhyRefused(ReadYaml("a: " + Times("[", kMany))), "");
  EXPECT_NE(WhyRefused(ReadYaml("a: " + Times("- ", kMany))), "");
  EXPECT_THAT(WhyRefused(ReadJson(Times("{\"a\":", kMany))),
              HasSubstr("nests more than 16 levels"));
  EXPECT_THAT(WhyRefused(ReadJson("{\"a\":" + Times("[", kMany))),
              HasSubstr("nests more than 16 levels"));
  EXPECT_THAT(WhyRefused(ReadJson("{\"a\": [" + Times("1,", kMany))), HasSubstr("more than 32768"));
  EXPECT_THAT(WhyRefused(ReadYaml("a: [" + Times("1, ", kMany))), HasSubstr("more than 32768"));
  EXPECT_THAT(WhyRefused(ReadYaml(std::string(300, 'k') + ": 1\n")),
              HasSubstr("1: has a name of more than 256 bytes"));
  std::string yaml, json = "{";
  for (int i = 0; i < 10'000; ++i) {
    yaml += "k" + std::to_string(i) + ": 1\n";
    json += "\"k" + std::to_string(i) + "\": 1,\n";
  }
  EXPECT_THAT(WhyRefused(ReadYaml(yaml)), HasSubstr("8193: has more than 8192 names"));
  EXPECT_THAT(WhyRefused(ReadJson(json)), HasSubstr("8193: has more than 8192 names"));
}

TEST(JobFileReaderTest, ListsHoldTextsOrFiles) {
  const std::string yaml = R"(
job: {model: m}
compute: {gpu_type: H100}
data:
  train:
    - a.jsonl
    - {path: b.jsonl, weight: 0.5}
lora: {target_modules: [q_proj, null]}
)";
  const Resolution r = Resolve(yaml, "a.yaml", {});
  EXPECT_EQ(TextOf(r, "data.mixture"), "a.jsonl,b.jsonl weight=0.5");
  EXPECT_THAT(Describe(r.problems), HasSubstr("lora.target_modules:8: must be a list of strings"));
}

TEST(JobFileReaderTest, SwitchesWithAThirdWordTakeYesAndNo) {
  const auto resolved = [](const std::string& word) {
    return Resolve(
        "job: {kind: generate, model: m, data: d}\ncompute: {gpu_type: H100}\n"
        "generate: {num_beams: 2, early_stopping: " +
            word + "}\n",
        "a.yaml", {});
  };
  for (const char* word : {"yes", "on", "true", "Yes"}) {
    EXPECT_EQ(TextOf(resolved(word), "generate.early_stopping"), "true") << word;
  }
  for (const char* word : {"no", "off", "false"}) {
    EXPECT_EQ(TextOf(resolved(word), "generate.early_stopping"), "false") << word;
  }
  EXPECT_EQ(TextOf(resolved("never"), "generate.early_stopping"), "never");
  EXPECT_FALSE(resolved("'yes'").ok());
}

TEST(JobFileReaderTest, AGradersTextsAreTextsOrNeedQuotes) {
  const auto problems = [](const std::string& grader, const char* name) {
    const std::string begin = R"({"job": {"kind": "evaluate", "model": "m", "data": "d"}, )"
                              R"("compute": {"gpu_type": "H100"},)"
                              R"( "evaluate": {"grader": [{"type": "command", )";
    return Describe(Resolve(begin + grader + "}]}}", name, {}).problems);
  };
  EXPECT_EQ(problems(R"("name": "a", "command": [/opt/g, 5, yes])", "a.yaml"), "");
  EXPECT_THAT(problems(R"("name": "a", "command": ["/opt/g", 5])", "a.json"),
              HasSubstr("command: its items are texts: 5 needs quotes"));
  EXPECT_THAT(problems(R"("name": 2024, "command": ["/opt/g"])", "a.yaml"),
              HasSubstr("name: give a text: 2024 needs quotes"));
}

// The documents' own file, whose words are those of another tool.
TEST(JobFileReaderTest, ADialectsWordsAreTakenFromYamlAndJson) {
  const std::string sections = R"(
model:
  name: "google/gemma-3-27b-it"
  max_seq_len: 2048
tuning:
  mode: "qlora"
  backend: "bnb"
  lora: {r: 32, alpha: 64, dropout: 0.1}
train:
  batch_size: "auto"
  grad_accum: "auto"
  gradient_checkpointing: true
  ddp_bucket_cap_mb: 200
data: {train: rows.jsonl}
compute: {variant: H100-2x}
)";
  const Resolution yaml = Resolve(sections, "run.yaml", {});
  ASSERT_TRUE(yaml.ok()) << Describe(yaml.problems);
  EXPECT_TRUE(yaml.spec.qlora());
  EXPECT_EQ(yaml.spec.lora.r, 32);
  EXPECT_EQ(yaml.spec.hyperparameters.per_device_batch, 0);
  const std::string trainer = R"({
  "model_name_or_path": "openai/gpt-oss-20b", "train_file": "rows.jsonl", "output_dir": "./out",
  "num_train_epochs": 3, "per_device_train_batch_size": 4, "learning_rate": 2e-5,
  "save_strategy": "epoch", "logging_steps": 10, "bf16": true, "lora_r": 8, "lora_alpha": 16,
  "num_gpus": 4, "compute": {"gpu_type": "H100"}})";
  const Resolution json = Resolve(trainer, "run.json", {});
  ASSERT_TRUE(json.ok()) << Describe(json.problems);
  EXPECT_EQ(json.spec.hyperparameters.per_device_batch, 4);
  EXPECT_EQ(json.spec.compute.gpu_count, 4);
  EXPECT_EQ(json.spec.lora.r, 8);
}

}  // namespace
}  // namespace sft::spec
