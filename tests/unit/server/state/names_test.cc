#include "server/state/names.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

TEST(NamesTest, AJobIsNamedByItsFullNameOrItsId) {
  EXPECT_EQ(ParseJobName("projects/default/jobs/job-abc").value(), "job-abc");
  EXPECT_EQ(ParseJobName("job-abc").value(), "job-abc");
  EXPECT_EQ(ParseJobName(JobName("p", "job-x")).value(), "job-x");
}

TEST(NamesTest, WhatIsNoNameIsRefused) {
  for (const char* bad : {"", "projects/p", "projects/p/jobs/", "a/b", "../x", "job x", "-x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseJobName(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace sft::server
