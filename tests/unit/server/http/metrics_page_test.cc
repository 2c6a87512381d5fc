#include "server/http/metrics_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <charconv>

#include "common/base/duration.h"
#include "server/http/exposition.h"
#include "server/http/process_figures.h"
#include "server/store/tallies.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

class MetricsPageTest : public LifeTest {
 protected:
  std::string Page() { return MetricsPage({*store_, *registry_}).body; }
  bool Has(const std::string& line) { return Page().find("\n" + line + "\n") != std::string::npos; }
};

TEST_F(MetricsPageTest, SlotsOfANodeThatIsSilentAreNotFree) {
  Join("a", "CPU", 2);
  Tick();
  EXPECT_TRUE(Has("sft_slots{gpu_type=\"CPU\",use=\"free\"} 2"));
  clock_.Advance(std::chrono::hours(1));
  Tick();
  const std::string page = Page();
  EXPECT_EQ(page.find("use=\"free\""), std::string::npos) << page;
  EXPECT_NE(page.find("sft_slots{gpu_type=\"CPU\",use=\"silent\"} 2"), std::string::npos) << page;
}

TEST_F(MetricsPageTest, AJobIsCountedFromItsWaitToItsEnd) {
  const auto worker = Join("a", "CPU", 2);
  const std::string job = Submit("CPU", 2);
  clock_.Advance(seconds(12));
  Tick();
  EXPECT_TRUE(Has("sft_job_wait_seconds_bucket{class=\"normal\",le=\"10\"} 0")) << Page();
  EXPECT_TRUE(Has("sft_job_wait_seconds_bucket{class=\"normal\",le=\"60\"} 1"));
  EXPECT_TRUE(Has("sft_job_wait_seconds_bucket{class=\"normal\",le=\"+Inf\"} 1"));
  EXPECT_TRUE(Has("sft_job_wait_seconds_sum{class=\"normal\"} 12"));
  EXPECT_TRUE(Has("sft_job_info{job_id=\"" + job +
                  "\",project=\"default\",owner=\"local\",node=\"a\",slot=\"1\"} 1"));
  EXPECT_TRUE(Has("sft_project_gpu_seconds_total{project=\"default\"} 0")) << "not yet a minute";
  clock_.Advance(seconds(100));
  EXPECT_TRUE(Has("sft_project_gpu_seconds_total{project=\"default\"} 80"));
  Say("a", worker, job, S::RUNNING);
  Fail("a", worker, job);
  EXPECT_TRUE(Has("sft_project_gpu_seconds_total{project=\"default\"} 200"));
  EXPECT_TRUE(Has("sft_attempts_restarted_total{verdict=\"rank_killed\"} 1"));
  EXPECT_EQ(Page().find("sft_job_info{"), std::string::npos) << "nothing is held";
  EXPECT_EQ(Page().find("sft_jobs_ended_total{"), std::string::npos) << "it goes on";
  clock_.Advance(seconds(6));
  Tick();
  Say("a", worker, job, S::RUNNING);
  clock_.Advance(seconds(10));
  Say("a", worker, job, S::DONE, v1::Verdict::USER, "bad_data");
  EXPECT_TRUE(Has("sft_jobs_ended_total{verdict=\"bad_data\",domain=\"user\"} 1"));
  EXPECT_TRUE(Has("sft_project_gpu_seconds_total{project=\"default\"} 220"));
  EXPECT_TRUE(Has("sft_job_wait_seconds_bucket{class=\"normal\",le=\"+Inf\"} 1"))
      << "a job waits for its first placement once";
  // A server that restarts counts on.
  RestartServer();
  EXPECT_TRUE(Has("sft_jobs_ended_total{verdict=\"bad_data\",domain=\"user\"} 1"));
  EXPECT_TRUE(Has("sft_project_gpu_seconds_total{project=\"default\"} 220"));
}

// The freed slots of one node and then of the other, which was given up.
TEST_F(MetricsPageTest, TheTimeOfALostNodesSlotsIsCountedOnce) {
  const auto a = Join("a", "CPU", 1), b = Join("b", "CPU", 1);
  const std::string job = Submit("CPU", 1, 2);
  Tick();
  Say("a", a, job, S::RUNNING);
  Say("b", b, job, S::RUNNING);
  const std::string lost = Uid(job);
  registry_->Disconnect("b", b.get());
  for (int i = 0; i < 600 && HeldSlots() == 2; ++i) {
    clock_.Advance(seconds(4));
    reconciler_->Beat();
    (void)Observe("a", a, {StatusOf(lost, S::DONE, "lost")});
    Tick();
  }
  const auto gpu_seconds = [&] {
    const std::string page = Page(), name = "sft_project_gpu_seconds_total{project=\"default\"} ";
    double value = 0;
    const size_t at = page.find(name) + name.size();
    std::from_chars(page.data() + at, page.data() + page.size(), value);
    return value;
  };
  const double before = gpu_seconds();
  EXPECT_GT(before, 0);
  const double held = 1;  // slot: that of the lost node
  clock_.Advance(seconds(50));
  EXPECT_DOUBLE_EQ(gpu_seconds(), before + 50 * held);
}

TEST_F(MetricsPageTest, CallsAreCountedByHowTheyEndedAndHowLongTheyTook) {
  const auto access = Access::Load(*store_, clock_, std::nullopt).value();
  Gate gate(*access, *store_, clock_, /*open=*/true);
  gate.failed().Count({.principal = "ann", .method = "m", .outcome = 3});
  gate.failed().Count({.principal = "bob", .method = "m", .outcome = 3});
  gate.failed().Count({.principal = "bob", .method = "m", .outcome = 13});
  gate.times().Count("JobService.GetJob", absl::StatusCode::kOk, std::chrono::milliseconds(20));
  gate.times().Count("JobService.GetJob", absl::StatusCode::kOk, std::chrono::minutes(2));
  ASSERT_TRUE(gate.BeginStream("ann", 1, "JobService.WatchJob").ok());
  FigureSources sources{*store_, *registry_};
  sources.gate = &gate;
  sources.certificates["server"] = FromUnixMicros(2'000'000'000'000'000);
  const std::string page = MetricsPage(sources).body;
  for (const char* line :
       {"sft_calls_failed_total{code=\"INVALID_ARGUMENT\"} 2",
        "sft_calls_failed_total{code=\"INTERNAL\"} 1",
        "sft_rpc_duration_seconds_bucket{method=\"JobService.GetJob\",code=\"OK\",le=\"0.01\"} 0",
        "sft_rpc_duration_seconds_bucket{method=\"JobService.GetJob\",code=\"OK\",le=\"0.025\"} 1",
        "sft_rpc_duration_seconds_bucket{method=\"JobService.GetJob\",code=\"OK\",le=\"60\"} 1",
        "sft_rpc_duration_seconds_bucket{method=\"JobService.GetJob\",code=\"OK\",le=\"+Inf\"} 2",
        "sft_streams{kind=\"JobService.WatchJob\"} 1",
        "sft_certificate_expiry_timestamp_seconds{certificate=\"server\"} 2000000000"}) {
    EXPECT_NE(page.find("\n" + std::string(line) + "\n"), std::string::npos) << line << page;
  }
}

TEST_F(MetricsPageTest, RequestsOverHttpAreCountedByFewRoutesAndClassesOfStatus) {
  HttpTimes times;
  const auto count = [&](std::string_view path, int status, int ms) {
    times.Count(path, status, std::chrono::milliseconds(ms));
  };
  count("/api/v1/JobService/ListJobs", 200, 20);
  count("/api/v1/feed", 200, 70'000);
  for (int i = 0; i < 1000; ++i) count("/api/v1/made-up-" + std::to_string(i), 404, 0);
  count("/v1/chat/completions", 503, 1);
  count("/metrics", 200, 1);
  count("/healthz", 503, 1);
  count("/session", 204, 1);
  count("/jobs/any", 200, 1);
  count("", 431, 1);
  count("/odd", 999, 1);
  FigureSources sources{*store_, *registry_};
  sources.http = &times;
  const std::string page = MetricsPage(sources).body;
  const std::string name = "\nsft_http_request_duration_seconds_";
  for (const char* line :
       {"bucket{route=\"api\",status=\"2xx\",le=\"0.01\"} 0",
        "bucket{route=\"api\",status=\"2xx\",le=\"0.025\"} 1",
        "bucket{route=\"api\",status=\"2xx\",le=\"60\"} 1", "count{route=\"api\",status=\"2xx\"} 2",
        "count{route=\"api\",status=\"4xx\"} 1000", "count{route=\"openai\",status=\"5xx\"} 1",
        "count{route=\"metrics\",status=\"2xx\"} 1", "count{route=\"healthz\",status=\"5xx\"} 1",
        "count{route=\"login\",status=\"2xx\"} 1", "count{route=\"page\",status=\"2xx\"} 1",
        "count{route=\"page\",status=\"5xx\"} 1", "count{route=\"unread\",status=\"4xx\"} 1"}) {
    EXPECT_NE(page.find(name + line + "\n"), std::string::npos) << line << page;
  }
  size_t kinds = 0;
  for (size_t at = 0; (at = page.find(name + "count", at)) != page.npos; ++at) ++kinds;
  EXPECT_EQ(kinds, 9u);
}

TEST_F(MetricsPageTest, WhatAGpuDoesIsShownByItsSlot) {
  const auto worker = Join("a", "H100", 1);
  v1::Observed observed;
  v1::Slot& slot = *observed.mutable_slots()->Add();
  slot.set_index(0);
  slot.set_gpu_type("H100");
  slot.set_healthy(true);
  slot.set_memory_bytes(80'000'000'000);
  slot.set_memory_used_bytes(8'000'000'000);
  slot.set_utilization_percent(75);
  ASSERT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
  EXPECT_TRUE(Has("sft_slot_memory_bytes{node=\"a\",slot=\"0\"} 8000000000")) << Page();
  EXPECT_TRUE(Has("sft_slot_utilization_ratio{node=\"a\",slot=\"0\"} 0.75"));
}

TEST(ExpositionTest, WritesTheTextFormat) {
  Exposition page;
  page.Metric("sft_jobs", "gauge", "Jobs by state.");
  page.Sample({{"state", "RUNNING"}, {"note", "a\"b\\c\nd"}}, 3);
  page.Sample({}, 0.5);
  obs::Histogram times(std::vector{0.5, 1.0});
  for (const double value : {0.5, 0.75, 3.0}) times.Observe(value);
  page.Metric("sft_times_seconds", "histogram", "Times.");
  page.Sample({{"a", "b"}}, times.Read());
  EXPECT_EQ(page.text(),
            "# HELP sft_jobs Jobs by state.\n# TYPE sft_jobs gauge\n"
            "sft_jobs{state=\"RUNNING\",note=\"a\\\"b\\\\c\\nd\"} 3\nsft_jobs 0.5\n"
            "# HELP sft_times_seconds Times.\n# TYPE sft_times_seconds histogram\n"
            "sft_times_seconds_bucket{a=\"b\",le=\"0.5\"} 1\n"
            "sft_times_seconds_bucket{a=\"b\",le=\"1\"} 2\n"
            "sft_times_seconds_bucket{a=\"b\",le=\"+Inf\"} 3\n"
            "sft_times_seconds_sum{a=\"b\"} 4.25\nsft_times_seconds_count{a=\"b\"} 3\n");
}

TEST(ProcessFiguresTest, AreThoseOfThisProcess) {
  Exposition page;
  AddProcess(page);
  const auto value = [&](const std::string& name) {
    const size_t at = page.text().find("\n" + name + " ");
    EXPECT_NE(at, std::string::npos) << name;
    double number = 0;
    const char* const begin = page.text().data() + at + name.size() + 2;
    std::from_chars(begin, page.text().data() + page.text().size(), number);
    return number;
  };
  const double now = static_cast<double>(UnixMicros(Clock::Real().Wall())) / 1e6;
  EXPECT_LE(value("process_start_time_seconds"), now + 1);
  EXPECT_GT(value("process_start_time_seconds"), now - 3600) << "this test began within the hour";
  EXPECT_GE(value("process_cpu_seconds_total"), 0);
  EXPECT_GE(value("process_open_fds"), 3);
  EXPECT_GE(value("process_max_fds"), value("process_open_fds"));
  EXPECT_GT(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  EXPECT_GT(value("process_resident_memory_bytes"), 1e6);
}

}  // namespace
}  // namespace sft::server
