#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/resolve.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

TEST(NotifyTest, NamesWhoIsToldAndByDefaultOfItsEnd) {
  const Resolution none = ResolveText(Minimal());
  EXPECT_TRUE(none.spec.notify.mail.empty());
  const Resolution ends = ResolveText(Minimal("[notify]\nmail = [\"ann@example.com\"]\n"));
  ASSERT_TRUE(ends.ok()) << Describe(ends.problems);
  EXPECT_TRUE(ends.warnings.empty()) << Describe(ends.warnings);
  EXPECT_EQ(ends.spec.notify.mail, std::vector<std::string>{"ann@example.com"});
  EXPECT_EQ(ends.spec.notify.events,
            (std::vector<std::string>{"job.succeeded", "job.failed", "job.cancelled"}));
  const Resolution all = ResolveText(
      Minimal("[notify]\nmail = [\"ann@example.com\", \"bob@example.com\"]\nevents = []\n"));
  ASSERT_TRUE(all.ok()) << Describe(all.problems);
  EXPECT_EQ(all.spec.notify.mail.size(), 2u);
  EXPECT_TRUE(all.spec.notify.events.empty()) << "all events";
}

TEST(NotifyTest, WhatIsNoAddressOrNoEventOfAJobIsRefused) {
  EXPECT_THAT(Describe(ResolveText(Minimal("[notify]\nmail = [\"ann\"]\n")).problems),
              HasSubstr("\"ann\" is not the address of a mailbox"));
  EXPECT_THAT(
      Describe(
          ResolveText(Minimal("[notify]\nmail = [\"a@b\"]\nevents = [\"disk.low\"]\n")).problems),
      HasSubstr("\"disk.low\" is no event of a job: job.queued, "));
  EXPECT_THAT(Describe(ResolveText(Minimal("[notify]\nmail = [\"a@b\", \"c@d\", \"e@f\", \"g@h\", "
                                           "\"i@j\", \"k@l\"]\n"))
                           .problems),
              HasSubstr("notify.mail"))
      << "more than 5";
}

TEST(NotifyTest, EventsForNobodyAreAWarning) {
  const Resolution r = ResolveText(Minimal("[notify]\nevents = [\"job.failed\"]\n"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("has no effect without notify.mail"));
}

}  // namespace
}  // namespace sft::spec
