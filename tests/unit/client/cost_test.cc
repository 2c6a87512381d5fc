#include "client/output/cost.h"

#include <gtest/gtest.h>

#include "client/base/exit_codes.h"
#include "common/base/json.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

class CostTest : public ::testing::Test {
 protected:
  static v1::Job JobOf(v1::Job::State state, int64_t micros, int64_t lost, int64_t hour) {
    v1::Job job = MakeJob("job-a", state);
    job.mutable_cost()->set_currency("EUR");
    job.mutable_cost()->set_micros(micros);
    job.mutable_cost()->set_lost_micros(lost);
    job.mutable_cost()->set_micros_per_hour(hour);
    return job;
  }
  FakeServer server_;
};

TEST_F(CostTest, SaysWhatAJobHasCostAndWhatAnHourCosts) {
  EXPECT_EQ(CostText(JobOf(v1::Job::RUNNING, 12'400'000, 1'100'000, 8'400'000)),
            "12.40 EUR so far, 1.10 EUR of it for lost work, 8.40 EUR an hour");
  EXPECT_EQ(CostText(JobOf(v1::Job::PENDING, 0, 0, 8'400'000)),
            "8.40 EUR for each hour that it runs");
  EXPECT_EQ(CostText(JobOf(v1::Job::SUCCEEDED, 12'400'000, 0, 0)), "12.40 EUR");
  EXPECT_EQ(CostText(JobOf(v1::Job::FAILED, 5, 5, 0)),
            "< 0.01 EUR, < 0.01 EUR of it for lost work");
  EXPECT_EQ(CostText(MakeJob("job-a", v1::Job::RUNNING)), "");
  EXPECT_EQ(CostText(MakeJob("job-a", v1::Job::SUCCEEDED)), "");
}

TEST_F(CostTest, APlanSaysTheWholeRunWhereItsLengthIsKnown) {
  v1::JobPlan plan;
  EXPECT_EQ(CostText(plan), "");
  plan.mutable_cost()->set_currency("EUR");
  plan.mutable_cost()->set_micros_per_hour(8'400'000);
  EXPECT_EQ(CostText(plan), "8.40 EUR an hour");
  plan.mutable_cost()->set_micros(100'000'000);
  EXPECT_EQ(CostText(plan), "100.00 EUR for the expected run, 8.40 EUR an hour");
}

TEST_F(CostTest, AListHasAColumnForItWhereAnyJobHasOne) {
  server_.jobs["job-b"] = MakeJob("job-b", v1::Job::RUNNING);
  EXPECT_EQ(Sftctl(server_, {"list"}).out.find("COST"), std::string::npos);
  server_.jobs["job-a"] = JobOf(v1::Job::RUNNING, 12'400'000, 0, 8'400'000);
  const Outcome list = Sftctl(server_, {"list"});
  EXPECT_NE(list.out.find("COST"), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("12.40 EUR"), std::string::npos) << list.out;
  const Json jobs = Json::parse(Sftctl(server_, {"list", "--json"}).out);
  for (const Json& job : jobs) {
    EXPECT_EQ(job.at("cost").is_null(), job.at("job") == "job-b") << job;
    if (job.at("cost").is_null()) continue;
    EXPECT_EQ(job.at("cost").at("micros"), 12'400'000);
  }
}

TEST_F(CostTest, APriceThatIsNoneIsRefusedHere) {
  for (const char* wrong : {"x", "1.0000001", "1e3", "1000000.01", ""}) {
    const Outcome run = Sftctl(server_, {"price", "set", "H100", wrong});
    EXPECT_EQ(run.code, kUsage) << wrong << run.err;
  }
  EXPECT_EQ(Sftctl(server_, {"price", "set", "H100", "1", "--from", "yesterday"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"admin", "project", "set", "p", "--budget", "0"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"admin", "project", "set", "p", "--budget", "1", "--no-budget"}).code,
            kUsage);
}

}  // namespace
}  // namespace sft::client
