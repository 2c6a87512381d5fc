#include <fmt/format.h>

#include "common/spec/layout.h"
#include "server/resume/resume_values.h"
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

// Eight H100 of a node that has a model of 8 billion parameters.
class LayoutTest : public IntakeTest {
 protected:
  void SetUp() override {
    IntakeTest::SetUp();
    JoinEight("b", kLarge, 84'500'000'000);
  }
  // A node with eight H100 of so many bytes, and the model "org/large".
  void JoinEight(const std::string& node, const std::string& config, int64_t memory_bytes,
                 int protocol = kProtocol) {
    v1::Register seen = RegisterOf(node, "H100", 8);
    for (v1::Slot& slot : *seen.mutable_slots()) slot.set_memory_bytes(memory_bytes);
    seen.set_protocol(protocol);
    v1::Model* model = seen.add_models();
    model->set_id("org/large");
    model->set_path("/models/large");
    model->set_config_json(config);
    const absl::Status joined = registry_->Connect(seen, std::make_shared<FakeWorker>());
    EXPECT_TRUE(joined.ok()) << joined;
  }
  static constexpr char kLarge[] =
      R"({"model_type":"llama","hidden_size":4096,"intermediate_size":14336,)"
      R"("num_attention_heads":32,"num_key_value_heads":8,"num_hidden_layers":32,)"
      R"("vocab_size":128256})";

  static std::string Text(const std::string& keys, int gpus = 8) {
    return fmt::format(
        "[job]\nmodel = \"org/large\"\ndata = \"rows.jsonl\"\n[compute]\ngpu_type = \"H100\"\n"
        "gpu_count = {}\n{}",
        gpus, keys);
  }
  v1::ResolveJobResponse Resolved(const std::string& text) {
    v1::ResolveJobRequest request;
    request.set_source_text(text);
    request.set_file_name("job.toml");
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return *response;
  }
  static std::string Shown(const v1::ResolveJobResponse& response, const std::string& key) {
    for (const v1::ResolvedValue& value : response.resolved()) {
      if (value.key() == "hyperparameters." + key) return value.value() + " " + value.origin();
    }
    return "absent";
  }
  // The job of a submit as it is stored; not of one that has problems.
  JobRecord Stored(const std::string& id, const v1::SubmitJobRequest& submit) {
    v1::ResolveJobRequest request;
    request.set_source_text(submit.source_text());
    request.set_file_name("job.toml");
    *request.mutable_overrides() = submit.overrides();
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    for (const v1::Problem& each : response->problems()) ADD_FAILURE() << id << each.message();
    for (const v1::Problem& each : response->warnings()) {
      EXPECT_EQ(each.message().find("would be faster"), std::string::npos) << each.message();
    }
    JobRecord job;
    job.id = id;
    job.gpu_type = "H100", job.gpus_per_node = 8;
    job.source_text = submit.source_text();
    job.file_name = "job.toml";
    for (const v1::ResolvedValue& value : response->resolved()) {
      job.resolved_values.push_back({value.key(), value.value(), value.origin()});
    }
    return job;
  }
  JobRecord Submitted(const std::string& id, const std::string& text) {
    v1::SubmitJobRequest submit;
    submit.set_source_text(text);
    return Stored(id, submit);
  }
  static v1::SubmitJobRequest Resume(const JobRecord& ended, const std::string& key,
                                     const std::string& value) {
    v1::ResumeJobRequest resume;
    resume.set_name(ended.id);
    Set(resume, key, value);
    return SubmitOfResume(ended, {}, resume);
  }
  static std::string ValueIn(const JobRecord& job, const std::string& key) {
    for (const ResolvedRecord& value : job.resolved_values) {
      if (value.key == "hyperparameters." + key) return value.value;
    }
    return "absent";
  }
  static std::string OriginIn(const JobRecord& job, const std::string& key) {
    for (const ResolvedRecord& value : job.resolved_values) {
      if (value.key == "hyperparameters." + key) return value.origin;
    }
    return "absent";
  }
  static std::string LayoutIn(const JobRecord& job) {
    std::string text;
    for (const ResolvedRecord& value : job.resolved_values) {
      if (spec::IsLayoutKey(value.key)) text += value.key + "=" + value.value + " ";
    }
    return text;
  }
};

constexpr char kFull[] = "[training]\nmode = \"full_finetune\"\n";

TEST_F(LayoutTest, ThePlanDividesAJobThatDoesNotSayHow) {
  const auto lora = Resolved(Text("[hyperparameters]\nglobal_batch = 64\n"));
  ASSERT_EQ(lora.problems_size(), 0);
  ASSERT_EQ(lora.plan().layouts_size(), 2);
  EXPECT_EQ(lora.plan().layouts(0).keys(), "fsdp = false");
  EXPECT_EQ(Shown(lora, "parallelism.fsdp").rfind("false derived: chosen by the plan: ", 0), 0u)
      << Shown(lora, "parallelism.fsdp");
  EXPECT_GT(lora.plan().layouts(0).tokens_per_second(), 0);
  EXPECT_NEAR(lora.plan().layouts(0).tokens_per_second(), lora.plan().tokens_per_second(), 1)
      << "that of the plan itself";
  // Full fine-tuning in fp32 takes 16 bytes an element, and no GPU holds so many.
  const auto full = Resolved(Text(std::string(kFull) + "[hyperparameters]\nglobal_batch = 64\n"));
  ASSERT_EQ(full.problems_size(), 0) << full.problems(0).message();
  EXPECT_EQ(full.warnings_size(), 0);
  EXPECT_NE(full.plan().layouts(0).keys(), "fsdp = false");
  EXPECT_NE(full.resolved_json().find("\"sharding\":\""), std::string::npos);
  EXPECT_EQ(full.resolved_json().find("\"sharding\":\"ddp\""), std::string::npos);
  EXPECT_FALSE(full.plan().layout_reason().empty());
  EXPECT_NEAR(full.plan().layouts(0).tokens_per_second(), full.plan().tokens_per_second(), 1);
}

TEST_F(LayoutTest, ALayoutThatTheJobNamesStaysAndAClearlyFasterOneIsNamed) {
  const std::string batch = "[hyperparameters]\nglobal_batch = 64\n";
  const auto good = Resolved(Text(batch + "[hyperparameters.parallelism]\nfsdp = true\n"));
  ASSERT_EQ(good.problems_size(), 0);
  EXPECT_EQ(good.plan().layouts(0).keys(), "fsdp = true");
  EXPECT_EQ(good.plan().layout_reason(), "named by the job");
  EXPECT_EQ(good.warnings_size(), 0);
  const auto slow =
      Resolved(Text(batch + "[hyperparameters.parallelism]\npipeline_parallel_size = 8\n"));
  ASSERT_EQ(slow.problems_size(), 0);
  EXPECT_EQ(slow.plan().layouts(0).keys(), "pipeline_parallel_size = 8");
  EXPECT_EQ(Shown(slow, "parallelism.pipeline_parallel_size"), "8 job.toml:10");
  ASSERT_EQ(slow.warnings_size(), 1);
  EXPECT_EQ(slow.warnings(0).key(), "compute.gpu_count");
  EXPECT_EQ(slow.warnings(0).line(), 6);
  EXPECT_NE(slow.warnings(0).message().find("would be faster"), std::string::npos)
      << slow.warnings(0).message();
}

TEST_F(LayoutTest, AJobThatFitsInNoLayoutIsRefused) {
  const auto two = Resolved(Text(
      "memory_budget_gb = 40\n" + std::string(kFull) + "[hyperparameters]\nglobal_batch = 64\n",
      2));
  ASSERT_EQ(two.problems_size(), 1);
  EXPECT_EQ(two.problems(0).key(), "compute.memory_budget_gb");
  EXPECT_NE(two.problems(0).message().find("; no other layout of its 2 GPUs fits"),
            std::string::npos)
      << two.problems(0).message();
  // Fewer rows than GPUs share theirs.
  const auto one = Resolved(Text("[hyperparameters]\nglobal_batch = 1\n"));
  ASSERT_EQ(one.problems_size(), 0) << one.problems(0).message();
  EXPECT_EQ(Shown(one, "global_batch"), "1 job.toml:8");
  EXPECT_NE(one.plan().layouts(0).keys().find("parallel_size = 8"), std::string::npos)
      << one.plan().layouts(0).keys();
}

TEST_F(LayoutTest, WhatIsNotKnownIsNotChosen) {
  const auto one = Resolved(Text("", 1));
  EXPECT_EQ(one.plan().layouts_size(), 0);
  JoinWithModel(kConfig);
  v1::ResolveJobRequest request;
  request.set_source_text(kJobFile);
  request.set_file_name("job.toml");
  EXPECT_EQ(intake_.Resolve(request)->plan().layouts_size(), 0) << "CPUs have no plans";
}

// The layout is part of the job as it is stored, and stays when that goes on.
TEST_F(LayoutTest, AResumeOnTheSameGpusKeepsTheLayout) {
  JobRecord ended;
  ended.id = "job-1";
  ended.gpu_type = "H100", ended.gpus_per_node = 8;
  ended.source_text = Text("");
  ended.file_name = "job.toml";
  ended.resolved_values = {
      {"compute.gpu_count", "8", "job.toml:6"},
      {"hyperparameters.global_batch", "32", "derived: as the GPUs have it"},
      {"hyperparameters.parallelism.fsdp", "true", "derived: chosen by the plan: as it was"},
      {"hyperparameters.parallelism.context_parallel_size", "2", "derived: chosen by the plan"},
      {"hyperparameters.parallelism.pipeline_parallel_size", "1", "derived: chosen by the plan"}};
  const auto changed = [&](const std::string& key, const std::string& value) {
    std::string text;
    const v1::SubmitJobRequest submit = Resume(ended, key, value);
    for (const v1::Override& each : submit.overrides()) {
      if (spec::IsLayoutKey(each.key())) text += each.key() + "=" + each.value() + " ";
    }
    return text;
  };
  EXPECT_EQ(changed("checkpoint.save_minutes", "5"),
            "hyperparameters.parallelism.fsdp=true "
            "hyperparameters.parallelism.context_parallel_size=2 "
            "hyperparameters.parallelism.pipeline_parallel_size=1 ");
  EXPECT_EQ(changed("compute.gpu_count", "4"), "") << "chosen anew";
  EXPECT_EQ(changed("hyperparameters.parallelism.fsdp", "false"),
            "hyperparameters.parallelism.fsdp=false ");
  EXPECT_EQ(changed("hyperparameters.parallelism.device_map", "balanced"), "");
  // No plan chose for a job of an earlier release.
  for (ResolvedRecord& value : ended.resolved_values) {
    if (spec::IsLayoutKey(value.key)) value.value = "1", value.origin = "default";
    if (value.key.ends_with(".fsdp")) value.value = "false";
  }
  ended.resolved_values.push_back({"hyperparameters.parallelism.deepspeed_stage", "2", "default"});
  EXPECT_EQ(changed("checkpoint.save_minutes", "5"),
            "hyperparameters.parallelism.fsdp=false "
            "hyperparameters.parallelism.context_parallel_size=1 "
            "hyperparameters.parallelism.pipeline_parallel_size=1 ");
  ended.resolved_values.push_back(
      {"hyperparameters.parallelism.device_map", "balanced", "job.toml:9"});
  EXPECT_EQ(changed("checkpoint.save_minutes", "5"), "") << "its file names one";
}

TEST_F(LayoutTest, EveryLayoutStaysWhenItsJobGoesOn) {
  const std::string text = Text("[hyperparameters]\nper_device_batch = 2\nglobal_batch = 16\n");
  const std::vector<spec::Override> none;
  const spec::ResolveOptions options;
  const spec::Resolution plain = spec::Resolve(text, "job.toml", none, options);
  ASSERT_TRUE(plain.ok());
  for (const spec::Layout& layout : spec::LayoutsFor(plain.spec.compute)) {
    spec::Resolution in = plain;
    spec::TakeLayout(spec::InLayout({text, "job.toml", none, options}, plain, layout), "", in);
    JobRecord ended;
    ended.id = "job-1";
    ended.gpu_type = "H100", ended.gpus_per_node = 8;
    ended.source_text = text;
    ended.file_name = "job.toml";
    for (const spec::ResolvedValue& value : in.values) {
      ended.resolved_values.push_back({value.key, value.text, value.origin});
    }
    std::vector<spec::Override> overrides;
    const v1::SubmitJobRequest submit = Resume(ended, "checkpoint.save_minutes", "5");
    for (const v1::Override& each : submit.overrides()) {
      overrides.push_back({each.key(), each.value(), each.origin(), spec::OverrideKind::kSet});
    }
    const spec::Resolution next = spec::Resolve(text, "job.toml", overrides, options);
    ASSERT_TRUE(next.ok()) << spec::ToText(layout) << next.problems[0].message;
    EXPECT_EQ(spec::LayoutOf(next.spec), layout) << spec::ToText(layout);
    EXPECT_EQ(next.spec.hyperparameters.global_batch, 16) << spec::ToText(layout);
    EXPECT_EQ(next.spec.hyperparameters.per_device_batch, 2) << spec::ToText(layout);
  }
}

TEST_F(LayoutTest, AResumeOfAResumeKeepsTheLayoutOnTheSameGpusAlone) {
  for (const char* rows : {"1", "64"}) {
    const JobRecord first =
        Submitted("job-1", Text(fmt::format("[hyperparameters]\nglobal_batch = {}\n", rows)));
    const JobRecord second = Stored("job-2", Resume(first, "checkpoint.save_minutes", "5"));
    EXPECT_EQ(LayoutIn(second), LayoutIn(first));
    EXPECT_EQ(OriginIn(second, "parallelism.fsdp"), "derived: the layout of job-1");
    const JobRecord same = Stored("job-3", Resume(second, "checkpoint.save_minutes", "6"));
    EXPECT_EQ(LayoutIn(same), LayoutIn(first));
    EXPECT_EQ(OriginIn(same, "parallelism.fsdp"), "derived: the layout of job-2");
    const JobRecord fewer = Stored("job-3", Resume(second, "compute.gpu_count", "4"));
    EXPECT_EQ(OriginIn(fewer, "parallelism.fsdp").rfind(spec::kChosenByPlan, 0), 0u)
        << OriginIn(fewer, "parallelism.fsdp");
    EXPECT_EQ(ValueIn(fewer, "global_batch"), rows);
  }
}

TEST_F(LayoutTest, AResumeHasTheRowsOfAGpuThatTheLayoutNeeds) {
  const JobRecord first =
      Submitted("job-1", Text("[hyperparameters]\nper_device_batch = 2\nglobal_batch = 4\n"));
  ASSERT_EQ(OriginIn(first, "per_device_batch"), spec::kBatchOrigin);
  ASSERT_EQ(ValueIn(first, "per_device_batch"), "1");
  const JobRecord second = Stored("job-2", Resume(first, "hyperparameters.n_epochs", "5"));
  EXPECT_EQ(LayoutIn(second), LayoutIn(first));
  EXPECT_EQ(ValueIn(second, "per_device_batch"), "1");
  for (const JobRecord* ended : {&first, &second}) {
    for (const char* gpus : {"4", "2"}) {
      const JobRecord fewer = Stored("job-3", Resume(*ended, "compute.gpu_count", gpus));
      EXPECT_EQ(ValueIn(fewer, "global_batch"), "4") << ended->id << gpus;
    }
  }
}

TEST_F(LayoutTest, FewRowsAreAProblemWhereNoPlanVouchesForALayout) {
  const auto problem = [&](const std::string& text) {
    const v1::ResolveJobResponse response = Resolved(text);
    EXPECT_EQ(response.problems_size(), 1);
    if (response.problems_size() == 0) return std::string();
    return response.problems(0).key() + ": " + response.problems(0).message();
  };
  const std::string large =
      Text(std::string("memory_budget_gb = 6\n") + kFull + "[hyperparameters]\nglobal_batch = 1\n");
  EXPECT_EQ(problem(large).rfind("compute.memory_budget_gb: ", 0), 0u) << problem(large);
  EXPECT_NE(problem(large).find("; no other layout of its 8 GPUs fits"), std::string::npos);
  const std::string one = Text("[hyperparameters]\nglobal_batch = 1\n");
  const std::string few =
      "hyperparameters.global_batch: hyperparameters.global_batch = 1 (job.toml";
  // Nothing says how much the GPUs hold.
  JoinEight("b", kLarge, 0);
  EXPECT_EQ(problem(one).rfind(few, 0), 0u) << problem(one);
  // No layout of eight GPUs goes with four layers of which most are DeltaNets of three heads.
  JoinEight("b",
            R"({"model_type":"qwen3_5_text","num_hidden_layers":4,"linear_num_key_heads":3,)"
            R"("linear_num_value_heads":3})",
            84'500'000'000);
  EXPECT_EQ(problem(one).rfind(few, 0), 0u) << problem(one);
}

TEST_F(LayoutTest, KeysThatNoWorkerKnowsYetAreNotChosen) {
  const std::string text = Text("[hyperparameters]\nglobal_batch = 1\n");
  EXPECT_EQ(Resolved(text).problems_size(), 0);
  JoinEight("b", kLarge, 84'500'000'000, 1);
  const auto few = Resolved(text);
  ASSERT_EQ(few.problems_size(), 1);
  EXPECT_EQ(few.problems(0).key(), "hyperparameters.global_batch");
  const auto full = Resolved(Text(std::string(kFull) + "[hyperparameters]\nglobal_batch = 8\n"));
  ASSERT_EQ(full.problems_size(), 0) << full.problems(0).message();
  for (const v1::Layout& each : full.plan().layouts()) {
    EXPECT_EQ(each.keys().find("parallel_size"), std::string::npos) << each.keys();
  }
  // One that was upgraded can run it.
  JoinEight("c", kLarge, 84'500'000'000);
  EXPECT_EQ(Resolved(text).problems_size(), 0);
}

}  // namespace
}  // namespace sft::server
