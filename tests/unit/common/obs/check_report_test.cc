#include "common/obs/check_report.h"

#include <gtest/gtest.h>

namespace sft::obs {
namespace {

TEST(CheckReportTest, OnlyAFailureFailsTheCheck) {
  CheckReport report;
  report.Ok("disk", "41 GB free");
  report.Warn("clock", "+3 s", "chrony");
  EXPECT_EQ(report.ExitCode(), 0);
  report.Take("server", Unavailable("no answer"), "reached", "start it");
  EXPECT_EQ(report.ExitCode(), 1);
}

TEST(CheckReportTest, EachLineHasAStateAndAdvice) {
  CheckReport report;
  report.Ok("disk", "41 GB free");
  report.Fail("server", "no answer", "start it");
  EXPECT_EQ(report.Text(),
            "ok    disk          41 GB free\n"
            "FAIL  server        no answer\n"
            "                    -> start it\n");
  const std::string json = report.Json();
  EXPECT_NE(json.find("\"ok\": false"), std::string::npos);
  EXPECT_NE(json.find("\"advice\": \"start it\""), std::string::npos);
}

}  // namespace
}  // namespace sft::obs
