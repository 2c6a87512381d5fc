#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/job_protocol.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

struct Method {
  std::string_view name;
  std::string_view text;
  std::vector<Override> overrides;
  Mode mode;
  bool qlora;
  std::string_view kind;
  int bits;

  friend void PrintTo(const Method& m, std::ostream* out) { *out << m.name; }
};

class MethodTest : public ::testing::TestWithParam<Method> {};

TEST_P(MethodTest, AllSwitchesAgree) {
  const Method& m = GetParam();
  const Resolution r = ResolveText(Minimal(m.text), m.overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.training.mode, m.mode);
  EXPECT_EQ(r.spec.training.use_qlora, m.qlora);
  EXPECT_EQ(TextOf(r, "hyperparameters.train_kind"), m.kind);
  EXPECT_EQ(r.spec.quantization.bits, m.bits);
  EXPECT_EQ(r.spec.qlora(), m.qlora);
}

constexpr std::string_view kQlora =
    "[training]\nmode = \"lora\"\nuse_qlora = true\n[hyperparameters]\ntrain_kind = \"peft\"\n"
    "[quantization]\nbits = 4";
constexpr std::string_view kFull =
    "[training]\nmode = \"full_finetune\"\nuse_qlora = false\n[hyperparameters]\n"
    "train_kind = \"fft\"\n";

INSTANTIATE_TEST_SUITE_P(
    Cases, MethodTest,
    ::testing::Values(
        Method{"Nothing", "", {}, Mode::kLora, false, "peft", 0},
        Method{"Lora", "[training]\nmode = \"lora\"", {}, Mode::kLora, false, "peft", 0},
        Method{"Qlora", kQlora, {}, Mode::kLora, true, "peft", 4},
        Method{"QloraInOneWord", "[tuning]\nmode = \"qlora\"", {}, Mode::kLora, true, "peft", 4},
        Method{"LoadIn4Bit", "[model]\nload_in_4bit = true", {}, Mode::kLora, true, "peft", 4},
        Method{"BitsAlone", "[quantization]\nbits = 4", {}, Mode::kLora, true, "peft", 4},
        Method{"EightBitsAlone", "[quantization]\nbits = 8", {}, Mode::kLora, true, "peft", 8},
        Method{"EightBitsWithQlora",
               "[training]\nuse_qlora = true\n[quantization]\nbits = 8",
               {},
               Mode::kLora,
               true,
               "peft",
               8},
        Method{"LoadIn8Bit", "[model]\nload_in_8bit = true", {}, Mode::kLora, true, "peft", 8},
        Method{"LoadIn8BitInOtherTables",
               "[training]\nmode = \"qlora\"\n[quantization]\nload_in_4bit = false\n"
               "[model]\nload_in_8bit = true",
               {},
               Mode::kLora,
               true,
               "peft",
               8},
        Method{"LoadInNothing",
               "[model]\nload_in_4bit = false\nload_in_8bit = false",
               {},
               Mode::kLora,
               false,
               "peft",
               0},
        Method{"Full", kFull, {}, Mode::kFullFinetune, false, "fft", 0},
        Method{"KindAlone",
               "[hyperparameters]\ntrain_kind = \"fft\"",
               {},
               Mode::kFullFinetune,
               false,
               "fft",
               0},
        Method{"FftWord", "[training]\nmode = \"fft\"", {}, Mode::kFullFinetune, false, "fft", 0},
        Method{"FullOverQlora",
               kQlora,
               {Set("training.mode", "full_finetune")},
               Mode::kFullFinetune,
               false,
               "fft",
               0},
        Method{"KindOverQlora",
               kQlora,
               {Set("hyperparameters.train_kind", "fft")},
               Mode::kFullFinetune,
               false,
               "fft",
               0},
        Method{"QloraOverFull",
               kFull,
               {Set("training.use_qlora", "true")},
               Mode::kLora,
               true,
               "peft",
               4},
        Method{"QloraWordOverFull",
               kFull,
               {Set("tuning.mode", "qlora")},
               Mode::kLora,
               true,
               "peft",
               4},
        Method{"QloraOff",
               kQlora,
               {Set("training.use_qlora", "false")},
               Mode::kLora,
               false,
               "peft",
               0},
        Method{
            "FourBitsOverFull", kFull, {Set("load_in_4bit", "true")}, Mode::kLora, true, "peft", 4},
        Method{"EightBitsOverFour",
               kQlora,
               {Set("quantization.bits", "8")},
               Mode::kLora,
               true,
               "peft",
               8},
        Method{"LoadIn8BitOverFour",
               kQlora,
               {Set("load_in_8bit", "true")},
               Mode::kLora,
               true,
               "peft",
               8},
        Method{"FourBitsOverLoadIn8Bit",
               "[model]\nload_in_8bit = true",
               {Set("load_in_4bit", "true")},
               Mode::kLora,
               true,
               "peft",
               4},
        Method{"QloraKeepsTheFilesBits",
               "[training]\nuse_qlora = true\n[quantization]\nbits = 8",
               {Set("training.use_qlora", "true")},
               Mode::kLora,
               true,
               "peft",
               8},
        Method{"FullOverEightBits",
               "[model]\nload_in_8bit = true",
               {Set("training.mode", "full_finetune")},
               Mode::kFullFinetune,
               false,
               "fft",
               0},
        Method{"BitsOff", kQlora, {Set("quantization.bits", "0")}, Mode::kLora, false, "peft", 0}),
    [](const auto& info) { return std::string(info.param.name); });

struct Precision {
  std::string_view name;
  std::string_view text;
  ComputeType type;

  friend void PrintTo(const Precision& p, std::ostream* out) { *out << p.name; }
};

class PrecisionTest : public ::testing::TestWithParam<Precision> {};

TEST_P(PrecisionTest, FollowsBf16AndItsOtherSpellings) {
  const Resolution r = ResolveText(Minimal(GetParam().text));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.compute_type, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PrecisionTest,
    ::testing::Values(
        Precision{"TheDeviceDecides", "", ComputeType::kAuto},
        Precision{"Bf16", "[hyperparameters.parallelism]\nbf16 = true", ComputeType::kBf16},
        Precision{"Fp32", "[hyperparameters.parallelism]\nbf16 = false\nfp16 = false",
                  ComputeType::kFp32},
        Precision{"NestedBool", "[bf16]\nenabled = true\n[fp16]\nenabled = false",
                  ComputeType::kBf16},
        Precision{"TrainTable", "[train]\nbf16 = true", ComputeType::kBf16},
        Precision{"Dtype", "[model]\ndtype = \"bfloat16\"", ComputeType::kBf16},
        Precision{"DtypeFp32", "[model]\ntorch_dtype = \"fp32\"", ComputeType::kFp32},
        Precision{"DtypeAuto", "[model]\ntorch_dtype = \"auto\"", ComputeType::kAuto}),
    [](const auto& info) { return std::string(info.param.name); });

// Files that ask for float16, and what the warning says.
struct Fp16 {
  std::string_view name;
  std::string_view text;
  std::vector<Override> overrides = {};
  ComputeType type = ComputeType::kAuto;
  std::string_view says = "is taken as bf16 = true";

  friend void PrintTo(const Fp16& p, std::ostream* out) { *out << p.name; }
};

class Fp16Test : public ::testing::TestWithParam<Fp16> {};

TEST_P(Fp16Test, IsComputedInTheTypeOfTheDeviceAndSaidSo) {
  const Resolution r = ResolveText(Minimal(GetParam().text), GetParam().overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.compute_type, GetParam().type);
  if (GetParam().says.empty()) {
    EXPECT_TRUE(r.warnings.empty()) << Describe(r.warnings);
  } else {
    EXPECT_THAT(Describe(r.warnings), HasSubstr(std::string(GetParam().says)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Fp16Test,
    ::testing::Values(
        Fp16{"Switch", "[hyperparameters.parallelism]\nfp16 = true"},
        Fp16{"WithoutBf16", "[train]\nbf16 = false\nfp16 = true"},
        Fp16{"NestedBool", "[fp16]\nenabled = true"},
        Fp16{"Dtype", "[model]\ntorch_dtype = \"torch.float16\""},
        Fp16{"DtypeAndSwitch", "[model]\ndtype = \"float16\"\n[train]\nfp16 = true"},
        Fp16{"MixedPrecision", "[train]\nmixed_precision = \"fp16\""},
        Fp16{"OverABf16File", "[train]\nbf16 = true", {Set("fp16", "true")}},
        Fp16{"BothTyped", "", {Set("bf16", "false"), Set("fp16", "true")}, ComputeType::kBf16},
        Fp16{"OnCpuSlots",
             "[train]\nfp16 = true",
             {Set("compute.gpu_type", "CPU")},
             ComputeType::kAuto,
             "is taken as fp32"},
        Fp16{"Bf16OverIt", "[train]\nfp16 = true", {Set("bf16", "true")}, ComputeType::kBf16, ""},
        Fp16{"Fp32OverIt", "[train]\nfp16 = true", {Set("bf16", "false")}, ComputeType::kFp32, ""},
        Fp16{"DtypeOverIt",
             "[train]\nfp16 = true",
             {Set("dtype", "float32")},
             ComputeType::kFp32,
             ""}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(UnslothTest, ItsWordsAreTakenAndSaidSo) {
  for (const std::string_view key :
       {"activation_checkpointing", "gradient_checkpointing", "use_gradient_checkpointing"}) {
    const Resolution r = ResolveText(Minimal("[train]\n" + std::string(key) + " = \"unsloth\""));
    ASSERT_TRUE(r.ok()) << Describe(r.problems);
    EXPECT_FALSE(r.spec.parallelism.activation_checkpointing);
    ASSERT_EQ(r.warnings.size(), 1u) << Describe(r.warnings);
    EXPECT_EQ(r.warnings[0].line, 7);
    EXPECT_THAT(r.warnings[0].message, HasSubstr("the plan decides block by block"));
  }
  const Resolution r = ResolveText(Minimal("[tuning]\nbackend = \"Unsloth\""));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("tuning.backend:7: \"unsloth\" is taken as"));
}

TEST(UnslothTest, AValueThatAnOverrideReplacesIsNotMentioned) {
  const Resolution r = ResolveText(Minimal("[train]\ngradient_checkpointing = \"unsloth\""),
                                   {Env("TRAIN_GRADIENT_CHECKPOINTING", "true")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.spec.parallelism.activation_checkpointing);
  EXPECT_TRUE(r.warnings.empty()) << Describe(r.warnings);
  EXPECT_THAT(
      Describe(ResolveText(Minimal(), {Env("TRAIN_GRADIENT_CHECKPOINTING", "unsloth")}).warnings),
      HasSubstr("the plan decides block by block"));
}

TEST(OffloadTest, EverySpellingMovesTheOptimizerToTheHost) {
  for (const std::string_view text :
       {"[hyperparameters.parallelism]\noffload_optimizer = true",
        "[train]\noffload_optimizer = true", "[zero_optimization]\ncpu_offload = true",
        "[zero_optimization.offload_optimizer]\ndevice = \"cpu\""}) {
    const Resolution r = ResolveText(Minimal(text));
    ASSERT_TRUE(r.ok()) << text << Describe(r.problems);
    EXPECT_TRUE(r.spec.parallelism.offload_optimizer) << text;
  }
  for (const std::string_view text :
       {"", "[zero_optimization.offload_optimizer]\ndevice = \"none\""}) {
    const Resolution r = ResolveText(Minimal(text));
    ASSERT_TRUE(r.ok()) << text << Describe(r.problems);
    EXPECT_FALSE(r.spec.parallelism.offload_optimizer) << text;
  }
}

TEST(OffloadTest, EverySpellingMovesTheWeightsToTheHost) {
  for (const std::string_view text :
       {"[hyperparameters.parallelism]\noffload_param = true", "[train]\noffload_param = true",
        "[zero_optimization.offload_param]\ndevice = \"cpu\""}) {
    const Resolution r = ResolveText(Minimal(text));
    ASSERT_TRUE(r.ok()) << text << Describe(r.problems);
    EXPECT_TRUE(r.spec.parallelism.offload_param) << text;
    EXPECT_FALSE(r.spec.parallelism.offload_optimizer) << text;
  }
}

TEST(OffloadTest, AnOverrideWinsOverTheFile) {
  const Resolution r = ResolveText(Minimal("[zero_optimization]\ncpu_offload = true"),
                                   {Set("zero_optimization.offload_optimizer.device", "none")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_FALSE(r.spec.parallelism.offload_optimizer);
}

class MethodProblemTest : public ::testing::TestWithParam<WrongFile> {};

TEST_P(MethodProblemTest, IsOneProblemThatSaysWhatWouldBeRight) { ExpectOneProblem(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Cases, MethodProblemTest,
    ::testing::Values(
        WrongFile{"FullWithQlora", "[training]\nmode = \"full_finetune\"\nuse_qlora = true",
                  "training.use_qlora", "the base cannot be quantised"},
        WrongFile{"LoraWithFft",
                  "[training]\nmode = \"lora\"\n[hyperparameters]\ntrain_kind = \"fft\"",
                  "hyperparameters.train_kind", "train_kind = \"peft\" would agree"},
        WrongFile{"FullWithPeft",
                  "[training]\nmode = \"full_finetune\"\n[hyperparameters]\ntrain_kind = \"peft\"",
                  "hyperparameters.train_kind", "train_kind = \"fft\" would agree"},
        WrongFile{"QloraWordWithoutQlora", "[training]\nmode = \"qlora\"\nuse_qlora = false",
                  "training.use_qlora", "leave one of them out"},
        WrongFile{"BitsWithoutQlora", "[training]\nuse_qlora = false\n[quantization]\nbits = 4",
                  "quantization.bits", "bits = 0 would agree"},
        WrongFile{"QloraWithoutBits", "[training]\nuse_qlora = true\n[quantization]\nbits = 0",
                  "quantization.bits", "bits = 4 or 8 would agree"},
        WrongFile{"EightBitsWithoutQlora", "[training]\nuse_qlora = false\nload_in_8bit = true",
                  "model.load_in_8bit", "use_qlora = true would agree"},
        WrongFile{"FullInEightBits", "[training]\nmode = \"full_finetune\"\nload_in_8bit = true",
                  "model.load_in_8bit", "the base cannot be quantised"},
        WrongFile{"LoadInBoth", "[model]\nload_in_4bit = true\nload_in_8bit = true",
                  "model.load_in_8bit", "contradicts model.load_in_4bit = true"},
        WrongFile{"LoadIn4BitWithEightBits",
                  "[model]\nload_in_4bit = true\n[quantization]\nbits = 8", "model.load_in_4bit",
                  "contradicts quantization.bits = 8"},
        WrongFile{"NotLoadedInFourBits", "[quantization]\nbits = 4\nload_in_4bit = false",
                  "model.load_in_4bit", "contradicts quantization.bits = 4"},
        WrongFile{"ThreeBits", "[quantization]\nbits = 3", "quantization.bits",
                  "must be 4, 8, or 0"},
        WrongFile{"Fp8WithEightBits", "[training]\nmatmul = \"fp8\"\n[quantization]\nbits = 8",
                  "training.matmul", "set quantization.bits = 4, use_qlora = false"},
        WrongFile{"Fp8Bf16WgradWithQlora",
                  "[training]\nuse_qlora = true\nmatmul = \"fp8_bf16_wgrad\"", "training.matmul",
                  "set matmul = \"fp8\", or mode = \"full_finetune\""},
        WrongFile{"Bf16AndFp16", "[hyperparameters.parallelism]\nbf16 = true\nfp16 = true",
                  "hyperparameters.parallelism.fp16",
                  "contradicts hyperparameters.parallelism.bf16 = true"},
        WrongFile{"DtypeFp16AndBf16", "[model]\ndtype = \"float16\"\n[train]\nbf16 = true",
                  "model.torch_dtype", "leave one of them out"},
        WrongFile{"DtypeBf16AndFp16", "[model]\ndtype = \"bfloat16\"\n[train]\nfp16 = true",
                  "model.torch_dtype", "contradicts hyperparameters.parallelism.fp16 = true"},
        WrongFile{"DtypeAgainstBf16", "[model]\ndtype = \"float32\"\n[train]\nbf16 = true",
                  "model.torch_dtype", "leave one of them out"},
        WrongFile{"TensorParallel", "[hyperparameters.parallelism]\ntensor_parallel_size = 2",
                  "hyperparameters.parallelism.tensor_parallel_size",
                  "cuts matrices over GPUs, but"},
        WrongFile{"OffloadElsewhere", "[zero_optimization.offload_optimizer]\ndevice = \"nvme\"",
                  "hyperparameters.parallelism.offload_optimizer",
                  "must be true or false, or \"cpu\", or \"none\", but is \"nvme\""},
        WrongFile{"OffloadAndNot",
                  "[hyperparameters.parallelism]\noffload_optimizer = false\n[zero_optimization]\n"
                  "cpu_offload = true",
                  "hyperparameters.parallelism.offload_optimizer",
                  "is given twice: true here and false"},
        WrongFile{"OffloadedWeightsElsewhere",
                  "[zero_optimization.offload_param]\ndevice = \"nvme\"",
                  "hyperparameters.parallelism.offload_param",
                  "must be true or false, or \"cpu\", or \"none\", but is \"nvme\""},
        WrongFile{"OffloadedWeightsWithoutTheirOptimizer",
                  "[training]\nmode = \"full_finetune\"\n[zero_optimization.offload_param]\n"
                  "device = \"cpu\"",
                  "hyperparameters.parallelism.offload_param", "needs offload_optimizer = true"},
        WrongFile{"OffloadedWeightsThatAreWhole",
                  "gpu_count = 2\n[training]\nmode = \"full_finetune\"\n"
                  "[hyperparameters.parallelism]\noffload_optimizer = true\noffload_param = true\n"
                  "deepspeed_stage = 2",
                  "hyperparameters.parallelism.offload_param",
                  "use fsdp_sharding_strategy = \"full_shard\" or deepspeed_stage = 3"},
        WrongFile{"NegativeBudget", "memory_budget_gb = -1", "compute.memory_budget_gb",
                  "at least 0"},
        WrongFile{"Saving", "[checkpoint]\nsave_strategy = \"sometimes\"",
                  "checkpoint.save_strategy", "must be \"no\", \"steps\", \"epoch\" or \"time\""},
        WrongFile{"SavingAtOnce", "[checkpoint]\nsave_minutes = 0", "checkpoint.save_minutes",
                  "must be a number above 0"},
        WrongFile{"BestModelOfNoValidation", "[training.validation]\nsave_best_model_at_end = true",
                  "training.validation.save_best_model_at_end", "name rows in data.val"},
        WrongFile{"PatienceWithoutValidation", "[training.validation]\nearly_stopping_patience = 2",
                  "training.validation.early_stopping_patience", "name rows in data.val"},
        WrongFile{"AnswersWithLossOnAllTokens",
                  "[data]\nval = \"v.jsonl\"\nloss_on = \"all\"\n[train]\n"
                  "predict_with_generate = true",
                  "training.validation.predict_with_generate",
                  "needs data.loss_on = \"assistant\""},
        WrongFile{"GenerationWithoutRows", "[train]\npredict_with_generate = true",
                  "training.validation.predict_with_generate", "answers validation rows, of which"},
        WrongFile{"MetricOfNoAnswers",
                  "[data]\nval = \"v.jsonl\"\n[training.validation]\n"
                  "metric_for_best_model = \"val.rouge_l\"",
                  "training.validation.metric_for_best_model",
                  "graded only with training.validation.predict_with_generate = true"},
        WrongFile{"MetricThatIsNotGraded",
                  "[data]\nval = \"v.jsonl\"\n[training.validation]\npredict_with_generate = true\n"
                  "metric_for_best_model = \"val.bleu\"",
                  "training.validation.metric_for_best_model", "add \"bleu\" to"},
        WrongFile{"NoSuchGrader",
                  "[data]\nval = \"v.jsonl\"\n[training.validation]\npredict_with_generate = true\n"
                  "generate_metrics = [\"rogue_l\"]",
                  "training.validation.generate_metrics", "\"rogue_l\" is no metric of answers"},
        WrongFile{"GraderWithoutPattern",
                  "[data]\nval = \"v.jsonl\"\n[training.validation]\npredict_with_generate = true\n"
                  "generate_metrics = [\"regex\"]",
                  "training.validation.generate_metrics",
                  "regex reads a pattern: set training.validation.generate_pattern"},
        WrongFile{"CheckpointingOfNoTool", "[train]\nuse_gradient_checkpointing = \"fast\"",
                  "hyperparameters.parallelism.activation_checkpointing",
                  "must be true or false, or \"unsloth\", but is \"fast\""},
        WrongFile{"BackendOfNoTool", "[tuning]\nbackend = \"axolotl\"", "tuning.backend",
                  "must be \"bnb\" or \"unsloth\""},
        WrongFile{"GlooOnGpus", "[train]\ndistributed_backend = \"gloo\"",
                  "train.distributed_backend", "nccl does"},
        WrongFile{"UnknownMetric", "[training.validation]\nmetric_for_best_model = \"train.loss\"",
                  "training.validation.metric_for_best_model",
                  "must be \"val.loss\", \"val.perplexity\""},
        WrongFile{"ValidationWithoutRows", "[training.validation]\nenabled = true",
                  "training.validation.enabled", "name them in data.val"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ValidationTest, AMetricOfAnswersIsGreaterWhereItIsBetter) {
  const Resolution r =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\"\n[train]\npredict_with_generate = true\n"
                          "generation_max_new_tokens = 9\nload_best_model_at_end = true\n"
                          "metric_for_best_model = \"eval_rougeL\"\n"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  const JobSpec::Training::Validation& validation = r.spec.training.validation;
  EXPECT_TRUE(validation.predict_with_generate);
  EXPECT_EQ(validation.generate_max_new_tokens, 9);
  EXPECT_EQ(validation.metric_for_best_model, "val.rouge_l");
  EXPECT_TRUE(validation.greater_is_better);
  EXPECT_THAT(r.warnings, ::testing::IsEmpty()) << Describe(r.warnings);
  EXPECT_EQ(NeedOf(r.spec).protocol, 2);
  const Resolution wrong =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\"\n[train]\npredict_with_generate = true\n"
                          "load_best_model_at_end = true\nmetric_for_best_model = \"bleu\"\n"
                          "greater_is_better = false\n[training.validation]\n"
                          "generate_metrics = [\"bleu\"]\n"));
  EXPECT_THAT(Describe(wrong.warnings), HasSubstr("takes the least val.bleu, the worst one"));
}

TEST(ValidationTest, WhatFollowsFromTheLossIsComparedWithoutAnswers) {
  for (const auto& [word, metric] : {std::pair("perplexity", "val.perplexity"),
                                     std::pair("val.bits_per_byte", "val.bits_per_byte")}) {
    const std::string text = std::string("[data]\nval = \"v.jsonl\"\n[train]\n") +
                             "load_best_model_at_end = true\nmetric_for_best_model = \"" + word +
                             "\"\n";
    const Resolution r = ResolveText(Minimal(text));
    ASSERT_TRUE(r.ok()) << Describe(r.problems);
    EXPECT_EQ(r.spec.training.validation.metric_for_best_model, metric);
    EXPECT_FALSE(r.spec.training.validation.greater_is_better);
    EXPECT_THAT(r.warnings, ::testing::IsEmpty()) << Describe(r.warnings);
    EXPECT_EQ(NeedOf(r.spec).protocol, 2);
    EXPECT_THAT(Describe(ResolveText(Minimal(text), {Set("training.loss", "dpo")}).problems),
                HasSubstr("is none of a token; use val.loss"));
    EXPECT_THAT(Describe(ResolveText(Minimal(text), {Set("greater_is_better", "true")}).warnings),
                HasSubstr("takes the greatest"));
  }
}

TEST(ValidationTest, WeightsThatAreCutOverTheRanksAnswerNoRows) {
  const auto sharded = [](const std::string& metric) {
    return ResolveText(
        Minimal("[data]\nval = \"v.jsonl\"\n[train]\npredict_with_generate = true\n"
                "metric_for_best_model = \"" +
                metric + "\"\n"),
        {Set("compute.gpu_count", "2"), Set("hyperparameters.parallelism.fsdp", "true"),
         Set("hyperparameters.parallelism.fsdp_sharding_strategy", "full_shard")});
  };
  const Resolution loss = sharded("val.loss");
  EXPECT_TRUE(loss.ok()) << Describe(loss.problems);
  EXPECT_THAT(Describe(loss.warnings), HasSubstr("validation has its loss alone"));
  EXPECT_THAT(Describe(sharded("rouge_l").problems), HasSubstr("only val.loss is measured"));
}

TEST(ValidationTest, TheBestModelIsComparedOnTheRowsOfTheJob) {
  const Resolution r =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\"\n[train]\nload_best_model_at_end = true\n"
                          "early_stopping_patience = 3\nearly_stopping_threshold = 0.01\n"));
  ASSERT_TRUE(r.problems.empty()) << Describe(r.problems);
  const auto& validation = r.spec.training.validation;
  EXPECT_TRUE(validation.save_best_model_at_end);
  EXPECT_EQ(validation.early_stopping_patience, 3);
  EXPECT_EQ(validation.early_stopping_threshold, 0.01);
  EXPECT_TRUE(r.warnings.empty()) << Describe(r.warnings);
}

TEST(ValidationTest, TheGreatestLossAsTheBestIsAWarning) {
  const Resolution r =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\"\n[train]\nsave_best_model_at_end = true\n"
                          "greater_is_better = true\n"));
  ASSERT_TRUE(r.problems.empty()) << Describe(r.problems);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("the worst one, for the best"));
}

TEST(CheckpointTest, AJobSavesByTimeUnlessItSaysOtherwise) {
  const Resolution plain = ResolveText(Minimal());
  EXPECT_EQ(plain.spec.checkpoint.save_strategy, SaveStrategy::kTime);
  EXPECT_EQ(plain.spec.checkpoint.save_minutes, 15);
  EXPECT_EQ(plain.spec.checkpoint.save_total_limit, 3);
  const Resolution steps =
      ResolveText(Minimal("[train]\nsave_strategy = \"steps\"\nsave_steps = 7\n"));
  ASSERT_TRUE(steps.problems.empty()) << Describe(steps.problems);
  EXPECT_EQ(steps.spec.checkpoint.save_strategy, SaveStrategy::kSteps);
  EXPECT_EQ(steps.spec.checkpoint.save_steps, 7);
}

struct Saving {
  std::string_view name;
  std::string_view keys;  // of [checkpoint]
  std::vector<Override> overrides;
  SaveStrategy strategy;

  friend void PrintTo(const Saving& s, std::ostream* out) { *out << s.name; }
};

class SavingTest : public ::testing::TestWithParam<Saving> {};

TEST_P(SavingTest, FollowsTheIntervalThatIsGiven) {
  const Saving& s = GetParam();
  const Resolution r = ResolveText(Minimal("[checkpoint]\n" + std::string(s.keys)), s.overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(Describe(r.warnings), "");
  EXPECT_EQ(r.spec.checkpoint.save_strategy, s.strategy);
}

const std::string kSavesBySteps = "save_strategy = \"steps\"\nsave_steps = 7",
                  kSavesByTime = "save_strategy = \"time\"\nsave_minutes = 7";
INSTANTIATE_TEST_SUITE_P(
    Cases, SavingTest,
    ::testing::Values(
        Saving{"StepsAlone", "save_steps = 7", {}, SaveStrategy::kSteps},
        Saving{"MinutesAlone", "save_minutes = 7", {}, SaveStrategy::kTime},
        Saving{"StepsTyped", "", {Set("checkpoint.save_steps", "7")}, SaveStrategy::kSteps},
        Saving{"StepsOverTime", kSavesByTime, {Env("TRAIN_SAVE_STEPS", "7")}, SaveStrategy::kSteps},
        Saving{"MinutesOverSteps",
               kSavesBySteps,
               {Set("checkpoint.save_minutes", "7")},
               SaveStrategy::kTime},
        Saving{"StrategyOverSteps",
               kSavesBySteps,
               {Set("checkpoint.save_strategy", "epoch")},
               SaveStrategy::kEpoch}),
    [](const auto& info) { return std::string(info.param.name); });

class SavingProblemTest : public ::testing::TestWithParam<WrongFile> {};

TEST_P(SavingProblemTest, NamesBoth) { ExpectOneProblem(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Cases, SavingProblemTest,
    ::testing::Values(
        WrongFile{"StepsByTime", "[checkpoint]\nsave_strategy = \"time\"\nsave_steps = 7",
                  "checkpoint.save_steps",
                  "contradicts checkpoint.save_strategy = time (job.toml:7); save_strategy = "
                  "\"steps\" would agree"},
        WrongFile{"MinutesBySteps", "[checkpoint]\nsave_strategy = \"steps\"\nsave_minutes = 7",
                  "checkpoint.save_minutes", "save_strategy = \"time\" would agree"},
        WrongFile{"BothIntervals", "[checkpoint]\nsave_steps = 7\nsave_minutes = 8",
                  "checkpoint.save_steps", "save_minutes = 8 (job.toml:8) are two intervals"}),
    [](const auto& info) { return std::string(info.param.name); });

struct NoEffect {
  std::string_view name;
  std::string_view text;
  std::string_view warning;  // empty: there is none

  friend void PrintTo(const NoEffect& n, std::ostream* out) { *out << n.name; }
};

class NoEffectTest : public ::testing::TestWithParam<NoEffect> {};

TEST_P(NoEffectTest, IsAWarningThatNamesWhy) {
  const Resolution r = ResolveText(Minimal(GetParam().text));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(Describe(r.warnings), GetParam().warning);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, NoEffectTest,
    ::testing::Values(
        NoEffect{"LoraUnderFull", "[training]\nmode = \"fft\"\n[lora]\nr = 8\nalpha = 16",
                 "lora.r:9: lora.r, lora.alpha have no effect with training.mode = full_finetune "
                 "(job.toml:7)\n"},
        NoEffect{"DoubleQuant", "[quantization]\nbits = 8\ndouble_quant = true",
                 "quantization.double_quant:8: has no effect with quantization.bits = 8 "
                 "(job.toml:7)\n"},
        NoEffect{"EvalStepsOfEpochs", "[train]\neval_strategy = \"epoch\"\neval_steps = 100",
                 "training.validation.eval_steps:8: has no effect with "
                 "training.validation.evaluation_strategy = epoch (job.toml:7)\n"},
        NoEffect{"Threshold", "[train]\nearly_stopping_threshold = 0.1",
                 "training.validation.early_stopping_threshold:7: has no effect with "
                 "training.validation.early_stopping_patience = 0 (default)\n"},
        NoEffect{"StepsOfEpochs", "[checkpoint]\nsave_strategy = \"epoch\"\nsave_steps = 9",
                 "checkpoint.save_steps:8: has no effect with checkpoint.save_strategy = epoch "
                 "(job.toml:7)\n"},
        NoEffect{"WarnBefore", "[scheduling]\nwarn_before = \"9m\"",
                 "scheduling.warn_before:7: has no effect with scheduling.time_limit = 0s "
                 "(default)\n"},
        NoEffect{"Strategy", "[train]\nfsdp_sharding_strategy = \"full_shard\"",
                 "hyperparameters.parallelism.fsdp_sharding_strategy:7: has no effect without fsdp "
                 "= true\n"},
        NoEffect{"WhatAsksForNothing",
                 "[train]\nearly_stopping_threshold = 0\n[training]\nmode = \"fft\"\n[lora]\n"
                 "dropout = 0.0\nbias = \"none\"",
                 ""}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(NoEffectOnCpusTest, OfAMemoryBudget) {
  EXPECT_THAT(
      Describe(
          ResolveText(Minimal("memory_budget_gb = 4"), {Set("compute.gpu_type", "CPU")}).warnings),
      HasSubstr("has no effect with compute.gpu_type = CPU (--set)"));
}

TEST(ValidationTest, RowsSwitchItOn) {
  const Resolution r = ResolveText(Minimal("[data]\nval = \"v.jsonl\""));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.spec.training.validation.enabled);
  EXPECT_EQ(OriginOf(r, "training.validation.enabled"), "derived: data.val");
}

TEST(ValidationTest, AStrategyOfNoKeepsItOff) {
  const Resolution r =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\"\n[train]\neval_strategy = \"no\""));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_FALSE(r.spec.training.validation.enabled);
}

TEST(ValidationTest, AnExplicitOffStandsBesideTheRows) {
  const Resolution r =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\"\n[training.validation]\nenabled = false"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_FALSE(r.spec.training.validation.enabled);
}

TEST(ValidationTest, RowsNamedAtSubmitSwitchItOnOverTheFile) {
  const Resolution r = ResolveText(Minimal("[training.validation]\nenabled = false"),
                                   {Flag("data.val", "v.jsonl", "--val")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.spec.training.validation.enabled);
}

TEST(PrecisionOverrideTest, TheVariableBeatsAnotherSpellingInTheFile) {
  const Resolution r =
      ResolveText(Minimal("[model]\ndtype = \"float32\""), {Env("TRAIN_BF16", "true")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.compute_type, ComputeType::kBf16);
}

}  // namespace
}  // namespace sft::spec
