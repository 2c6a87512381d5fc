#include "server/jobs/judges.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "common/spec/resolve.h"
#include "server/jobs/judge_call.h"
#include "server/jobs/projects.h"
#include "server/store/judge_calls.h"
#include "tests/unit/common/hub/fake_http.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKey[] = "sk-do-not-tell";
constexpr char kAnswer[] = R"({"choices": [{"message": {"content": "Score: 7"}}]})";

class JudgeCallTest : public testing::Test {
 protected:
  // What an API that answers so makes of a call.
  v1::AskJudgeResponse Call(hub::FakeHttp::Answer answer, const std::string& key = kKey) {
    http_ = std::make_shared<hub::FakeHttp>(std::move(answer));
    return MakeJudgeCall(http_,
                         {.url = "https://a.example/v1",
                          .model = "large",
                          .key = key,
                          .prompt = "how \"good\"?",
                          .max_tokens = 9},
                         Clock::Real(), stop_)
        .value();
  }
  v1::AskJudgeResponse Call(int status, const std::string& body, const std::string& after = "") {
    return Call([=](const hub::HttpRequest&) {
      return hub::FakeHttp::Make(status, body, {{"retry-after", after}});
    });
  }

  std::shared_ptr<hub::FakeHttp> http_;
  std::atomic<bool> stop_ = false;
};

TEST_F(JudgeCallTest, OneMessageIsSentAndItsAnswerRead) {
  const v1::AskJudgeResponse response = Call(200, kAnswer);
  EXPECT_EQ(response.text(), "Score: 7");
  EXPECT_EQ(response.error(), "");
  const hub::HttpRequest& request = http_->requests.at(0);
  EXPECT_EQ(request.method + " " + request.url, "POST https://a.example/v1/chat/completions");
  EXPECT_EQ(hub::HeaderOf(request, "Authorization"), std::string("Bearer ") + kKey);
  EXPECT_EQ(
      request.body,
      "{\"max_tokens\":9,\"messages\":[{\"content\":\"how \\\"good\\\"?\",\"role\":\"user\"}],"
      "\"model\":\"large\",\"stream\":false,\"temperature\":0}");
}

TEST_F(JudgeCallTest, WhatTheApiSaysWrongIsToldWithoutTheKey) {
  const v1::AskJudgeResponse busy = Call(429, R"({"error": {"message": "slow down"}})", "2.5");
  EXPECT_EQ(busy.error(), "it answers with HTTP status 429: slow down");
  EXPECT_TRUE(busy.again());
  EXPECT_EQ(busy.after_seconds(), 2.5);
  EXPECT_TRUE(Call(503, "").again());
  EXPECT_EQ(Call(503, "", "Wed, 21 Oct 2026 07:28:00 GMT").after_seconds(), 0);
  const v1::AskJudgeResponse key =
      Call(401, std::string(R"({"error": "wrong key )") + kKey + "\"}");
  EXPECT_EQ(key.error(), "it answers with HTTP status 401: wrong key ***");
  EXPECT_FALSE(key.again());
  EXPECT_THAT(Call(302, "").error(), HasSubstr("is not followed elsewhere"));
  for (const std::string& body :
       {std::string("<html>"), std::string("{}"), std::string(R"({"choices": []})"),
        std::string(kKey), std::string(R"({"choices": [{"message": {"content": null}}]})")}) {
    const v1::AskJudgeResponse rubbish = Call(200, body);
    EXPECT_THAT(rubbish.error(), HasSubstr("its answer holds no text")) << body;
    EXPECT_THAT(rubbish.error(), Not(HasSubstr(kKey)));
    EXPECT_FALSE(rubbish.again());
  }
  EXPECT_THAT(Call(200, std::string(2 << 20, 'a')).error(), HasSubstr("more than 1048576 bytes"));
}

TEST_F(JudgeCallTest, AKeyThatIsPartOfWhatHidesItIsHidden) {
  for (const char* key : {"*", "***", "********"}) {
    const auto repeat = [&](const hub::HttpRequest&) {
      return hub::FakeHttp::Make(401, std::string("wrong key ") + key, {});
    };
    EXPECT_THAT(Call(repeat, key).error(), HasSubstr("wrong key ***")) << key;
  }
}

TEST_F(JudgeCallTest, AnApiThatIsAwayOrSlowIsSaidToBe) {
  const v1::AskJudgeResponse away =
      Call([](const hub::HttpRequest&) { return Unavailable("connection refused"); });
  EXPECT_EQ(away.error(), "connection refused");
  EXPECT_TRUE(away.again());
  const v1::AskJudgeResponse never =
      Call([](const hub::HttpRequest&) { return FailedPrecondition("not trusted"); });
  EXPECT_FALSE(never.again());
  // Whoever waits goes, while the connection still stands.
  std::atomic<bool> free = false;
  const auto http = std::make_shared<hub::FakeHttp>([&free](const hub::HttpRequest&) {
    while (!free) Clock::Real().Sleep(std::chrono::milliseconds(10));
    return Unavailable("");
  });
  const auto slow = MakeJudgeCall(http, {.timeout = std::chrono::seconds(1)}, Clock::Real(), stop_);
  EXPECT_EQ(slow->error(), "no answer within 1 s");
  EXPECT_TRUE(slow->again());
  const auto gone = MakeJudgeCall(http, {}, Clock::Real(), stop_, [] { return true; });
  EXPECT_TRUE(absl::IsCancelled(gone.status())) << gone.status();
  stop_ = true;
  const auto stopped = MakeJudgeCall(http, {}, Clock::Real(), stop_);
  EXPECT_TRUE(absl::IsUnavailable(stopped.status())) << stopped.status();
  free = true;
  while (http.use_count() > 1) Clock::Real().Sleep(std::chrono::milliseconds(10));
}

TEST_F(JudgeCallTest, ACallHoldsItsPlaceUntilItHasEnded) {
  std::atomic<bool> free = false;
  const auto http = std::make_shared<hub::FakeHttp>([&free](const hub::HttpRequest&) {
    while (!free) Clock::Real().Sleep(std::chrono::milliseconds(10));
    return Unavailable("");
  });
  auto place = std::make_shared<int>();
  const std::weak_ptr<int> held = place;
  const auto left =
      MakeJudgeCall(http, {.place = std::move(place)}, Clock::Real(), stop_, [] { return true; });
  EXPECT_TRUE(absl::IsCancelled(left.status()));
  EXPECT_FALSE(held.expired()) << "its thread is still there";
  free = true;
  while (!held.expired() || http.use_count() > 1) {
    Clock::Real().Sleep(std::chrono::milliseconds(10));
  }
}

class JudgesTest : public FleetTest {
 protected:
  JudgesTest()
      : relay_(*registry_),
        serving_(*store_, relay_),
        secrets_(dir_ + "/secrets"),
        judges_({.urls = {"https://a.example/v1", "http://b.example/v1", "http://127.0.0.1:1/v1"}},
                *store_, serving_, secrets_, clock_) {}

  static std::string Item(const std::string& members) {
    return R"({"type": "judge", "name": "good", "prompt": "{answer}", "score_member": "score", )" +
           members + "}";
  }
  // What is wrong with a job that has this grader.
  std::string Problem(const std::string& members, const std::string& project = "default") {
    spec::Resolution resolution;
    resolution.spec.evaluate.grader = {Item(members)};
    EXPECT_TRUE(spec::ParseGrader(resolution.spec.evaluate.grader[0]).ok()) << members;
    const absl::Status checked = judges_.Check(project, resolution);
    EXPECT_TRUE(checked.ok()) << checked;
    return resolution.problems.empty() ? "" : resolution.problems[0].message;
  }
  // A job with this grader, and one of kind SERVE whose process answers with these lines.
  void Running(const std::string& members, const std::vector<std::string>& lines) {
    worker_ = Join("a", "CPU", 2);
    worker_->on_ask = [this, lines](const v1::Ask& ask) {
      question_ = ask.question();
      v1::SendFileRequest chunk;
      chunk.set_request(ask.request());
      for (const std::string& line : lines) {
        chunk.set_offset(chunk.total_size());
        chunk.set_data(line);
        chunk.set_total_size(chunk.offset() + static_cast<int64_t>(line.size()));
        if (line.starts_with("!")) chunk.set_error(line);
        EXPECT_TRUE(relay_.Push(chunk, "a").ok());
      }
      relay_.End(ask.request());
    };
    for (const auto& [id, kind] :
         {std::pair("job-1", v1::Job::SERVE), std::pair("job-2", v1::Job::EVALUATE)}) {
      JobRecord job;
      job.id = id;
      job.project = "default";
      job.kind = kind;
      job.gpu_type = "CPU";
      job.spec.emplace();
      job.spec->evaluate.grader = {Item(members)};
      EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    }
    Tick();
    Report("a", worker_, Uid("job-1"), v1::AttemptStatus::RUNNING);
  }
  absl::StatusOr<v1::AskJudgeResponse> Ask(const Judges::Gone& gone = nullptr) {
    v1::AskJudgeRequest request;
    request.set_grader("good");
    request.set_prompt("how good?");
    return judges_.Ask("job-2", "default", request, gone);
  }
  int64_t Calls() {
    int64_t calls = 0;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(calls, store::JudgeCalls(db, "job-2", "good"));
                      return absl::OkStatus();
                    })
                    .ok());
    return calls;
  }

  FileRelay relay_;
  Serving serving_;
  Secrets secrets_;
  Judges judges_;
  std::shared_ptr<FakeWorker> worker_;
  std::string question_;
};

TEST_F(JudgesTest, AJobNamesAUrlThatTheOperatorAllowsAndASecretThatIsThere) {
  const auto url = [](const std::string& address, const std::string& secret = "") {
    return "\"url\": \"" + address + "\", \"model\": \"m\"" +
           (secret.empty() ? "" : ", \"secret\": \"" + secret + "\"");
  };
  EXPECT_EQ(Problem(url("https://a.example/v1")), "");
  EXPECT_EQ(Problem(url("https://A.example:443/v1/team/")), "");
  for (const char* other : {"https://a.example/v10", "https://a.example", "http://a.example/v1",
                            "https://a.example:8443/v1", "https://a.example.evil/v1"}) {
    EXPECT_THAT(Problem(url(other)), HasSubstr("with --judge-url")) << other;
  }
  EXPECT_THAT(Problem(url("https://a.example/v1", "openai")),
              HasSubstr("`sftctl admin project set default --secret openai=FILE`"));
  EXPECT_EQ(Problem(url("https://a.example/v1", "openai"), ""), "") << "no project is known";
  ASSERT_TRUE(secrets_.Set("default", "openai", kKey).ok());
  EXPECT_EQ(Problem(url("https://a.example/v1", "openai")), "");
  EXPECT_NE(Problem(url("https://a.example/v1", "openai"), "other"), "");
  EXPECT_THAT(Problem(url("http://b.example/v1", "openai")), HasSubstr("unencrypted"));
  EXPECT_EQ(Problem(url("http://127.0.0.1:1/v1", "openai")), "");
}

TEST_F(JudgesTest, SecretsAreTheirProjectsAndNobodyElseReadsTheirFiles) {
  ASSERT_TRUE(secrets_.Set("default", "openai", kKey).ok());
  ASSERT_TRUE(secrets_.Set("default", "azure", "another-key").ok());
  EXPECT_THAT(secrets_.Names("default").value(), ElementsAre("azure", "openai"));
  EXPECT_EQ(secrets_.Get("default", "openai").value(), kKey);
  EXPECT_TRUE(absl::IsNotFound(secrets_.Get("vision", "openai").status()));
  struct stat info {};
  ASSERT_EQ(stat((dir_ + "/secrets/default/openai").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_TRUE(secrets_.Set("default", "openai", "").ok());
  EXPECT_THAT(secrets_.Names("default").value(), ElementsAre("azure"));
  for (const char* name : {"", "../x", "A", "a/b", "."}) {
    EXPECT_TRUE(absl::IsInvalidArgument(secrets_.Set("default", name, kKey))) << name;
  }
  const absl::Status spaces = secrets_.Set("default", "openai", "two words");
  EXPECT_THAT(std::string(Message(spaces)), HasSubstr("is no key"));
  EXPECT_THAT(std::string(Message(spaces)), Not(HasSubstr("two words")));
  const absl::Status few = secrets_.Set("default", "openai", "sk-4567");
  EXPECT_EQ(Message(few), "what was given for openai has 7 characters: a key has at least 8");
}

TEST_F(JudgesTest, AProjectsSecretsAreKeptOnceAllOfARequestIsAccepted) {
  Projects projects(*store_, clock_, nullptr, &secrets_);
  v1::SetProjectRequest request;
  request.set_name("default");
  request.set_max_gpus(-1);
  v1::ProjectSecret& secret = *request.add_secrets();
  secret.set_name("openai");
  secret.set_value(kKey);
  EXPECT_TRUE(absl::IsInvalidArgument(projects.Set(request, {}).status()));
  EXPECT_TRUE(secrets_.Names("default")->empty());
  request.set_max_gpus(3);
  secret.set_value("short");
  EXPECT_TRUE(absl::IsInvalidArgument(projects.Set(request, {}).status()));
  request.clear_max_gpus();
  secret.set_value(kKey);
  const auto set = projects.Set(request, {});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->max_gpus(), 0) << "the request that was refused changed nothing";
  EXPECT_THAT(set->secrets(), ElementsAre("openai"));
  for (size_t i = 0; i < Secrets::kMostOfProject; ++i) {
    v1::ProjectSecret& more = *request.add_secrets();
    more.set_name("more" + std::to_string(i));
    more.set_value(kKey);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(projects.Set(request, {}).status()));
  EXPECT_THAT(secrets_.Names("default").value(), ElementsAre("openai"));
}

TEST_F(JudgesTest, AJobThatServesIsAskedAndItsCallsAreCounted) {
  Running(R"("job": "job-1", "max_calls": 2, "max_tokens": 9)",
          {"{\"text\":\"Score: \"}\n", "{\"text\":\"7\"}\n",
           "{\"finish_reason\":\"stop\",\"prompt_tokens\":3,\"answer_tokens\":2}\n"});
  EXPECT_EQ(Problem(R"("job": "job-1")"), "");
  EXPECT_THAT(Problem(R"("job": "job-2")"), HasSubstr("kind = \"serve\""));
  EXPECT_THAT(Problem(R"("job": "job-1")", "other"), HasSubstr("job-1"));
  EXPECT_EQ(Ask()->text(), "Score: 7");
  EXPECT_EQ(question_,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"how good?\"}],\"base\":false,"
            "\"max_new_tokens\":9,\"temperature\":0.0}");
  EXPECT_EQ(Ask()->text(), "Score: 7");
  EXPECT_EQ(Calls(), 2);
  const auto over = Ask();
  EXPECT_EQ(over->error(), "its 2 calls (max_calls) are used up");
  EXPECT_FALSE(over->again());
  EXPECT_EQ(Calls(), 2);
}

TEST_F(JudgesTest, AJobThatDoesNotServeYetIsAwayAndItsCallsDoNotCount) {
  Running(R"("job": "job-1", "max_calls": 2)", {"!its model is not loaded yet"});
  EXPECT_TRUE(absl::IsUnavailable(Ask().status()));
  EXPECT_EQ(Calls(), 0);
  judges_.Stop();
  EXPECT_TRUE(absl::IsUnavailable(Ask().status()));
}

TEST_F(JudgesTest, AQuestionWhoseRankHasGoneLeavesItsPlaceAndDoesNotCount) {
  Running(R"("job": "job-1", "max_calls": 100)", {});
  std::atomic<int> asked = 0;
  worker_->on_ask = [&](const v1::Ask&) { ++asked; };
  std::atomic<bool> gone = false;
  const auto ask = [&] {
    const auto answer = Ask([&] { return gone.load(); });
    EXPECT_TRUE(absl::IsCancelled(answer.status())) << answer.status();
  };
  std::vector<std::thread> ranks;
  for (int i = 0; i < Judges::kMostOfJob; ++i) ranks.emplace_back(ask);
  while (asked < Judges::kMostOfJob) Clock::Real().Sleep(std::chrono::milliseconds(10));
  EXPECT_EQ(Calls(), Judges::kMostOfJob);
  const auto busy = Ask();
  EXPECT_TRUE(absl::IsResourceExhausted(busy.status())) << busy.status();
  gone = true;
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(Calls(), 0);
  ask();
}

}  // namespace
}  // namespace sft::server
