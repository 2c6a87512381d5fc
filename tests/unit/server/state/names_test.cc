#include "server/state/names.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

TEST(NamesTest, AJobIsNamedByItsFullNameOrItsId) {
  EXPECT_EQ(ParseJobName("projects/default/jobs/job-abc")->id, "job-abc");
  EXPECT_EQ(ParseJobName("projects/default/jobs/job-abc")->project, "default");
  EXPECT_EQ(ParseJobName("job-abc")->id, "job-abc");
  EXPECT_EQ(ParseJobName("job-abc")->project, "");
  EXPECT_EQ(ParseJobName(JobName("p", "job-x"))->id, "job-x");
}

TEST(NamesTest, AWrongNameIsRefused) {
  for (const char* bad :
       {"", "projects/p", "projects/p/jobs/", "projects//jobs/j", "a/b", "../x", "job x", "-x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseJobName(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace sft::server
