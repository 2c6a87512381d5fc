#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

TEST_F(IntakeTest, AModelThatCannotBeTrainedIsAProblemNotANote) {
  const auto with = [&](const std::string& config, const std::string& more = "",
                        const std::string& model = "/models/tiny") {
    const auto worker = JoinWithModel(config);
    std::string text = kJobFile;
    return Problems(Request(text.replace(text.find("/models/tiny"), 12, model) + more));
  };
  EXPECT_TRUE(with(kConfig).empty());
  const auto family = with(R"({"model_type":"gemma2"})");
  ASSERT_EQ(family.size(), 1u);
  EXPECT_EQ(family[0].find("job.model: /models/tiny: config.json: \"model_type\" \"gemma2\""), 0u);
  const auto targets = with(kConfig, "[lora]\ntarget_modules = [\"none_proj\"]\n");
  ASSERT_EQ(targets.size(), 1u);
  EXPECT_EQ(targets[0].find("lora.target_modules: \"none_proj\" matches no linear"), 0u);
  const auto missing = with(kConfig, "", "/etc");
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].find("job.model: a: cannot open /etc/config.json"), 0u);
}

TEST_F(IntakeTest, NamesThatLeaveMixersOutAreAWarning) {
  const auto worker = JoinWithModel(R"({"model_type":"qwen3_5_text","num_hidden_layers":4})");
  v1::ResolveJobRequest request;
  request.set_file_name("job.toml");
  request.set_source_text(std::string(kJobFile) + "[lora]\ntarget_modules = [\"q_proj\"]\n");
  const auto response = intake_.Resolve(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->problems_size(), 0);
  ASSERT_EQ(response->warnings_size(), 1);
  EXPECT_EQ(response->warnings(0).key(), "lora.target_modules");
  EXPECT_GT(response->warnings(0).line(), 0);
  EXPECT_NE(response->warnings(0).message().find("in 3 of the 4 layers"), std::string::npos);
}

TEST_F(IntakeTest, AModelThatNoNodeCanBeAskedForIsANote) {
  v1::ResolveJobRequest request;
  request.set_source_text(kJobFile);
  request.set_file_name("job.toml");
  const auto response = intake_.Resolve(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->problems_size(), 0);
  EXPECT_NE(response->plan().note().find("not seen on any connected node"), std::string::npos);
}

TEST_F(IntakeTest, TheTypeInWhichRanksComputeIsShown) {
  const auto shown = [&](const std::string& text) {
    v1::ResolveJobRequest request;
    request.set_source_text(text);
    request.set_file_name("job.toml");
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    for (const v1::ResolvedValue& value : response->resolved()) {
      if (value.key() != "hyperparameters.parallelism.bf16") continue;
      const bool bf16 =
          response->resolved_json().find("\"compute_type\":\"bf16\"") != std::string::npos;
      return value.value() + " " + value.origin() + (bf16 ? " bf16" : "");
    }
    return std::string("absent");
  };
  JoinWithModel(kConfig);
  EXPECT_EQ(shown(kJobFile), "false derived: CPU computes on the CPU");
  std::string gpu = kJobFile;
  gpu.replace(gpu.find("\"CPU\""), 5, "\"H100\"");
  gpu.replace(gpu.find("/models/tiny"), 12, "org/tiny");
  v1::Register seen = RegisterOf("b", "H100", 2);
  v1::Model* model = seen.add_models();
  model->set_id("org/tiny");
  model->set_path("/models/tiny");
  model->set_config_json(kConfig);
  ASSERT_TRUE(registry_->Connect(seen, std::make_shared<FakeWorker>()).ok());
  EXPECT_EQ(shown(gpu), "true derived: H100 computes on GPUs bf16");
  seen.set_simulated(true);
  ASSERT_TRUE(registry_->Connect(seen, std::make_shared<FakeWorker>()).ok());
  EXPECT_EQ(shown(gpu), "false derived: H100 computes on the CPU");
}

TEST_F(IntakeTest, AutoTypesOfWeightsAndStatesAreChosenAtSubmitAndShown) {
  // 8 billion parameters.
  constexpr char kLarge[] =
      R"({"model_type":"llama","hidden_size":4096,"intermediate_size":14336,)"
      R"("num_attention_heads":32,"num_key_value_heads":8,"num_hidden_layers":32,)"
      R"("vocab_size":128256})";
  v1::Register seen = RegisterOf("b", "H200", 1);
  seen.mutable_slots(0)->set_memory_bytes(int64_t{120} << 30);
  v1::Model* model = seen.add_models();
  model->set_id("org/large");
  model->set_path("/models/large");
  model->set_config_json(kLarge);
  ASSERT_TRUE(registry_->Connect(seen, std::make_shared<FakeWorker>()).ok());
  const auto resolve = [&](const std::string& keys) {
    v1::ResolveJobRequest request;
    request.set_source_text(R"([job]
model = "org/large"
data = "rows.jsonl"
[compute]
gpu_type = "H200"
gpu_count = 1
[training]
mode = "full_finetune"
[hyperparameters]
global_batch = 4
)" + keys);
    request.set_file_name("job.toml");
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return *response;
  };
  const auto shown = [](const v1::ResolveJobResponse& response, const std::string& key) {
    for (const v1::ResolvedValue& value : response.resolved()) {
      if (value.key() == "hyperparameters." + key) return value.value() + " " + value.origin();
    }
    return std::string("absent");
  };
  const auto neither = resolve("optimizer = \"auto\"\n");
  EXPECT_EQ(neither.problems_size(), 0);
  EXPECT_EQ(shown(neither, "optimizer"),
            "adamw_bf16 derived: the most precise with which the job fits");
  EXPECT_EQ(shown(neither, "master_weights"), "auto default");
  ASSERT_EQ(neither.warnings_size(), 1);
  EXPECT_EQ(neither.warnings(0).line(), 11);
  EXPECT_NE(neither.resolved_json().find(R"("optimizer":"adamw_bf16")"), std::string::npos);
  const auto weights = resolve("optimizer = \"adamw\"\n");
  EXPECT_EQ(weights.problems_size(), 0);
  EXPECT_EQ(shown(weights, "master_weights"),
            "bf16 derived: the most precise with which the job fits");
  const auto pinned = resolve("optimizer = \"adamw\"\nmaster_weights = \"fp32\"\n");
  EXPECT_EQ(pinned.problems_size(), 1);
}

}  // namespace
}  // namespace sft::server
