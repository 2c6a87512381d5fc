#include "common/spec/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/spec/visit.h"

namespace sft::spec {
namespace {

using ::testing::Contains;

TEST(FieldsTest, EverySpellingBelongsToOneKey) {
  std::map<std::string, std::string> owner;
  for (const Field* field : Fields()) {
    std::set<std::string> names{std::string(field->key)};
    for (const std::string& alias : Aliases(*field)) names.insert(alias);
    for (const std::string& name : names) {
      const auto [at, fresh] = owner.emplace(name, field->key);
      EXPECT_TRUE(fresh) << name << " is a spelling of " << at->second << " and " << field->key;
    }
  }
}

TEST(FieldsTest, EveryVariableBelongsToOneKey) {
  std::set<std::string> seen;
  for (const Field* field : Fields()) {
    const std::vector<std::string> names = EnvNames(*field);
    for (const std::string& name : std::set<std::string>(names.begin(), names.end())) {
      EXPECT_TRUE(seen.insert(name).second) << name;
    }
  }
}

TEST(FieldsTest, EveryMemberOfTheSpecHasAKeyButTheTwoDerivedOnes) {
  JobSpec spec;
  VisitSpec(spec, [](std::string_view key, auto&) {
    const bool derived = key == "hyperparameters.parallelism.sharding" ||
                         key == "hyperparameters.parallelism.compute_type";
    EXPECT_EQ(FindField(key) == nullptr, derived) << key;
  });
}

TEST(FieldsTest, EveryFieldIsDocumented) {
  for (const Field* field : Fields()) {
    EXPECT_FALSE(field->doc.empty()) << field->key;
    EXPECT_EQ(field->supported.empty(), field->refusal.empty()) << field->key;
    EXPECT_EQ(field->type == Type::kChoice, !field->choices.empty()) << field->key;
  }
}

struct Alias {
  const char* alias;
  const char* key;
};

TEST(FieldsTest, OtherDocumentsSpellingsAreKnown) {
  const std::string h = "hyperparameters.";
  for (const Alias& a : {
           Alias{"model.name", "job.model"},
           {"model_name", "job.model"},
           {"train_file", "job.data"},
           {"train_dataset", "job.data"},
           {"val_file", "data.val"},
           {"eval_dataset", "data.val"},
           {"tuning.mode", "training.mode"},
           {"load_in_4bit", "model.load_in_4bit"},
           {"load_in_8bit", "model.load_in_8bit"},
           {"tuning.lora.r", "lora.r"},
           {"lora_r", "lora.r"},
           {"r", "lora.r"},
           {"lora_alpha", "lora.alpha"},
           {"lora_dropout", "lora.dropout"},
           {"target_modules", "lora.target_modules"},
           {"train.batch_size", "hyperparameters.per_device_batch"},
           {"per_device_train_batch_size", "hyperparameters.per_device_batch"},
           {"train.grad_accum", "hyperparameters.gradient_accumulation_steps"},
           {"gradient_accumulation_steps", "hyperparameters.gradient_accumulation_steps"},
           {"train_batch_size", "hyperparameters.global_batch"},
           {"effective_batch_size", "hyperparameters.global_batch"},
           {"model.max_seq_len", "hyperparameters.sequence_length"},
           {"max_seq_length", "hyperparameters.sequence_length"},
           {"learning_rate", "hyperparameters.learning_rate"},
           {"num_epochs", "hyperparameters.n_epochs"},
           {"num_train_epochs", "hyperparameters.n_epochs"},
           {"train.bf16", "hyperparameters.parallelism.bf16"},
           {"bf16", "hyperparameters.parallelism.bf16"},
           {"bf16.enabled", "hyperparameters.parallelism.bf16"},
           {"fp16.enabled", "hyperparameters.parallelism.fp16"},
           {"torch_dtype", "model.torch_dtype"},
           {"train.gradient_checkpointing", "hyperparameters.parallelism.activation_checkpointing"},
           {"use_gradient_checkpointing", "hyperparameters.parallelism.activation_checkpointing"},
           {"eval_strategy", "training.validation.evaluation_strategy"},
           {"train.eval_steps", "training.validation.eval_steps"},
           {"num_gpus", "compute.gpu_count"},
           {"num_processes", "compute.gpu_count"},
           {"nproc_per_node", "compute.gpus_per_node"},
           {"num_machines", "compute.nodes"},
           {"nnodes", "compute.nodes"},
           {"zero_optimization.stage", "hyperparameters.parallelism.deepspeed_stage"},
           {"output_dir", "job.output_dir"},
           {"save_strategy", "checkpoint.save_strategy"},
           {"logging_steps", "hyperparameters.logging_steps"},
           {"ddp_bucket_cap_mb", "hyperparameters.parallelism.ddp_bucket_cap_mb"},
       }) {
    ASSERT_NE(FindField(a.alias), nullptr) << a.alias;
    EXPECT_EQ(FindField(a.alias)->key, a.key) << a.alias;
  }
}

TEST(FieldsTest, VariablesFollowFromTheSpellings) {
  EXPECT_EQ(FindEnvField("TRAIN_BATCH_SIZE", "1")->key, "hyperparameters.per_device_batch");
  EXPECT_EQ(FindEnvField("MODEL_NAME", "m")->key, "job.model");
  EXPECT_EQ(FindEnvField("SYNTH_GPU_TYPE", "H100-4x")->key, "compute.variant");
  EXPECT_EQ(FindEnvField("SYNTH_GPU_TYPE", "H100")->key, "compute.gpu_type");
  EXPECT_EQ(FindEnvField("SYNTH_GPU_TYPE", "RTX-4090")->key, "compute.gpu_type");
  EXPECT_EQ(FindEnvField("PATH", ""), nullptr);
  EXPECT_THAT(AllEnvNames(), Contains("NUM_GPUS"));
  EXPECT_THAT(AllEnvNames(), Contains("SYNTH_GPU_TYPE"));
  EXPECT_THAT(AllEnvNames(), Contains("TRAIN_GRADIENT_CHECKPOINTING"));
}

TEST(FieldsTest, SplitsWords) {
  EXPECT_THAT(SplitWords("a|b||c", '|'), ::testing::ElementsAre("a", "b", "c"));
  EXPECT_THAT(SplitWords("", ' '), ::testing::IsEmpty());
}

TEST(NearestKeyTest, SuggestsOnlyCloseNames) {
  EXPECT_EQ(NearestKey("hyperparameters.learnig_rate"), "hyperparameters.learning_rate");
  EXPECT_EQ(NearestKey("lora.rr"), "lora.r");
  EXPECT_EQ(NearestKey("nope"), "");
  EXPECT_EQ(NearestKey("xyz"), "");
  // Returns at once, without comparing. A client may send names this long.
  EXPECT_EQ(NearestKey(std::string(1 << 20, 'x')), "");
}

TEST(KeysLikeTest, TakesInitialsAndParts) {
  EXPECT_THAT(KeysLike("lr"), Contains("hyperparameters.learning_rate"));
  EXPECT_EQ(KeysLike("lr")[0], "hyperparameters.learning_rate");
  EXPECT_THAT(KeysLike("epochs"), Contains("hyperparameters.n_epochs"));
  EXPECT_LE(KeysLike("e_").size(), 5u);
  EXPECT_THAT(KeysLike("xyz"), ::testing::IsEmpty());
  EXPECT_THAT(KeysLike(""), ::testing::IsEmpty());
}

TEST(FieldsTest, VariablesOfNcclAndCudaAreSettingsOfAJob) {
  const auto key = [](const char* variable, const char* value) {
    const Field* field = FindEnvField(variable, value);
    return field == nullptr ? std::string_view() : field->key;
  };
  EXPECT_EQ(key("NCCL_TIMEOUT", "1800"), "compute.hang_timeout");
  EXPECT_EQ(key("NCCL_DEBUG", "INFO"), "compute.nccl_debug");
  EXPECT_EQ(key("NCCL_SOCKET_IFNAME", "eth0"), "compute.network_interface");
  EXPECT_EQ(key("CUDA_LAUNCH_BLOCKING", "1"), "compute.cuda_launch_blocking");
  EXPECT_EQ(FindField("ddp_timeout"), FindField("compute.hang_timeout"));
}

}  // namespace
}  // namespace sft::spec
