#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Files as people carry them over, with the values that are not our defaults.
TEST(DialectTest, TheArgumentsOfTransformersAndTrlAreTaken) {
  const Resolution r = ResolveText(R"(
model_name_or_path = "org/m"
train_file = "d.jsonl"
validation_file = "v.jsonl"
run_name = "first"
num_gpus = 2
[compute]
gpu_type = "H100"
[train]
do_eval = true
per_device_train_batch_size = 2
per_device_eval_batch_size = 8
gradient_accumulation_steps = 8
max_steps = -1
num_train_epochs = 2
learning_rate = 2e-4
lr_scheduler_type = "cosine_with_restarts"
lr_scheduler_kwargs = { num_cycles = 2 }
warmup_steps = 0.1
optim = "paged_adamw_8bit"
max_grad_norm = 0.3
max_length = 1024
packing = true
assistant_only_loss = true
bf16 = true
tf32 = true
gradient_checkpointing = true
gradient_checkpointing_kwargs = { use_reentrant = false }
logging_steps = 10
logging_strategy = "steps"
eval_strategy = "steps"
eval_steps = 50
save_strategy = "steps"
save_steps = 50
save_total_limit = 2
load_best_model_at_end = true
metric_for_best_model = "loss"
report_to = ["wandb"]
remove_unused_columns = false
ddp_backend = "nccl"
group_by_length = false
label_smoothing_factor = 0.0
seed = 7
[lora]
r = 8
lora_alpha = 16
target_modules = "all-linear"
task_type = "CAUSAL_LM"
use_dora = false
modules_to_save = []
init_lora_weights = true
)");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  const JobSpec& s = r.spec;
  EXPECT_EQ(s.job.model, "org/m");
  EXPECT_EQ(s.job.name, "first");
  EXPECT_EQ(s.compute.gpu_count, 2);
  EXPECT_TRUE(s.training.validation.enabled);
  EXPECT_EQ(s.hyperparameters.global_batch, 32);
  EXPECT_EQ(s.hyperparameters.warmup_ratio, 0.1);
  EXPECT_EQ(s.hyperparameters.lr_scheduler.num_cycles, 2);
  EXPECT_EQ(s.hyperparameters.optimizer, Optimizer::kAdamW8bit);
  EXPECT_EQ(s.hyperparameters.sequence_length, 1024);
  EXPECT_TRUE(s.data.packing);
  EXPECT_EQ(s.data.loss_on, LossOn::kAssistant);
  const std::string warnings = Describe(r.warnings);
  EXPECT_THAT(warnings, HasSubstr("paged optimizer"));
  EXPECT_THAT(warnings, HasSubstr("train.report_to:38: has no effect: Metrics and logs are kept"));
}

TEST(DialectTest, TheWordsOfAxolotlAreTaken) {
  const Resolution r = ResolveText(R"(
base_model = "org/m"
train_file = "d.jsonl"
adapter = "qlora"
sequence_len = 4096
sample_packing = true
micro_batch_size = 1
gradient_accumulation_steps = 4
num_epochs = 1
optimizer = "adamw_bnb_8bit"
lr_scheduler = "cosine"
learning_rate = 2e-4
warmup_steps = 10
train_on_inputs = true
lora_r = 32
lora_alpha = 16
lora_target_linear = true
flash_attention = true
val_set_size = 0
[compute]
gpu_type = "H100"
)");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.spec.qlora());
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 4);
  EXPECT_EQ(r.spec.hyperparameters.lr_scheduler.warmup_steps, 10);
  EXPECT_EQ(r.spec.data.loss_on, LossOn::kAll);
  EXPECT_THAT(r.spec.lora.target_modules, ElementsAre("all-linear"));
  EXPECT_EQ(OriginOf(r, "lora.target_modules"), "derived: lora.target_linear");
}

TEST(DialectTest, VariantsOfLoraAreTakenByAllTheirNames) {
  const Resolution r = ResolveText(Minimal(R"([lora]
loraplus_lr_ratio = 16
loraplus_lr_embedding = 1e-6
modules_to_save = ["embed_tokens", "lm_head"]
ensure_weight_tying = true
use_dora = true
[train]
embedding_learning_rate = 1e-5
neftune_noise_alpha = 5
)"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.neftune_noise_alpha, 5.0);
  EXPECT_EQ(r.spec.hyperparameters.embedding_learning_rate, 1e-5);
  EXPECT_EQ(r.spec.lora.loraplus_lr_ratio, 16.0);
  EXPECT_THAT(r.spec.lora.modules_to_save, ElementsAre("embed_tokens", "lm_head"));
  EXPECT_TRUE(r.spec.lora.ensure_weight_tying);
  EXPECT_TRUE(r.spec.lora.use_dora);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("only linears of the blocks get adapters here"));
  const Resolution other = ResolveText(Minimal("[train]\nnoisy_embedding_alpha = 15\n"));
  EXPECT_EQ(other.spec.hyperparameters.neftune_noise_alpha, 15.0) << Describe(other.problems);
}

// What Unsloth's get_peft_model and from_pretrained are given.
TEST(DialectTest, TheArgumentsOfUnslothAreTakenWhereTheyStand) {
  const Resolution r = ResolveText(Minimal(R"([model]
max_seq_length = 1024
full_finetuning = false
[lora]
r = 16
use_gradient_checkpointing = "unsloth"
random_state = 3407
use_rslora = true
finetune_vision_layers = false
finetune_language_layers = true
finetune_attention_modules = true
finetune_mlp_modules = true
[train]
num_warmup_steps = 5
max_train_steps = 60
)"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_FALSE(r.spec.full_finetune());
  EXPECT_FALSE(r.spec.parallelism.activation_checkpointing);
  EXPECT_EQ(r.spec.hyperparameters.seed, 3407u);
  EXPECT_EQ(r.spec.hyperparameters.lr_scheduler.warmup_steps, 5);
  EXPECT_EQ(r.spec.hyperparameters.max_steps, 60);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("\"unsloth\" is taken as false"));
}

TEST(DialectTest, FullFinetuningIsAMode) {
  const std::string file = "[model]\nfull_finetuning = true\n";
  const Resolution r = ResolveText(Minimal(file));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.spec.full_finetune());
  EXPECT_EQ(OriginOf(r, "training.mode"), "derived: model.full_finetuning");
  EXPECT_FALSE(ResolveText(Minimal(file), {Set("training.mode", "lora")}).spec.full_finetune());
}

TEST(DialectTest, VariantsWithoutEffectAreToldUnlessTheyAskForNothing) {
  const std::string full = "[training]\nmode = \"full_finetune\"\n[lora]\n";
  EXPECT_THAT(Describe(ResolveText(Minimal(full + "use_dora = true\n")).warnings),
              HasSubstr("has no effect with training.mode = full_finetune"));
  EXPECT_EQ(
      Describe(ResolveText(Minimal(full + "use_dora = false\nmodules_to_save = []\n")).warnings),
      "");
  const std::string beside = "[lora]\nensure_weight_tying = true\n";
  EXPECT_THAT(Describe(ResolveText(Minimal(beside)).warnings),
              HasSubstr("has no effect without lora.modules_to_save"));
  EXPECT_THAT(Describe(ResolveText(Minimal("[train]\nembedding_learning_rate = 1e-5\n")).warnings),
              HasSubstr("has no effect without lora.modules_to_save"));
  EXPECT_EQ(Describe(ResolveText(Minimal(beside + "modules_to_save = [\"norm\"]\n")).warnings), "");
}

TEST(DialectTest, AnOverrideOfEitherKeyWins) {
  const std::string file = "[data]\ntrain_on_inputs = true\n";
  EXPECT_EQ(ResolveText(Minimal(file), {Set("data.loss_on", "assistant")}).spec.data.loss_on,
            LossOn::kAssistant);
  EXPECT_EQ(ResolveText(Minimal("[data]\nloss_on = \"all\"\n"), {Set("train_on_inputs", "false")})
                .spec.data.loss_on,
            LossOn::kAssistant);
}

class DialectProblemTest : public ::testing::TestWithParam<WrongFile> {};

TEST_P(DialectProblemTest, IsOneProblemThatSaysWhatWouldWork) { ExpectOneProblem(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Cases, DialectProblemTest,
    ::testing::Values(
        WrongFile{"FullAndLora", "[model]\nfull_finetuning = true\n[training]\nmode = \"lora\"",
                  "model.full_finetuning", "contradicts training.mode = lora"},
        WrongFile{"Vision", "[lora]\nfinetune_vision_layers = true", "lora.finetune_vision_layers",
                  "its vision tower delivered as it is"},
        WrongFile{"TwoLosses", "[data]\nloss_on = \"all\"\nassistant_only_loss = true",
                  "data.assistant_only_loss", "contradicts data.loss_on = all (job.toml:7)"},
        WrongFile{"TwoTools", "[data]\nassistant_only_loss = true\ntrain_on_inputs = true",
                  "data.train_on_inputs", "leave one of them out"},
        WrongFile{"DoraInFp8",
                  "[training]\nuse_qlora = true\nmatmul = \"fp8\"\n[lora]\nuse_dora = true",
                  "training.matmul", "contradicts lora.use_dora = true"},
        WrongFile{"LoraPlus", "[lora]\nloraplus_lr_ratio = 0", "lora.loraplus_lr_ratio",
                  "must be a number above 0"},
        WrongFile{"Neftune", "[train]\nneftune_noise_alpha = -1",
                  "hyperparameters.neftune_noise_alpha", "must be a number, at least 0"},
        WrongFile{"StartOfAdapters", "[lora]\ninit_lora_weights = \"pissa\"",
                  "lora.init_lora_weights",
                  "adapters whose first product is not 0, or that start from the weights"},
        WrongFile{"NoiseInB", "[lora]\ninit_lora_weights = false", "lora.init_lora_weights",
                  "set true or \"gaussian\""},
        WrongFile{"HeldOutPart", "[data]\nval_set_size = 1.5", "data.val_split",
                  "must be a share of the rows below 1, such as 0.05, or a number of them"},
        WrongFile{"HeldOutTwice", "[data]\nval = \"v.jsonl\"\nval_split = \"5 rows\"",
                  "data.val_split", "data.val names the validation rows already"},
        WrongFile{"Hub", "[train]\npush_to_hub = true", "train.push_to_hub",
                  "sftctl push JOB --to"},
        WrongFile{"Grouped", "[train]\ngroup_by_length = true", "train.group_by_length",
                  "data.packing = true"},
        WrongFile{"ByEpoch", "[train]\nlogging_strategy = \"epoch\"", "train.logging_strategy",
                  "logging_steps says every how many"},
        WrongFile{"Optimizer", "[train]\noptim = \"lion\"", "hyperparameters.optimizer",
                  "must be \"adamw\""}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
