#include "server/openai/tuned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/errors.h"
#include "server/openai/models.h"

namespace sft::server::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Job JobIn(v1::Job::State state) {
  v1::Job job;
  job.set_name("projects/alpha/jobs/job-1");
  job.set_project("alpha");
  job.set_display_name("mine");
  job.set_state(state);
  job.set_model("org/base");
  job.mutable_create_time()->set_seconds(100);
  const auto add = [&](const char* key, const char* value, const char* origin) {
    v1::ResolvedValue& added = *job.add_resolved();
    added.set_key(key);
    added.set_value(value);
    added.set_origin(origin);
  };
  add("job.data", "file-a", "fine-tuning.json:4");
  add("training.loss", "sft", "default");
  add("training.preference.beta", "0.1", "default");
  add("hyperparameters.n_epochs", "3", "default");
  add("hyperparameters.global_batch", "16", "derived: 4 x 4");
  add("hyperparameters.learning_rate", "4e-05", "learning_rate_multiplier 2");
  add("hyperparameters.seed", "42", "default");
  (*job.mutable_metadata())["team"] = "v";
  return job;
}

TEST(OpenAiTunedTest, EachStateIsOneThatClientsKnow) {
  struct Case {
    v1::Job::State state;
    bool held;
    const char* status;
  };
  for (const Case& each :
       {Case{v1::Job::PENDING, false, "queued"}, Case{v1::Job::PENDING, true, "paused"},
        Case{v1::Job::PREPARING, false, "running"}, Case{v1::Job::RUNNING, false, "running"},
        Case{v1::Job::RUNNING, true, "pausing"}, Case{v1::Job::CANCELLING, false, "running"},
        Case{v1::Job::SUCCEEDED, false, "succeeded"}, Case{v1::Job::FAILED, false, "failed"},
        Case{v1::Job::CANCELLED, false, "cancelled"}}) {
    v1::Job job = JobIn(each.state);
    job.set_held(each.held);
    EXPECT_EQ(JobJson(job)["status"], each.status);
  }
}

TEST(OpenAiTunedTest, AJobHasTheNumbersThatWereChosen) {
  v1::Job job = JobIn(v1::Job::SUCCEEDED);
  job.mutable_end_time()->set_seconds(200);
  job.add_artifacts("artifacts/artifact-1");
  const Json json = JobJson(job);
  EXPECT_EQ(json["id"], "job-1");
  EXPECT_EQ(json["object"], "fine_tuning.job");
  EXPECT_EQ(json["organization_id"], "alpha");
  EXPECT_EQ(json["training_file"], "file-a");
  EXPECT_TRUE(json["validation_file"].is_null());
  EXPECT_EQ(json["created_at"], 100);
  EXPECT_EQ(json["finished_at"], 200);
  EXPECT_EQ(json["seed"], 42);
  EXPECT_EQ(json["hyperparameters"].dump(),
            R"({"n_epochs":3,"batch_size":16,"learning_rate_multiplier":2})");
  EXPECT_EQ(json["method"]["type"], "supervised");
  EXPECT_EQ(json["fine_tuned_model"], "ft:org/base:alpha:mine:job-1");
  EXPECT_EQ(json["result_files"].dump(), R"(["file-job-1"])");
  EXPECT_EQ(json["metadata"].dump(), R"({"team":"v"})");
  EXPECT_TRUE(json["error"].is_null());
  // What was removed is no model any more.
  job.clear_artifacts();
  EXPECT_TRUE(JobJson(job)["fine_tuned_model"].is_null());
}

TEST(OpenAiTunedTest, AFailedJobSaysWhyAndWhatToDo) {
  v1::Job job = JobIn(v1::Job::FAILED);
  job.mutable_verdict()->set_code("bad_data");
  job.mutable_verdict()->set_message("row 7 has no answer");
  job.mutable_verdict()->set_advice("mend it");
  EXPECT_EQ(
      JobJson(job)["error"].dump(),
      R"({"code":"bad_data","message":"row 7 has no answer; mend it","param":"training_file"})");
}

TEST(OpenAiTunedTest, NamesOfModelsAndFilesLeadToTheirJobs) {
  v1::Job job = JobIn(v1::Job::SUCCEEDED);
  for (const auto& [name, suffix] :
       std::map<std::string, std::string>{{"mine", "mine"}, {"a:b", "a-b"}, {"fine-tuning", ""}}) {
    job.set_display_name(name);
    EXPECT_EQ(ModelNameOf(job), "ft:org/base:alpha:" + suffix + ":job-1");
    EXPECT_EQ(JobOfModelName(ModelNameOf(job)), "job-1");
  }
  EXPECT_EQ(JobIdOf("ftjob-abc"), "job-abc");
  EXPECT_EQ(JobIdOf("job-abc"), "job-abc");
  EXPECT_EQ(JobOfModelName("ft:a:b:c:job-1"), "job-1");
  EXPECT_EQ(JobOfModelName("ft:a:b::job-1@20"), "job-1@20");
  for (const char* none : {"job-1", "ft:", "ft:a:b:c:", "ft:gpt-4o:x::abc", ""}) {
    EXPECT_FALSE(JobOfModelName(none).has_value()) << none;
  }
  EXPECT_EQ(JobOfResultFile("file-job-1"), "job-1");
  EXPECT_EQ(JobOfResultFile(ResultFileOf("job-1")), "job-1");
  for (const char* none : {"file-abc", "job-1", ""}) {
    EXPECT_FALSE(JobOfResultFile(none).has_value()) << none;
  }
}

TEST(OpenAiTunedTest, AModelOfAJobIsAnsweredByOneThatServesIt) {
  v1::ListServedModelsResponse served;
  const auto add = [&](const char* name, const char* adapter, bool running) {
    v1::ServedModel& model = *served.add_models();
    model.set_name(std::string("projects/alpha/jobs/") + name);
    model.set_model("org/base");
    model.set_adapter(adapter);
    model.set_has_adapter(true);
    model.set_running(running);
  };
  add("job-5", "job-1", false);
  add("job-4", "job-1", true);
  add("job-3", "job-1@20", true);
  const auto job_of = [&](const char* name) {
    const auto chosen = ChooseModel(served, name, "");
    return chosen.ok() ? chosen->job : std::string(chosen.status().message());
  };
  EXPECT_EQ(job_of("ft:org/base:alpha:mine:job-1"), "job-4");
  EXPECT_EQ(job_of("ft:org/base:alpha:mine:job-1@20"), "job-3");
  EXPECT_THAT(job_of("ft:org/base:alpha:mine:job-2"), HasSubstr("adapter = \"job-2\""));
  EXPECT_EQ(ChooseModel(served, "ft:org/base:alpha:mine:job-1", "")->id,
            "ft:org/base:alpha:mine:job-1");
}

v1::JobEvent EventAt(int64_t seconds, int64_t sequence) {
  v1::JobEvent event;
  event.mutable_time()->set_seconds(seconds);
  event.set_sequence(sequence);
  event.set_type("state");
  return event;
}

v1::Metric PointAt(int64_t seconds, int64_t step, bool validates = false) {
  v1::Metric point;
  point.mutable_time()->set_seconds(seconds);
  point.set_step(step);
  point.set_is_eval(validates);
  return point;
}

// The pages of a list, each by the id of the last item of the one before.
std::vector<std::string> AllPages(size_t limit, int& pages) {
  std::vector<std::string> ids;
  std::string after;
  for (bool more = true; more; ++pages) {
    auto page = EventPage::Make(after, limit);
    EXPECT_TRUE(page.ok()) << page.status();
    for (int i = 1; i <= 5; ++i) page->Add(EventAt(i * 10, i));
    for (int i = 1; i <= 6; ++i) page->Add(PointAt(i * 8, i));
    page->Add(PointAt(48, 6, /*validates=*/true));
    const Json json = Json::parse(page->Json());
    for (const Json& each : json["data"]) ids.push_back(each["id"]);
    EXPECT_LE(json["data"].size(), limit);
    more = json["has_more"];
    after = ids.empty() ? "" : ids.back();
  }
  return ids;
}

TEST(OpenAiTunedTest, EventsAndPointsAreOneListWithoutGapOrDouble) {
  int pages = 0;
  const std::vector<std::string> whole = AllPages(100, pages);
  EXPECT_EQ(pages, 1);
  EXPECT_EQ(whole.size(), 12u);
  EXPECT_THAT(std::vector(whole.begin(), whole.begin() + 4),
              ElementsAre("ftevent-50000000e5", "ftevent-48000000v6", "ftevent-48000000m6",
                          "ftevent-40000000m5"));
  for (const size_t limit : {1, 2, 5, 11, 12}) {
    pages = 0;
    EXPECT_EQ(AllPages(limit, pages), whole) << limit;
    EXPECT_EQ(pages, static_cast<int>((whole.size() + limit - 1) / limit)) << limit;
  }
}

TEST(OpenAiTunedTest, AnIdOfNoEventBeginsNoPage) {
  for (const char* after : {"x", "ftevent-", "ftevent-1", "ftevent-1e", "ftevent-1x2",
                            "ftevent-1e2x", "ftevent--1e2", "job-1"}) {
    const auto page = EventPage::Make(after, 10);
    ASSERT_FALSE(page.ok()) << after;
    EXPECT_EQ(Json::parse(ErrorOf(page.status(), Asks::kTraining).body)["error"]["param"], "after");
  }
}

TEST(OpenAiTunedTest, ACurveIsALineForEachPoint) {
  v1::Metric point = PointAt(1, 3);
  point.set_loss(0.5);
  point.set_lr(1e-4);
  point.set_tokens(64);
  EXPECT_EQ(CsvLine(point), "3,0.5,,0.0001,64\n");
  v1::Metric check = PointAt(1, 3, true);
  check.set_val_loss(std::nan(""));
  EXPECT_EQ(CsvLine(check), "3,,,,\n");
  EXPECT_EQ(CsvHead(), "step,train_loss,valid_loss,learning_rate,tokens\n");
}

TEST(OpenAiTunedTest, ErrorsOfTrainingHaveTheirStatuses) {
  const auto status = [](const absl::Status& error) {
    return ErrorOf(error, Asks::kTraining).http_status;
  };
  EXPECT_EQ(status(NotFound("x")), 404);
  EXPECT_EQ(status(FailedPrecondition("x")), 409);
  EXPECT_EQ(status(absl::AlreadyExistsError("x")), 409);
  EXPECT_EQ(status(InvalidArgument("x")), 400);
  const ErrorAnswer quota = ErrorOf(ResourceExhausted("the disk is full"), Asks::kTraining);
  EXPECT_EQ(quota.http_status, 429);
  EXPECT_FALSE(quota.again);
  EXPECT_TRUE(ErrorOf(ResourceExhausted("try again later"), Asks::kTraining).again);
  EXPECT_THAT(ErrorOf(NotFound("x"), Asks::kTraining).body, HasSubstr("not_found"));
  EXPECT_THAT(ErrorOf(NotFound("x")).body, HasSubstr("model_not_found"));
}

}  // namespace
}  // namespace sft::server::openai
