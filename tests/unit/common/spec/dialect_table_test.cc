#include <fstream>
#include <sstream>

#include "tests/unit/common/spec/resolve_testing.h"

// Keys as other tools' documents write them, one row each, beside the key and the value that they
// become here, or the words of the refusal.

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

struct Row {
  std::string_view written;  // stands in the file
  std::string_view key;      // of ours
  std::string_view value;
};

void ExpectRows(const std::string& text, const std::string& file, const std::vector<Row>& rows,
                const std::vector<Override>& overrides = {}) {
  const Resolution r = Resolve(text, file, overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  const std::string all = text + (overrides.empty() ? "" : overrides.front().value);
  for (const Row& row : rows) {
    EXPECT_THAT(all, HasSubstr(std::string(row.written)));
    EXPECT_EQ(TextOf(r, row.key), row.value) << row.written;
  }
}

std::string JobFile(const std::string& name) {
  std::ifstream in(std::string(SFT_SOURCE_DIR) + "/configs/" + name);
  EXPECT_TRUE(in.good()) << name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(DialectTableTest, QloraOnFourGpusInToml) {
  ExpectRows(
      JobFile("multi_gpu_qlora_4xh100.toml"), "job.toml",
      {{"model = \"Qwen/Qwen3-32B\"", "job.model", "Qwen/Qwen3-32B"},
       {"data = \"/abs/path/to/train.jsonl\"", "job.data", "/abs/path/to/train.jsonl"},
       {"gpu_type = \"H100\"", "compute.gpu_type", "H100"},
       {"gpu_count = 4", "compute.gpu_count", "4"},
       {"nodes = 1", "compute.nodes", "1"},
       {"variant = \"H100-4x\"", "compute.variant", "H100-4x"},
       {"gpus_per_node = 4", "compute.gpus_per_node", "4"},
       {"container_count = 4", "data.topology.container_count", "4"},
       {"gpus_per_node = 4", "data.topology.gpus_per_node", "4"},
       {"total_gpus = 4", "data.topology.total_gpus", "4"},
       {"nodes = 1", "data.topology.nodes", "1"},
       {"variant = \"H100-4x\"", "data.topology.variant", "H100-4x"},
       {"mode = \"lora\"", "training.mode", "lora"},
       {"use_qlora = true", "training.use_qlora", "true"},
       {"use_qlora = true", "quantization.bits", "4"},
       {"enabled = false", "training.validation.enabled", "false"},
       {"evaluation_strategy = \"steps\"", "training.validation.evaluation_strategy", "steps"},
       {"eval_steps = 100", "training.validation.eval_steps", "100"},
       {"save_best_model_at_end = false", "training.validation.save_best_model_at_end", "false"},
       {"metric_for_best_model = \"val.loss\"", "training.validation.metric_for_best_model",
        "val.loss"},
       {"greater_is_better = false", "training.validation.greater_is_better", "false"},
       {"n_epochs = 1", "hyperparameters.n_epochs", "1"},
       {"train_kind = \"peft\"", "hyperparameters.train_kind", "peft"},
       {"per_device_batch = 1", "hyperparameters.per_device_batch", "1"},
       {"gradient_accumulation_steps = 16", "hyperparameters.gradient_accumulation_steps", "16"},
       {"sequence_length = 4096", "hyperparameters.sequence_length", "4096"},
       {"learning_rate = 5e-6", "hyperparameters.learning_rate", "5e-06"},
       {"warmup_ratio = 0.03", "hyperparameters.warmup_ratio", "0.03"},
       {"global_batch = 64", "hyperparameters.global_batch", "64"},
       {"fsdp = false", "hyperparameters.parallelism.fsdp", "false"},
       {"fsdp_sharding_strategy = \"full_shard\"",
        "hyperparameters.parallelism.fsdp_sharding_strategy", "full_shard"},
       {"fsdp_auto_wrap_policy = \"transformer_block\"",
        "hyperparameters.parallelism.fsdp_auto_wrap_policy", "transformer_block"},
       {"fsdp_use_orig_params = true", "hyperparameters.parallelism.fsdp_use_orig_params", "true"},
       {"tensor_parallel_size = 1", "hyperparameters.parallelism.tensor_parallel_size", "1"},
       {"pipeline_parallel_size = 1", "hyperparameters.parallelism.pipeline_parallel_size", "1"},
       {"bf16 = true", "hyperparameters.parallelism.bf16", "true"},
       {"fp16 = false", "hyperparameters.parallelism.fp16", "false"},
       {"use_deepspeed = true", "hyperparameters.parallelism.use_deepspeed", "true"},
       {"deepspeed_stage = 2", "hyperparameters.parallelism.deepspeed_stage", "2"},
       {"activation_checkpointing = true", "hyperparameters.parallelism.activation_checkpointing",
        "true"}});
}

// What differs there. Its batch contradicts itself: the global one stands.
TEST(DialectTableTest, FullFineTuningOnEightGpusInToml) {
  ExpectRows(
      JobFile("multi_gpu_fft_8xh100.toml"), "job.toml",
      {{"gpu_count = 8", "compute.gpu_count", "8"},
       {"variant = \"H100-8x\"", "compute.variant", "H100-8x"},
       {"gpus_per_node = 8", "compute.gpus_per_node", "8"},
       {"container_count = 8", "data.topology.container_count", "8"},
       {"total_gpus = 8", "data.topology.total_gpus", "8"},
       {"variant = \"H100-8x\"", "data.topology.variant", "H100-8x"},
       {"mode = \"full_finetune\"", "training.mode", "full_finetune"},
       {"use_qlora = false", "training.use_qlora", "false"},
       {"train_kind = \"fft\"", "hyperparameters.train_kind", "fft"},
       {"gradient_accumulation_steps = 16", "hyperparameters.gradient_accumulation_steps", "8"},
       {"global_batch = 64", "hyperparameters.global_batch", "64"},
       {"fsdp = true", "hyperparameters.parallelism.fsdp", "true"},
       {"use_deepspeed = false", "hyperparameters.parallelism.use_deepspeed", "false"}});
}

TEST(DialectTableTest, SectionsOfYaml) {
  std::string text = JobFile("multi_gpu_config.yaml");
  const std::string last = "  eval_do_concat_batches: false\n";
  text.insert(text.find(last) + last.size(), "  eval_accumulation_steps: 8\n");
  ExpectRows(
      text, "job.yaml",
      {{"name: \"google/gemma-3-27b-it\"", "job.model", "google/gemma-3-27b-it"},
       {"max_seq_len: 2048", "hyperparameters.sequence_length", "2048"},
       {"mode: \"qlora\"", "training.mode", "lora"},
       {"mode: \"qlora\"", "training.use_qlora", "true"},
       {"backend: \"bnb\"", "tuning.backend", "bnb"},
       {"r: 32", "lora.r", "32"},
       {"alpha: 64", "lora.alpha", "64"},
       {"dropout: 0.1", "lora.dropout", "0.1"},
       {"batch_size: \"auto\"", "hyperparameters.per_device_batch", "auto"},
       {"grad_accum: \"auto\"", "hyperparameters.gradient_accumulation_steps", "auto"},
       {"bf16: true", "hyperparameters.parallelism.bf16", "true"},
       {"gradient_checkpointing: true", "hyperparameters.parallelism.activation_checkpointing",
        "true"},
       {"ddp_find_unused_parameters: false", "train.ddp_find_unused_parameters", "false"},
       {"ddp_broadcast_buffers: false", "train.ddp_broadcast_buffers", "false"},
       {"ddp_bucket_cap_mb: 200", "hyperparameters.parallelism.ddp_bucket_cap_mb", "200"},
       {"dataloader_num_workers: 4", "train.dataloader_num_workers", "4"},
       {"dataloader_pin_memory: true", "train.dataloader_pin_memory", "true"},
       {"predict_with_generate: true", "training.validation.predict_with_generate", "true"},
       {"generation_num_beams: 1", "training.validation.generate_num_beams", "1"},
       {"generation_max_new_tokens: 64", "training.validation.generate_max_new_tokens", "64"},
       {"eval_strategy: \"steps\"", "training.validation.evaluation_strategy", "steps"},
       {"eval_steps: 200", "training.validation.eval_steps", "200"},
       {"eval_do_concat_batches: false", "train.eval_do_concat_batches", "false"},
       {"eval_accumulation_steps: 8", "train.eval_accumulation_steps", "8"}});
  for (const auto& [file, batch, accumulation, length] :
       {std::tuple{"rtx4090_sli.yaml", "6", "4", "1536"},
        std::tuple{"a100_pair.yaml", "8", "4", "2048"},
        std::tuple{"h200_quad.yaml", "16", "2", "4096"}}) {
    ExpectRows(JobFile(file), file,
               {{"batch_size: ", "hyperparameters.per_device_batch", batch},
                {"grad_accum: ", "hyperparameters.gradient_accumulation_steps", accumulation},
                {"max_seq_len: ", "hyperparameters.sequence_length", length}});
  }
}

TEST(DialectTableTest, JsonOfDeepSpeed) {
  const std::string stage_three = R"({
  "zero_optimization": {
    "stage": 3,                    // More aggressive memory saving
    "cpu_offload": true           // Offload to CPU memory
  },
  "bf16": {"enabled": true},
  "gradient_accumulation_steps": "auto",
  "train_batch_size": "auto"
})";
  ExpectRows(JobFile("run_bnb.yaml"), "job.yaml",
             {{"\"stage\": 3", "hyperparameters.parallelism.deepspeed_stage", "3"},
              {"\"cpu_offload\": true", "hyperparameters.parallelism.offload_optimizer", "true"},
              {"\"bf16\": {\"enabled\": true}", "hyperparameters.parallelism.bf16", "true"},
              {"\"gradient_accumulation_steps\": \"auto\"",
               "hyperparameters.gradient_accumulation_steps", "8"},
              {"\"train_batch_size\": \"auto\"", "hyperparameters.global_batch", "32"}},
             {Set("train.deepspeed_config", stage_three)});
  const std::string stage_two = R"(// deepspeed_config.json
{
  "train_batch_size": 16,
  "gradient_accumulation_steps": 1,
  "fp16": {
    "enabled": false
  },
  "bf16": {
    "enabled": true
  },
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {
      "device": "cpu"
    }
  }
})";
  ExpectRows(
      Minimal("gpu_count = 4\n"), "job.toml",
      {{"\"train_batch_size\": 16", "hyperparameters.global_batch", "16"},
       {"\"gradient_accumulation_steps\": 1", "hyperparameters.gradient_accumulation_steps", "1"},
       {"\"enabled\": false", "hyperparameters.parallelism.fp16", "false"},
       {"\"enabled\": true", "hyperparameters.parallelism.bf16", "true"},
       {"\"stage\": 2", "hyperparameters.parallelism.deepspeed_stage", "2"},
       {"\"device\": \"cpu\"", "hyperparameters.parallelism.offload_optimizer", "true"},
       // Four GPUs share 16.
       {"\"train_batch_size\": 16", "hyperparameters.per_device_batch", "4"}},
      {Set("train.deepspeed_config", stage_two)});
}

// The arguments of a function that trains adapters, with its defaults where it declares some.
TEST(DialectTableTest, ArgumentsOfPeftAndTrainer) {
  ExpectRows(R"(
model_name = "openai/gpt-oss-20b"
train_file = "train.jsonl"
val_file = "val.jsonl"
output_dir = "./finetuning/outputs/models/lora_test"
torch_dtype = "torch.bfloat16"
device_map = "auto"
lora_r = 8
lora_alpha = 16
target_modules = ["q_proj", "v_proj", "k_proj", "o_proj"]
lora_dropout = 0.05
bias = "none"
task_type = "CAUSAL_LM"
num_train_epochs = 3
per_device_train_batch_size = 4
learning_rate = 2e-5
logging_steps = 10
save_strategy = "epoch"
bf16 = true
[compute]
variant = "A100-4x"
)",
             "job.toml",
             {{"model_name = ", "job.model", "openai/gpt-oss-20b"},
              {"train_file = ", "job.data", "train.jsonl"},
              {"val_file = ", "data.val", "val.jsonl"},
              {"output_dir = ", "job.output_dir", "./finetuning/outputs/models/lora_test"},
              {"torch_dtype = ", "model.torch_dtype", "bfloat16"},
              {"device_map = \"auto\"", "hyperparameters.parallelism.device_map", "auto"},
              {"lora_r = 8", "lora.r", "8"},
              {"lora_alpha = 16", "lora.alpha", "16"},
              {"target_modules = ", "lora.target_modules", "q_proj,v_proj,k_proj,o_proj"},
              {"lora_dropout = 0.05", "lora.dropout", "0.05"},
              {"bias = \"none\"", "lora.bias", "none"},
              {"task_type = \"CAUSAL_LM\"", "lora.task_type", "CAUSAL_LM"},
              {"num_train_epochs = 3", "hyperparameters.n_epochs", "3"},
              {"per_device_train_batch_size = 4", "hyperparameters.per_device_batch", "4"},
              {"learning_rate = 2e-5", "hyperparameters.learning_rate", "2e-05"},
              {"logging_steps = 10", "hyperparameters.logging_steps", "10"},
              {"save_strategy = \"epoch\"", "checkpoint.save_strategy", "epoch"},
              {"bf16 = true", "hyperparameters.parallelism.bf16", "true"}});
  ExpectRows(
      "model_name = \"m\"\ntrain_file = \"d\"\nr = 8\nlora_alpha = 16\n"
      "target_modules = [\"q_proj\", \"v_proj\"]\nnum_epochs = 3\nbatch_size = 4\n"
      "[compute]\nvariant = \"A100-1x\"\n",
      "job.toml",
      {{"r = 8", "lora.r", "8"},
       {"target_modules = [\"q_proj\", \"v_proj\"]", "lora.target_modules", "q_proj,v_proj"},
       {"num_epochs = 3", "hyperparameters.n_epochs", "3"},
       {"batch_size = 4", "hyperparameters.per_device_batch", "4"}});
}

// What that function takes where it is not told: the same here but for rank and alpha.
TEST(DialectTableTest, DefaultsOfThatFunction) {
  ExpectRows(Minimal(), "job.toml",
             {{"", "hyperparameters.n_epochs", "3"},
              {"", "hyperparameters.learning_rate", "2e-05"},
              {"", "hyperparameters.per_device_batch", "4"},
              {"", "lora.r", "16"},
              {"", "lora.alpha", "32"}});
  const Field* rank = FindField("lora.r");
  ASSERT_NE(rank, nullptr);
  EXPECT_THAT(std::string(rank->doc), HasSubstr("8 and 16"));
}

TEST(DialectTableTest, ArgumentsOfUnslothsTrainer) {
  ExpectRows(
      R"(
model_name = "unsloth/Llama-3.2-1B-Instruct"
train_file = "d.jsonl"
max_seq_length = 2048
dtype = "None"
load_in_4bit = true
device_map = "auto"
per_device_train_batch_size = 2
gradient_accumulation_steps = 4
enable_distributed_training = true
distributed_backend = "nccl"
output_dir = "./outputs"
learning_rate = 2e-4
ddp_find_unused_parameters = false
ddp_bucket_cap_mb = 25
ddp_broadcast_buffers = false
dataloader_pin_memory = true
gradient_checkpointing = true
auto_find_batch_size = false
dataloader_num_workers = 0
r = 16
[compute]
variant = "H100-2x"
)",
      "job.toml",
      {{"model_name = ", "job.model", "unsloth/Llama-3.2-1B-Instruct"},
       {"max_seq_length = 2048", "hyperparameters.sequence_length", "2048"},
       {"dtype = \"None\"", "model.torch_dtype", "auto"},
       {"dtype = \"None\"", "hyperparameters.parallelism.bf16", "(absent)"},  // the GPU's
       {"load_in_4bit = true", "quantization.bits", "4"},
       {"load_in_4bit = true", "training.use_qlora", "true"},
       {"device_map = \"auto\"", "hyperparameters.parallelism.device_map", "auto"},
       {"per_device_train_batch_size = 2", "hyperparameters.per_device_batch", "2"},
       {"gradient_accumulation_steps = 4", "hyperparameters.gradient_accumulation_steps", "4"},
       {"enable_distributed_training = true", "train.enable_distributed_training", "true"},
       {"distributed_backend = \"nccl\"", "train.distributed_backend", "nccl"},
       {"output_dir = \"./outputs\"", "job.output_dir", "./outputs"},
       {"learning_rate = 2e-4", "hyperparameters.learning_rate", "0.0002"},
       {"ddp_find_unused_parameters = false", "train.ddp_find_unused_parameters", "false"},
       {"ddp_bucket_cap_mb = 25", "hyperparameters.parallelism.ddp_bucket_cap_mb", "25"},
       {"ddp_broadcast_buffers = false", "train.ddp_broadcast_buffers", "false"},
       {"dataloader_pin_memory = true", "train.dataloader_pin_memory", "true"},
       {"gradient_checkpointing = true", "hyperparameters.parallelism.activation_checkpointing",
        "true"},
       {"auto_find_batch_size = false", "train.auto_find_batch_size", "false"},
       {"dataloader_num_workers = 0", "train.dataloader_num_workers", "0"},
       {"r = 16", "lora.r", "16"}});
  ExpectRows(
      Minimal("gpu_count = 2\n[model]\ndevice_map = \"balanced\"\n"), "job.toml",
      {{"device_map = \"balanced\"", "hyperparameters.parallelism.pipeline_parallel_size", "2"}});
  ExpectRows(
      "model_name = \"m\"\ntrain_file = \"d\"\ndistributed_backend = \"gloo\"\n"
      "[compute]\ngpu_type = \"CPU\"\ngpu_count = 2\n",
      "job.toml", {{"distributed_backend = \"gloo\"", "train.distributed_backend", "gloo"}});
}

TEST(DialectTableTest, ArgumentsOfBothPathsOfAScript) {
  ExpectRows(Minimal("[lora]\nr = 8\nlora_alpha = 16\ntarget_modules = [\"q_proj\", \"k_proj\"]\n"
                     "use_gradient_checkpointing = false\n"),
             "job.toml",
             {{"use_gradient_checkpointing = false",
               "hyperparameters.parallelism.activation_checkpointing", "false"},
              {"r = 8", "lora.r", "8"},
              {"lora_alpha = 16", "lora.alpha", "16"},
              {"target_modules = ", "lora.target_modules", "q_proj,k_proj"}});
  ExpectRows(Minimal("[lora]\nr = 16\nuse_gradient_checkpointing = \"unsloth\"\n"), "job.toml",
             {{"use_gradient_checkpointing = \"unsloth\"",
               "hyperparameters.parallelism.activation_checkpointing", "false"}});
  // A BitsAndBytesConfig.
  ExpectRows(Minimal("[quantization_config]\nload_in_4bit = true\nbnb_4bit_quant_type = \"nf4\"\n"
                     "bnb_4bit_use_double_quant = true\nbnb_4bit_compute_dtype = \"bfloat16\"\n"),
             "job.toml",
             {{"load_in_4bit = true", "quantization.bits", "4"},
              {"bnb_4bit_quant_type = \"nf4\"", "quantization.type", "nf4"},
              {"bnb_4bit_use_double_quant = true", "quantization.double_quant", "true"}});
  ExpectRows(Minimal("[quantization_config]\nload_in_8bit = true\n"), "job.toml",
             {{"load_in_8bit = true", "quantization.bits", "8"}});
}

// Values of the same keys that mean nothing that is done here.
class DialectRefusalTest : public ::testing::TestWithParam<WrongFile> {};

TEST_P(DialectRefusalTest, IsOneProblemThatSaysWhatWouldWork) { ExpectOneProblem(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Rows, DialectRefusalTest,
    ::testing::Values(
        WrongFile{"Mode", "[training]\nmode = \"prefix\"", "training.mode", "must be \"lora\""},
        WrongFile{"QloraOfAllWeights", "[training]\nmode = \"full_finetune\"\nuse_qlora = true",
                  "training.use_qlora", "full_finetune"},
        WrongFile{"KindOfAnotherMode",
                  "[training]\nmode = \"lora\"\n[hyperparameters]\ntrain_kind = \"fft\"",
                  "hyperparameters.train_kind", "contradicts"},
        WrongFile{"VariantOfAnotherType", "variant = \"A100-1x\"", "compute.variant", "H100"},
        WrongFile{"CopyOfGpusPerNode", "gpus_per_node = 4\n[data.topology]\ngpus_per_node = 2",
                  "data.topology.gpus_per_node", "4"},
        WrongFile{"CopyOfTotal", "gpu_count = 4\n[data.topology]\ntotal_gpus = 2",
                  "data.topology.total_gpus", "4"},
        WrongFile{"CopyOfNodes", "nodes = 1\n[data.topology]\nnodes = 2", "data.topology.nodes",
                  "1"},
        WrongFile{"CopyOfVariant", "variant = \"H100-4x\"\n[data.topology]\nvariant = \"H100-2x\"",
                  "data.topology.variant", "H100-4x"},
        WrongFile{"DeepSpeedOfAnotherType",
                  "[train]\nbf16 = true\ndeepspeed_config = '{\"bf16\": {\"enabled\": false}}'",
                  "hyperparameters.parallelism.bf16", "of the DeepSpeed JSON"},
        WrongFile{"DeepSpeedOfAnotherBatch",
                  "[train]\ngrad_accum = 4\n"
                  "deepspeed_config = '{\"gradient_accumulation_steps\": 2}'",
                  "hyperparameters.gradient_accumulation_steps", "of the DeepSpeed JSON"},
        WrongFile{"UnknownTable", "[trainnig]\nn_epochs = 1", "trainnig", "unknown"},
        WrongFile{"Metric", "[training.validation]\nmetric_for_best_model = \"val.bleurt\"",
                  "training.validation.metric_for_best_model", "must be \"val.loss\""},
        WrongFile{"TensorParallel", "[hyperparameters.parallelism]\ntensor_parallel_size = 2",
                  "hyperparameters.parallelism.tensor_parallel_size", "take more GPUs"},
        WrongFile{"BothTypes", "[hyperparameters.parallelism]\nbf16 = true\nfp16 = true",
                  "hyperparameters.parallelism.fp16", "bf16"},
        WrongFile{"BothEngines", "[hyperparameters.parallelism]\nfsdp = true\nuse_deepspeed = true",
                  "hyperparameters.parallelism.fsdp", "use_deepspeed"},
        WrongFile{"OriginalParameters",
                  "[hyperparameters.parallelism]\nfsdp_use_orig_params = false",
                  "hyperparameters.parallelism.fsdp_use_orig_params", "leave it out or set true"},
        WrongFile{"Containers", "[data.topology]\ncontainer_count = 3",
                  "data.topology.container_count", "1"},
        WrongFile{"Concatenated", "[train]\neval_do_concat_batches = true",
                  "train.eval_do_concat_batches", "leave it out"},
        WrongFile{"RetryOfBatches", "[train]\nauto_find_batch_size = true",
                  "train.auto_find_batch_size", "set per_device_batch"},
        WrongFile{"OneOfSeveral", "gpu_count = 2\n[train]\nenable_distributed_training = false",
                  "train.enable_distributed_training", "gpu_count"},
        WrongFile{"GlooOnGpus", "[train]\ndistributed_backend = \"gloo\"",
                  "train.distributed_backend", "nccl"},
        WrongFile{"Fp4",
                  "[quantization_config]\nload_in_4bit = true\nbnb_4bit_quant_type = "
                  "\"fp4\"",
                  "quantization.type", "nf4"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
