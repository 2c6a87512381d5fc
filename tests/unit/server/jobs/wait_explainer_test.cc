#include "server/jobs/wait_explainer.h"

#include <gmock/gmock.h>

#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kGpuJob[] = R"([job]
model = "/models/tiny"
data = "rows.jsonl"
[compute]
gpu_type = "H100"
gpu_count = 4
[hyperparameters]
max_steps = 10
per_device_batch = 2
)";

class WaitExplainerTest : public IntakeTest {
 protected:
  WaitExplainerTest() : waits_(*store_, *registry_, intake_, clock_) {
    first_ = JoinWithModel(kConfig);
    EXPECT_TRUE(Upload(kRows).ok());
  }

  // A node whose worker answers for the model too.
  void Add(const std::string& node, const std::string& type, int slots) {
    others_.push_back(Join(node, type, slots));
    others_.back()->on_fetch = first_->on_fetch;
  }
  std::string SubmitFile(const v1::SubmitJobRequest& request) {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_THAT(outcome->problems, IsEmpty());
    Tick();
    const std::string name = outcome->job.name();
    return name.substr(name.rfind('/') + 1);
  }
  v1::SubmitJobRequest Gpus(int count) {
    v1::SubmitJobRequest request = Request(kGpuJob);
    Set(request, "compute.gpu_count", std::to_string(count));
    return request;
  }
  v1::WaitExplanation Explain(const std::string& job) {
    const auto explanation = waits_.Explain(job);
    EXPECT_TRUE(explanation.ok()) << explanation.status();
    return explanation.value_or(v1::WaitExplanation());
  }
  // "on 4 x A100: now: sftctl submit ..."
  static std::vector<std::string> WhatIfs(const v1::WaitExplanation& explanation) {
    std::vector<std::string> texts;
    for (const v1::WhatIf& each : explanation.what_ifs()) {
      texts.push_back(each.change() + (each.now() ? ": now: " : ": later: ") + each.command());
    }
    return texts;
  }

  std::shared_ptr<FakeWorker> first_;
  std::vector<std::shared_ptr<FakeWorker>> others_;
  WaitExplainer waits_;
};

TEST_F(WaitExplainerTest, AWaitingJobIsToldItsLineAndWhatWouldStartItSooner) {
  Add("h", "H100", 4);
  Add("x", "A100", 4);
  const std::string runs = SubmitFile(Request(kGpuJob));
  const std::string waiting = SubmitFile(Request(kGpuJob));
  const std::string last = SubmitFile(Request(kGpuJob));
  ASSERT_EQ(State(runs), v1::Job::PREPARING);
  const v1::WaitExplanation of_first = Explain(waiting);
  EXPECT_EQ(of_first.reason(), "waiting for 4 x H100 on one node: h has 4, 4 held by " + runs);
  EXPECT_EQ(of_first.outlook().place(), 1);
  EXPECT_TRUE(of_first.outlook().has_promised_start_time());
  EXPECT_EQ(of_first.line(), 2);
  EXPECT_EQ(of_first.ahead_own(), 0);
  EXPECT_THAT(WhatIfs(of_first),
              ElementsAre("on 4 x A100: now: sftctl submit job.toml --set compute.gpu_type=A100 && "
                          "sftctl cancel " +
                              waiting,
                          "with priority high: later: sftctl submit job.toml --set "
                          "scheduling.priority=high && sftctl cancel " +
                              waiting));
  const v1::WaitExplanation of_last = Explain(last);
  EXPECT_EQ(of_last.outlook().place(), 2);
  EXPECT_EQ(of_last.ahead_own(), 1);
  EXPECT_EQ(of_last.ahead_unknown(), 1);
  EXPECT_EQ(of_last.ahead_gpu_hours(), 4);
  EXPECT_EQ(of_last.past_starts(), 1) << "the first, which started at once";
  EXPECT_EQ(of_last.past_within_20(), 1);
}

TEST_F(WaitExplainerTest, AWaitingJobIsToldWhatMovedIt) {
  Add("h", "H100", 4);
  v1::SubmitJobRequest high = Request(kGpuJob);
  Set(high, "scheduling.priority", "high");
  ASSERT_EQ(State(SubmitFile(high)), v1::Job::PREPARING);
  const std::string waiting = SubmitFile(Request(kGpuJob));
  EXPECT_EQ(Explain(waiting).history_size(), 0);
  clock_.Advance(WaitExplainer::kKept);
  JobRecord other;
  other.id = "job-of-secret";
  other.project = "secret";
  other.gpu_type = "H100";
  other.gpus_per_node = 4;
  other.nodes = 1;
  other.priority = sched::kHigh;
  other.created_us = UnixMicros(clock_.Wall());
  other.spec.emplace();
  ASSERT_TRUE(jobs_->Submit(other, {}).ok());
  const std::string ahead = SubmitFile(high);
  const v1::WaitExplanation explanation = Explain(waiting);
  ASSERT_EQ(explanation.history_size(), 1);
  const v1::WaitChange& change = explanation.history(0);
  EXPECT_EQ(change.place_before(), 1);
  EXPECT_EQ(change.place(), 3);
  EXPECT_TRUE(change.has_promised_start_time_before());
  EXPECT_FALSE(change.has_promised_start_time()) << "how long the others run is not known";
  EXPECT_EQ(change.cause(), ahead + " and a job of another project were submitted ahead of it");
  Tick();
  clock_.Advance(WaitExplainer::kKept);
  EXPECT_EQ(Explain(waiting).history_size(), 1) << "once";
}

TEST_F(WaitExplainerTest, FewerGpusKeepTheBatchAndFormerChangesStay) {
  Add("h", "H100", 4);
  ASSERT_EQ(State(SubmitFile(Gpus(2))), v1::Job::PREPARING);
  v1::SubmitJobRequest request = Gpus(4);
  Set(request, "job.name", "it's mine");
  const std::string waiting = SubmitFile(request);
  const v1::WaitExplanation explanation = Explain(waiting);
  ASSERT_FALSE(explanation.what_ifs().empty());
  EXPECT_EQ(explanation.what_ifs(0).change(), "with 2 GPUs in place of 4");
  EXPECT_TRUE(explanation.what_ifs(0).now());
  EXPECT_EQ(explanation.what_ifs(0).command(),
            "sftctl submit job.toml --set 'job.name=it'\\''s mine' --set compute.gpu_count=2 --set "
            "hyperparameters.global_batch=8 --set "
            "hyperparameters.gradient_accumulation_steps=auto --set "
            "hyperparameters.per_device_batch=2 && sftctl cancel " +
                waiting);
  // What it says is so.
  v1::SubmitJobRequest pasted = Request(kGpuJob);
  Set(pasted, "job.name", "it's mine");
  Set(pasted, "compute.gpu_count", "2");
  Set(pasted, "hyperparameters.global_batch", "8");
  Set(pasted, "hyperparameters.gradient_accumulation_steps", "auto");
  Set(pasted, "hyperparameters.per_device_batch", "2");
  const std::string again = SubmitFile(pasted);
  ASSERT_TRUE(jobs_->Cancel(waiting, "", /*checkpoint=*/false).ok());
  Tick();
  EXPECT_EQ(State(again), v1::Job::PREPARING);
}

TEST_F(WaitExplainerTest, AHeldJobIsToldWhatAReleaseWouldDo) {
  v1::SubmitJobRequest request = Request();
  Set(request, "scheduling.hold", "true");
  const std::string held = SubmitFile(request);
  const v1::WaitExplanation explanation = Explain(held);
  EXPECT_THAT(explanation.reason(), HasSubstr("held"));
  EXPECT_FALSE(explanation.has_outlook());
  EXPECT_THAT(WhatIfs(explanation), ElementsAre("released: now: sftctl release " + held));
}

TEST_F(WaitExplainerTest, OnlyWhatWaitsIsExplained) {
  const std::string runs = SubmitFile(Request());
  const auto explanation = waits_.Explain(runs);
  EXPECT_TRUE(absl::IsFailedPrecondition(explanation.status()));
  EXPECT_THAT(std::string(Message(explanation.status())),
              HasSubstr("does not wait: it is PREPARING"));
  EXPECT_TRUE(absl::IsNotFound(waits_.Explain("job-z").status()));
}

TEST_F(WaitExplainerTest, AnAnswerIsGivenAgainForTenSeconds) {
  SubmitFile(Request());
  const std::string waiting = SubmitFile(Request());
  EXPECT_EQ(Explain(waiting).line(), 1);
  SubmitFile(Request());
  clock_.Advance(WaitExplainer::kKept - std::chrono::seconds(1));
  EXPECT_EQ(Explain(waiting).line(), 1);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Explain(waiting).line(), 2);
}

TEST_F(WaitExplainerTest, OfOtherProjectsNumbersAloneAreTold) {
  v1::SubmitJobRequest request = Request();
  request.set_project("secret");
  // The data set belongs to the default project alone.
  request.clear_files();
  JobRecord other;
  other.id = "job-of-secret";
  other.project = "secret";
  other.gpu_type = "CPU";
  other.gpus_per_node = 2;
  other.nodes = 1;
  other.spec.emplace();
  ASSERT_TRUE(jobs_->Submit(other, {}).ok());
  Tick();
  other.id = "job-of-secret-2";
  ASSERT_TRUE(jobs_->Submit(other, {}).ok());
  const std::string waiting = SubmitFile(Request());
  const v1::WaitExplanation explanation = Explain(waiting);
  EXPECT_EQ(explanation.ahead_own() + explanation.ahead_others(),
            explanation.outlook().place() - 1);
  EXPECT_THAT(explanation.DebugString(), ::testing::Not(HasSubstr("secret")));
}

TEST_F(WaitExplainerTest, AJobThatIsNotSubmittedYetIsExplainedAsIfItWere) {
  v1::SubmitJobRequest request = Request();
  request.clear_files();
  auto explanation = waits_.ExplainNew(request, "local");
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  EXPECT_EQ(explanation->reason(), "") << "it could start";
  SubmitFile(Request());
  Add("b", "CPU", 1);
  clock_.Advance(WaitExplainer::kKept);
  explanation = waits_.ExplainNew(request, "local");
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  EXPECT_THAT(explanation->reason(), HasSubstr("waiting for 2 x CPU on one node"));
  EXPECT_EQ(explanation->line(), 1);
  ASSERT_FALSE(explanation->what_ifs().empty());
  EXPECT_EQ(explanation->what_ifs(0).change(), "with 1 CPU slot in place of 2");
  EXPECT_THAT(explanation->what_ifs(0).command(),
              HasSubstr("sftctl submit job.toml --set compute.gpu_count=1"));
  EXPECT_THAT(explanation->what_ifs(0).command(), ::testing::Not(HasSubstr("cancel")));
}

TEST(ChangeTest, IsSaidInWordsAndKeys) {
  using Kind = sched::Change::Kind;
  sched::PendingJob job;
  job.gpu_type = "H100";
  job.gpus_per_node = 8;
  const auto said = [&](const sched::Change& change) {
    v1::SubmitJobRequest request;
    request.set_file_name("my job.toml");
    request.set_project("p");
    *request.mutable_overrides() = OverridesOf(job, change);
    return ChangeText(job, change) + " | " + SubmitCommand(request);
  };
  const std::string begin = "sftctl submit 'my job.toml' --set ";
  EXPECT_EQ(said({.kind = Kind::kShape, .gpu_type = "A100", .nodes = 1, .gpus_per_node = 8}),
            "on 8 x A100 | " + begin + "compute.gpu_type=A100 --project p");
  EXPECT_EQ(said({.kind = Kind::kShape, .gpu_type = "H100", .nodes = 2, .gpus_per_node = 4}),
            "on 2 nodes with 4 GPUs each | " + begin +
                "compute.nodes=2 --set compute.gpus_per_node=4 --project p");
  EXPECT_EQ(said({.kind = Kind::kTimeLimit, .gpu_type = "", .limit_us = 7'200'000'000}),
            "with a time limit of 2h | " + begin + "scheduling.time_limit=2h --project p");
}

}  // namespace
}  // namespace sft::server
