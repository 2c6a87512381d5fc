#include "server/core/failed_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sft::server {
namespace {

using ::testing::ElementsAre;

class FailedCallsTest : public ::testing::Test {
 protected:
  void Fail(const std::string& who, const std::string& method, int outcome, int times = 1) {
    for (int i = 0; i < times; ++i) {
      failed_.Count({.principal = who, .method = method, .object = "o", .outcome = outcome});
    }
  }
  // Oldest first.
  std::vector<std::string> Rows() {
    std::vector<std::string> rows;
    const absl::Status read = store_->Read([&](Database& db) -> absl::Status {
      const auto list = store::ListAudit(db, {.limit = 500}).value();
      for (auto record = list.rbegin(); record != list.rend(); ++record) {
        rows.push_back(record->principal + " " + record->method + " " +
                       std::to_string(record->outcome) + " x" + std::to_string(record->calls));
      }
      return absl::OkStatus();
    });
    EXPECT_TRUE(read.ok()) << read;
    return rows;
  }

  FakeClock clock_;
  std::unique_ptr<Store> store_ = Store::Open({.path = ":memory:", .own_thread = false}).value();
  FailedCalls failed_{*store_, clock_};
};

TEST_F(FailedCallsTest, AKindHasARowForEachMinuteThatCountsItsCalls) {
  Fail("ann", "JobService.GetJob", 5, 3);
  ASSERT_TRUE(failed_.Flush().ok());
  EXPECT_THAT(Rows(), ElementsAre("ann JobService.GetJob 5 x3"));
  clock_.Advance(std::chrono::seconds(30));
  Fail("ann", "JobService.GetJob", 5, 1000);
  Fail("ann", "JobService.GetJob", 3);
  ASSERT_TRUE(failed_.Flush().ok());
  EXPECT_THAT(Rows(), ElementsAre("ann JobService.GetJob 5 x1003", "ann JobService.GetJob 3 x1"));
  clock_.Advance(std::chrono::seconds(40));
  ASSERT_TRUE(failed_.Flush().ok());
  Fail("ann", "JobService.GetJob", 5);
  ASSERT_TRUE(failed_.Flush().ok());
  EXPECT_THAT(Rows(), ElementsAre("ann JobService.GetJob 5 x1003", "ann JobService.GetJob 3 x1",
                                  "ann JobService.GetJob 5 x1"));
  EXPECT_EQ(failed_.totals()[5], 1004);
  EXPECT_EQ(failed_.totals()[3], 1);
}

TEST_F(FailedCallsTest, WithoutFailuresNothingIsCommitted) {
  Fail("ann", "JobService.GetJob", 5, 3);
  ASSERT_TRUE(failed_.Flush().ok());
  const int64_t commits = store_->commits();
  ASSERT_TRUE(failed_.Flush().ok());
  EXPECT_EQ(store_->commits(), commits);
}

TEST_F(FailedCallsTest, ManyKindsAreCountedTogether) {
  for (int i = 0; i < 100; ++i) Fail("ann", "method-" + std::to_string(i), 3, 2);
  ASSERT_TRUE(failed_.Flush().ok());
  EXPECT_EQ(Rows().size(), FailedCalls::kMostOfOne + 1);
  EXPECT_THAT(Rows(), ::testing::IsSupersetOf({"ann other calls 3 x168", "ann method-0 3 x2"}));
  for (int i = 0; i < 10'000; ++i) Fail("user-" + std::to_string(i), "m", 16);
  Fail("bob", "late", 13);
  ASSERT_TRUE(failed_.Flush().ok());
  const auto rows = Rows();
  EXPECT_LE(rows.size(), 500u);  // the most that one listing returns
  EXPECT_THAT(rows, ::testing::Contains("others other calls 13 x1"));
  clock_.Advance(std::chrono::minutes(2));
  ASSERT_TRUE(failed_.Flush().ok());
  Fail("ann", "method-50", 3);
  ASSERT_TRUE(failed_.Flush().ok());
  EXPECT_EQ(Rows().back(), "ann method-50 3 x1") << "a new minute has room again";
}

TEST_F(FailedCallsTest, AClockThatIsSetBackDoesNotKeepAKindForEver) {
  Fail("ann", "m", 3);
  clock_.JumpWall(std::chrono::hours(-5));
  ASSERT_TRUE(failed_.Flush().ok());
  Fail("ann", "m", 3);
  ASSERT_TRUE(failed_.Flush().ok());
  EXPECT_THAT(Rows(), ElementsAre("ann m 3 x1", "ann m 3 x1"));
}

}  // namespace
}  // namespace sft::server
