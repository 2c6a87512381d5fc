#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "client/base/exit_codes.h"
#include "client/output/comparison.h"
#include "common/base/json.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Metric Step(int64_t step, double loss) {
  v1::Metric metric;
  metric.set_step(step);
  metric.set_loss(loss);
  metric.set_tokens(100);
  metric.set_tokens_per_second(step == 1 ? 1 : 1000);
  metric.set_gpu_memory_bytes(step * 1'000'000'000);
  return metric;
}

v1::Job MakeRun(const std::string& id, int batch, int rank, const char* name) {
  v1::Job job = MakeJob(id, v1::Job::SUCCEEDED);
  job.set_display_name(name);
  job.mutable_start_time()->set_seconds(1000);
  job.mutable_end_time()->set_seconds(1090);
  job.set_resolved_json(
      DumpJson(nlohmann::json{{"job", {{"name", name}, {"model", "tiny"}, {"output_dir", name}}},
                              {"compute", {{"gpu_count", 2}}},
                              {"training", {{"mode", "lora"}, {"use_qlora", true}}},
                              {"lora", {{"r", rank}}},
                              {"hyperparameters", {{"global_batch", batch}}}}));
  return job;
}

class CompareTest : public ::testing::Test {
 protected:
  CompareTest() {
    server_.jobs["job-a"] = MakeRun("job-a", 8, 16, "small");
    server_.jobs["job-b"] = MakeRun("job-b", 16, 64, "large");
    for (int step = 1; step <= 20; ++step) {
      server_.metrics_of["job-a"].push_back(Step(step, 4.0 - 0.1 * step));  // 160 samples
    }
    for (int step = 1; step <= 5; ++step) {
      server_.metrics_of["job-b"].push_back(Step(step, 3.0 - 0.2 * step));  // 80 samples
    }
    v1::Metric eval;
    eval.set_is_eval(true);
    eval.set_step(5);
    eval.set_val_loss(1.25);
    v1::NamedValue& value = *eval.add_values();
    value.set_name("val.rouge_l");
    value.set_value(34.5);
    server_.metrics_of["job-b"].push_back(eval);
  }
  FakeServer server_;
};

TEST_F(CompareTest, LossesAreTakenWhereBothHaveSeenTheSameSamples) {
  const Outcome run = Sftctl(server_, {"compare", "job-a", "job-b", "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  const auto json = ParseJson(run.out);
  EXPECT_EQ(json["samples"], 80);
  const auto& a = json["runs"][0];
  const auto& b = json["runs"][1];
  EXPECT_EQ(a["step_at_samples"], 10);
  EXPECT_DOUBLE_EQ(a["loss_at_samples"], 3.0);
  EXPECT_DOUBLE_EQ(a["mean_loss_at_samples"], 3.45);
  EXPECT_EQ(b["step_at_samples"], 5);
  EXPECT_DOUBLE_EQ(b["loss_at_samples"], 2.0);
  EXPECT_DOUBLE_EQ(b["val_loss"], 1.25);
  EXPECT_TRUE(a["val_loss"].is_null());
  EXPECT_DOUBLE_EQ(b["val.rouge_l"], 34.5);
  EXPECT_FALSE(a.contains("val.rouge_l"));
  EXPECT_EQ(a["tokens"], 2000);
  EXPECT_EQ(a["tokens_per_second"], 1000) << "the median, the first step left out";
  EXPECT_EQ(a["gpu_memory_bytes"], 20'000'000'000);
  EXPECT_EQ(a["wall_seconds"], 90);
  EXPECT_EQ(a["gpus"], 2);
  EXPECT_EQ(a["method"], "qlora r=16");
  EXPECT_EQ(json["differences"]["lora.r"], (std::vector<std::string>{"16", "64"}));
  EXPECT_EQ(json["differences"].size(), 2u) << "names and folders say nothing of the training";
}

TEST_F(CompareTest, AResumedRunIsComparedWhereItsCurveBegins) {
  server_.jobs["job-c"] = MakeRun("job-c", 8, 16, "resumed");
  auto& curve = server_.metrics_of["job-c"];
  for (int step = 18; step <= 20; ++step) curve.push_back(Step(step, 4.0 - 0.1 * step));
  const Outcome run = Sftctl(server_, {"compare", "job-a", "job-c", "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  const auto json = ParseJson(run.out);
  EXPECT_EQ(json["samples"], 160);
  for (const auto& of : json["runs"]) EXPECT_DOUBLE_EQ(of["mean_loss_at_samples"], 2.1);
}

TEST_F(CompareTest, TablesAreForPeople) {
  const Outcome run = Sftctl(server_, {"compare", "job-a", "job-b"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("LOSS@80"));
  EXPECT_THAT(run.out, HasSubstr("VALIDATION   job-a  job-b\nval.rouge_l  -      34.50\n"));
  EXPECT_THAT(run.out, HasSubstr("qlora r=64"));
  EXPECT_THAT(run.out, HasSubstr("hyperparameters.global_batch"));
  EXPECT_THAT(run.out, Not(HasSubstr("output_dir")));
}

TEST_F(CompareTest, ARunWithoutStepsHasNoLoss) {
  server_.jobs["job-c"] = MakeRun("job-c", 8, 16, "small");
  server_.metrics_of["job-c"] = {};
  const Outcome run = Sftctl(server_, {"compare", "job-a", "job-c", "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  const auto json = ParseJson(run.out);
  EXPECT_EQ(json["samples"], 0);
  EXPECT_TRUE(json["runs"][1]["loss"].is_null());
  EXPECT_TRUE(json["runs"][0]["loss_at_samples"].is_null());
  EXPECT_TRUE(json["differences"].empty());
}

// Two evaluations of four rows, of which the second got one more right.
class CompareEvaluationsTest : public CompareTest {
 protected:
  CompareEvaluationsTest() {
    Evaluate("job-x", "adapter-x", {"yes", "no", "no", "yes"});
    Evaluate("job-y", "", {"yes", "yes", "no", "yes"});
  }
  void Evaluate(const std::string& id, const std::string& adapter,
                const std::vector<std::string>& answers) {
    v1::Job job = MakeRun(id, 8, 16, "graded");
    job.set_kind(v1::Job::EVALUATE);
    server_.jobs[id] = job;
    const char* const side = adapter.empty() ? "base" : "tuned";
    std::string lines;
    double right = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const double score = answers[i] == "yes" ? 100 : 0;
      right += score / static_cast<double>(answers.size());
      nlohmann::json row = {{"line", i + 1},
                            {"prompt", "ask " + std::to_string(i)},
                            {"reference", "yes"},
                            {"reference_tokens", 2},
                            {"reference_bytes", 3}};
      row["base"] = {{"answer", "?"}, {"nll", 9}, {"scores", {{"exact_match", 0}}}};
      row[side] = {{"answer", answers[i]},
                   {"nll", 2.0 + score / 100},
                   {"scores", {{"exact_match", score}, {"mine", score / 2}}}};
      lines += DumpJson(row) + "\n";
    }
    nlohmann::json metrics = nlohmann::json::array();
    for (const char* name : {"exact_match", "mine", "bleu", "loss"}) {
      metrics.push_back({{"name", name}, {side, right}});
    }
    server_.artifact_files[id + "/evaluation.json"] =
        DumpJson(nlohmann::json{{"model", "m"}, {"adapter", adapter}, {"metrics", metrics}});
    server_.artifact_files[id + "/scores.jsonl"] = lines;
  }
};

TEST_F(CompareEvaluationsTest, DifferencesHaveIntervalsAndAnswersStandBesideEachOther) {
  const Outcome run = Sftctl(server_, {"compare", "job-x", "job-y", "--samples", "2"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, testing::ContainsRegex("exact_match +50\\.00 +75\\.00"));
  EXPECT_THAT(run.out, testing::HasSubstr("differences to job-x, over the rows of both"));
  EXPECT_THAT(run.out,
              testing::ContainsRegex(
                  "exact_match +job-y +\\+25\\.00 +[-+0-9.]+ to \\+[0-9.]+ +[0-9.]+ +0/1 +4"));
  EXPECT_THAT(run.out, testing::ContainsRegex("bleu +job-y "));
  EXPECT_THAT(run.out, testing::HasSubstr("\nline 2\n  prompt     ask 1\n  reference  yes\n"
                                          "  job-x      no\n"));
  EXPECT_THAT(run.out, testing::HasSubstr("  job-y      yes\n"));
  EXPECT_THAT(run.out, testing::Not(testing::HasSubstr("line 3")));
  const auto json = ParseJson(Sftctl(server_, {"compare", "job-x", "job-y", "--json"}).out);
  const auto& first = json["differences"][0];
  EXPECT_EQ(first["metric"], "exact_match");
  EXPECT_EQ(first["to"], "job-x");
  EXPECT_DOUBLE_EQ(first["difference"], 25);
  EXPECT_LE(first["low"], 25);
  EXPECT_GE(first["high"], 25);
  EXPECT_EQ(first["only_job"], 1);
  EXPECT_EQ(json["differences"].size(), 4u);
  EXPECT_DOUBLE_EQ(json["differences"][1]["difference"], 12.5) << "a grader of the job's own";
  EXPECT_EQ(json["samples"].size(), 3u);
  EXPECT_EQ(json["samples"][1]["answers"][0]["answer"], "no");
  EXPECT_EQ(json["samples"][1]["answers"][1]["answer"], "yes");
}

TEST_F(CompareEvaluationsTest, RowsThatOnlyOneHasAreNotCompared) {
  std::string& lines = server_.artifact_files["job-y/scores.jsonl"];
  lines = lines.substr(lines.find('\n') + 1);
  const auto json = ParseJson(Sftctl(server_, {"compare", "job-x", "job-y", "--json"}).out);
  EXPECT_EQ(json["differences"][0]["rows"], 3);
  EXPECT_EQ(json["samples"][0]["line"], 2);
  lines.clear();
  const Outcome none = Sftctl(server_, {"compare", "job-x", "job-y"});
  EXPECT_EQ(none.code, kSucceeded);
  EXPECT_THAT(none.out, testing::HasSubstr("no row and metric are in both evaluations"));
  lines = "[1]\n";
  EXPECT_THAT(Sftctl(server_, {"compare", "job-x", "job-y"}).err,
              testing::HasSubstr("scores.jsonl of job-y is not what it should be"));
}

// A template that prints the day, or another model's, gives the same row another prompt.
TEST_F(CompareEvaluationsTest, RowsAreFoundUnderOtherPromptsButNotInOtherData) {
  const auto differing = [&](const char* from, const char* to) {
    std::string& lines = server_.artifact_files["job-y/scores.jsonl"];
    for (size_t at = 0; (at = lines.find(from, at)) != std::string::npos; at += strlen(to)) {
      lines.replace(at, strlen(from), to);
    }
    return ParseJson(Sftctl(server_, {"compare", "job-x", "job-y", "--json"}).out)["differences"];
  };
  EXPECT_EQ(differing("\"ask ", "\"It is Friday. ask ")[0]["rows"], 4);
  EXPECT_TRUE(differing("\"reference\":\"yes\"", "\"reference\":\"maybe\"").empty());
}

TEST_F(CompareTest, OneJobAloneOrAnUnknownOneIsRefused) {
  EXPECT_EQ(Sftctl(server_, {"compare", "job-a"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"compare", "job-a", "job-z"}).code, kNotFound);
}

}  // namespace
}  // namespace sft::client
