#include "server/jobs/budgets.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "server/jobs/prices.h"
#include "server/jobs/projects.h"
#include "server/store/feed.h"
#include "server/store/prices.h"
#include "server/store/webhooks.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

constexpr int64_t kEuro = 1'000'000;

// A fleet whose slots cost 3600 EUR an hour: 1 EUR a second.
class BudgetTest : public LifeTest {
 protected:
  absl::StatusOr<v1::Price> SetPrice(const std::string& type, int64_t micros,
                                     const std::string& from = "",
                                     const std::string& currency = "EUR") {
    v1::SetPriceRequest request;
    request.set_gpu_type(type);
    request.set_micros_per_hour(micros);
    request.set_currency(currency);
    if (!from.empty()) {
      request.mutable_start_time()->set_seconds(UnixMicros(*ParseUtc(from)) / 1'000'000);
    }
    return Prices(*store_, clock_).Set(request, "ann");
  }
  void SetSecondPrice(const std::string& type = "H100") {
    const auto set = SetPrice(type, 3600 * kEuro);
    ASSERT_TRUE(set.ok()) << set.status();
  }
  absl::Status SetBudget(int64_t euros, v1::Budget::Action action = v1::Budget::HOLD,
                         v1::Budget::Period period = v1::Budget::MONTH, int percent = 0) {
    v1::SetProjectRequest request;
    request.set_name("default");
    request.mutable_budget()->set_amount_micros(euros * kEuro);
    request.mutable_budget()->set_on_reached(action);
    request.mutable_budget()->set_period(period);
    request.mutable_budget()->set_warn_percent(percent);
    return Projects(*store_, clock_).Set(request, "ann").status();
  }
  v1::Budget Budget() {
    const auto all = Projects(*store_, clock_).List();
    EXPECT_TRUE(all.ok()) << all.status();
    for (const v1::Project& project : all->projects()) {
      if (project.name() == "default") return project.budget();
    }
    return {};
  }
  int64_t SpentEuros() { return Budget().spent_micros() / kEuro; }
  // Time in which the worker goes on with the job's attempt.
  void Run(const std::shared_ptr<FakeWorker>& worker, const std::string& job, seconds time) {
    v1::AttemptStatus status = StatusOf(Uid(job), S::RUNNING);
    status.set_epoch(Attempt(job));
    PassSilently(time, "a", worker, {status});
  }
  std::vector<std::string> Told() {
    std::vector<std::string> told;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      store::FeedFilter filter;
                      filter.limit = 500;
                      SFT_ASSIGN_OR_RETURN(const store::FeedPage page, store::ReadFeed(db, filter));
                      for (const store::FeedEvent& event : page.events) {
                        if (!event.type.starts_with("budget.")) continue;
                        told.push_back(event.type);
                        EXPECT_EQ(event.subject, "projects/default");
                        EXPECT_EQ(event.project, "default") << "its members alone see it";
                      }
                      return absl::OkStatus();
                    })
                    .ok());
    return told;
  }
};

TEST_F(BudgetTest, WithoutPricesNothingIsShownAndABudgetIsRefused) {
  const auto worker = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  EXPECT_FALSE(Job(job).has_cost());
  const absl::Status refused = SetBudget(10);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("sftctl price set"), std::string::npos) << refused;
}

TEST_F(BudgetTest, AJobCostsWhatItsSlotsCostWhenTheyWereHeld) {
  SetSecondPrice();
  const auto worker = Join("a", "H100", 2);
  const std::string job = Submit("H100", 2);
  Tick();
  EXPECT_EQ(Job(job).cost().micros_per_hour(), 7200 * kEuro);
  Run(worker, job, seconds(40));
  EXPECT_EQ(Job(job).cost().micros(), 80 * kEuro);
  EXPECT_EQ(Job(job).cost().currency(), "EUR");
  ASSERT_TRUE(SetPrice("H100", 7200 * kEuro).ok()) << "twice as much from now on";
  Run(worker, job, seconds(20));
  EXPECT_EQ(Job(job).cost().micros(), (80 + 80) * kEuro);
  Say("a", worker, job, S::DONE, v1::Verdict::USER, "bad_data");
  clock_.Advance(minutes(10));
  EXPECT_EQ(Job(job).cost().micros(), 160 * kEuro) << "it holds nothing any more";
  EXPECT_EQ(Job(job).cost().micros_per_hour(), 0);
  EXPECT_EQ(jobs_->List({}).value().jobs.at(0).cost().micros(), 160 * kEuro);
}

TEST_F(BudgetTest, WorkThatWasLostIsShownApart) {
  SetSecondPrice();
  const auto worker = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  Run(worker, job, seconds(40));
  ASSERT_TRUE(Commit(job, 10));
  Run(worker, job, seconds(20));
  EXPECT_EQ(Job(job).cost().lost_micros(), 0) << "nothing is lost while it runs";
  Fail("a", worker, job);
  EXPECT_EQ(Job(job).cost().lost_micros(), 20 * kEuro) << "since its checkpoint";
  EXPECT_EQ(Job(job).cost().micros(), 60 * kEuro);
}

TEST_F(BudgetTest, WhatWasUsedKeepsItsPrice) {
  SetSecondPrice();
  clock_.Advance(minutes(1));
  const auto past = SetPrice("H100", kEuro, "2023-11-14T22:13:50Z");
  EXPECT_EQ(past.status().code(), absl::StatusCode::kFailedPrecondition) << past.status();
  EXPECT_EQ(SetPrice("", kEuro, "2020-01-01T00:00:00Z").status(), absl::OkStatus())
      << "other types had none";
  EXPECT_EQ(SetPrice("A100", kEuro, "2023-01-01T00:00:00Z").status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "now it had that of all";
  EXPECT_EQ(SetPrice("H100", kEuro, "", "USD").status().code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(SetPrice("H100", kEuro, "2024-01-01T00:00:00Z").ok());
  v1::RemovePriceRequest request;
  request.set_gpu_type("H100");
  request.mutable_start_time()->set_seconds(1'700'000'000);
  EXPECT_EQ(Prices(*store_, clock_).Remove(request, "ann").code(),
            absl::StatusCode::kFailedPrecondition)
      << "it is in effect";
  request.mutable_start_time()->set_seconds(1'704'067'200);
  EXPECT_TRUE(Prices(*store_, clock_).Remove(request, "ann").ok()) << "that of 2024";
  EXPECT_EQ(Prices(*store_, clock_).Remove(request, "ann").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Prices(*store_, clock_).List()->prices_size(), 2);
}

TEST_F(BudgetTest, WhatIsNoPriceIsRefused) {
  EXPECT_EQ(SetPrice("H100", -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SetPrice("H100", Prices::kMostMicros + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SetPrice("H 100\n", 1).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* currency : {"", "eur", "EURO", "E\n "}) {
    EXPECT_EQ(SetPrice("H100", 1, "", currency).status().code(), absl::StatusCode::kInvalidArgument)
        << currency;
  }
  ASSERT_TRUE(SetPrice("H100", 1).ok());
  EXPECT_EQ(SetBudget(-1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SetBudget(0).code(), absl::StatusCode::kInvalidArgument) << "a new one has an amount";
  EXPECT_EQ(SetBudget(1, v1::Budget::HOLD, v1::Budget::MONTH, 101).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BudgetTest, ItWarnsOnceThenHoldsNewJobsAndLeavesRunningOnes) {
  SetSecondPrice();
  ASSERT_TRUE(SetBudget(100).ok());
  const auto worker = Join("a", "H100", 2);
  const std::string running = Submit("H100", 1);
  Tick();
  Say("a", worker, running, S::RUNNING);
  Run(worker, running, seconds(76));
  EXPECT_EQ(Told(), std::vector<std::string>());
  Run(worker, running, seconds(8));
  EXPECT_EQ(Told(), std::vector<std::string>{"budget.warned"});
  EXPECT_FALSE(Budget().reached());
  Run(worker, running, seconds(20));
  EXPECT_EQ(Told(), (std::vector<std::string>{"budget.warned", "budget.reached"}));
  EXPECT_TRUE(Budget().reached());
  const std::string waiting = Submit("H100", 1);
  Run(worker, running, seconds(8));
  EXPECT_EQ(State(waiting), v1::Job::PENDING);
  const std::string reason = Job(waiting).reason();
  EXPECT_NE(reason.find("the budget of project default (100.00 EUR a month) is used up"),
            std::string::npos)
      << reason;
  EXPECT_NE(reason.find("2023-12-01T00:00:00"), std::string::npos) << reason;
  EXPECT_EQ(State(running), v1::Job::RUNNING);
  EXPECT_EQ(Told().size(), 2u) << "each is told once";
  // More money lets it start.
  ASSERT_TRUE(SetBudget(1000).ok());
  Tick();
  EXPECT_EQ(State(waiting), v1::Job::PREPARING);
  EXPECT_EQ(Told().size(), 2u);
}

TEST_F(BudgetTest, WithStopARunningJobGoesBackToTheLineAndOnWithItsCheckpoint) {
  SetSecondPrice();
  ASSERT_TRUE(SetBudget(60, v1::Budget::STOP, v1::Budget::TOTAL).ok());
  const auto worker = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  Run(worker, job, seconds(64));
  const v1::DesiredAttempt* wanted = worker->Wanted(Uid(job));
  ASSERT_NE(wanted, nullptr);
  EXPECT_EQ(wanted->intent(), D::STOP);
  ASSERT_TRUE(Commit(job, 30));
  Say("a", worker, job, S::DONE, v1::Verdict::NONE, kBudgetReached);
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_EQ(Job(job).attempts(0).verdict().code(), "budget_reached");
  clock_.Advance(seconds(4));
  Tick();
  EXPECT_NE(Job(job).reason().find("is used up"), std::string::npos) << Job(job).reason();
  EXPECT_EQ(Job(job).reason().find("next month"), std::string::npos) << "a total has no next one";
  ASSERT_TRUE(SetBudget(1000, v1::Budget::STOP, v1::Budget::TOTAL).ok());
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  EXPECT_EQ(Attempt(job), 2);
}

TEST_F(BudgetTest, AJobOverTheBorderOfAMonthIsSplitAndTheNextMonthLetsJobsStart) {
  // 30 s before December.
  clock_.JumpWall(std::chrono::seconds(UnixMicros(*ParseUtc("2023-11-30T23:59:30Z")) / 1'000'000 -
                                       1'700'000'000));
  SetSecondPrice();
  ASSERT_TRUE(SetBudget(20).ok());
  const auto worker = Join("a", "H100", 2);
  const std::string job = Submit("H100", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  Run(worker, job, seconds(24));
  EXPECT_TRUE(Budget().reached());
  const std::string waiting = Submit("H100", 1);
  Tick();
  EXPECT_EQ(State(waiting), v1::Job::PENDING);
  Run(worker, job, seconds(16));
  EXPECT_EQ(SpentEuros(), 10 + 8) << "of December: of the first 10 s, and of the second, which "
                                     "started with the first look at the new month";
  EXPECT_EQ(State(waiting), v1::Job::PREPARING);
  EXPECT_EQ(Budget().period_start().seconds(),
            UnixMicros(*ParseUtc("2023-12-01T00:00:00Z")) / 1'000'000);
  Say("a", worker, job, S::DONE, v1::Verdict::USER, "bad_data");
  EXPECT_EQ(Job(job).cost().micros(), 40 * kEuro) << "the job itself costs all of it";
}

TEST_F(BudgetTest, ARestartAndARecountKnowTheSame) {
  SetSecondPrice();
  ASSERT_TRUE(SetBudget(1000).ok());
  auto worker = Join("a", "H100", 2);
  const std::string job = Submit("H100", 2);
  Tick();
  Say("a", worker, job, S::RUNNING);
  Run(worker, job, seconds(20));
  Say("a", worker, job, S::DONE, v1::Verdict::USER, "bad_data");
  EXPECT_EQ(SpentEuros(), 40);
  RestartServer();
  EXPECT_EQ(SpentEuros(), 40);
  // Set anew it counts the same from the rows of what was held.
  ASSERT_TRUE(SetBudget(1000, v1::Budget::HOLD, v1::Budget::TOTAL).ok());
  EXPECT_EQ(SpentEuros(), 0) << "a total counts from now on";
  ASSERT_TRUE(SetBudget(1000, v1::Budget::HOLD, v1::Budget::MONTH).ok());
  EXPECT_EQ(SpentEuros(), 40);
}

TEST_F(BudgetTest, APriceFromATimeThatHasPassedCountsForABudget) {
  ASSERT_TRUE(SetPrice("CPU", 1).ok());
  ASSERT_TRUE(SetBudget(1000).ok());
  const auto worker = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Run(worker, job, seconds(40));
  Say("a", worker, job, S::DONE, v1::Verdict::USER, "bad_data");
  EXPECT_EQ(SpentEuros(), 0);
  ASSERT_TRUE(SetPrice("H100", 3600 * kEuro, "2023-11-01T00:00:00Z").ok());
  EXPECT_EQ(SpentEuros(), 40);
}

TEST_F(BudgetTest, AProjectsWebhooksHearOfItAndOthersDoNot) {
  for (const char* project : {"default", "other"}) {
    ASSERT_TRUE(store_
                    ->Write([&](Database& db) {
                      store::WebhookRecord hook;
                      hook.id = std::string("hook-") + project;
                      hook.project = project;
                      hook.url = "https://example.com";
                      hook.events = {"budget.warned", "budget.reached"};
                      return store::InsertWebhook(db, hook);
                    })
                    .ok());
  }
  SetSecondPrice();
  ASSERT_TRUE(SetBudget(10).ok());
  const auto worker = Join("a", "H100", 1);
  const std::string job = Submit("H100", 1);
  Tick();
  Run(worker, job, seconds(12));
  ASSERT_TRUE(
      store_
          ->Read([&](Database& db) -> absl::Status {
            SFT_ASSIGN_OR_RETURN(const auto told, store::ListDeliveries(db, "hook-default", 0, 50));
            EXPECT_EQ(told.size(), 2u);
            if (told.size() != 2) return absl::OkStatus();
            EXPECT_EQ(told[0].type, "budget.reached") << "the newest first";
            EXPECT_EQ(told[1].type, "budget.warned");
            const auto data = ParseJson(told[0].body).at("data");
            EXPECT_EQ(data.at("project"), "default");
            EXPECT_EQ(data.at("budget_micros"), 10 * kEuro);
            EXPECT_EQ(data.at("currency"), "EUR");
            SFT_ASSIGN_OR_RETURN(const auto others, store::ListDeliveries(db, "hook-other", 0, 50));
            EXPECT_TRUE(others.empty());
            return absl::OkStatus();
          })
          .ok());
}

}  // namespace
}  // namespace sft::server
