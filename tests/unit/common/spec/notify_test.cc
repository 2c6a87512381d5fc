#include <fmt/format.h>
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

TEST(NotifyTest, AWebhookIsOneAddressByHttp) {
  const Resolution named = ResolveText(Minimal(
      "[notify]\nwebhook = \"https://example.com/hook\"\nevents = [\"fine_tuning.job.failed\"]\n"));
  ASSERT_TRUE(named.ok()) << Describe(named.problems);
  EXPECT_TRUE(named.warnings.empty()) << Describe(named.warnings);
  EXPECT_EQ(named.spec.notify.webhook, "https://example.com/hook");
  for (const char* bad : {"mailto:ann@example.com", "ftp://example.com/", "example.com"}) {
    const Resolution r = ResolveText(Minimal(fmt::format("[notify]\nwebhook = \"{}\"\n", bad)));
    EXPECT_THAT(Describe(r.problems), HasSubstr("notify.webhook")) << bad;
  }
  const Resolution long_one = ResolveText(
      Minimal("[notify]\nwebhook = \"https://example.com/" + std::string(2000, 'a') + "\"\n"));
  EXPECT_THAT(Describe(long_one.problems), HasSubstr("at most 2000 bytes"));
}

TEST(NotifyTest, EventsForNobodyAreAWarning) {
  const Resolution r = ResolveText(Minimal("[notify]\nevents = [\"job.failed\"]\n"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_THAT(Describe(r.warnings),
              HasSubstr("has no effect without notify.mail or notify.webhook"));
}

}  // namespace
}  // namespace sft::spec
