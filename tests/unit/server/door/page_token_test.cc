#include "server/door/page_token.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

TEST(PageTokenTest, APositionSurvives) {
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{12345}, INT64_MAX}) {
    EXPECT_EQ(FromToken(ToToken(position)).value(), position);
  }
}

TEST(PageTokenTest, AnythingElseIsRefused) {
  for (const char* bad : {"x", "p", "12", "pzz", "p1 ", "p-1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(FromToken(bad).status())) << bad;
  }
}

TEST(PageTokenTest, SizesAreDefaultedAndBounded) {
  EXPECT_EQ(PageSize(0, 500).value(), kDefaultPageSize);
  EXPECT_EQ(PageSize(7, 500).value(), 7);
  EXPECT_EQ(PageSize(1000, 500).value(), 500);
  EXPECT_TRUE(absl::IsInvalidArgument(PageSize(-1, 500).status()));
}

}  // namespace
}  // namespace sft::server
