#include "common/base/bytes.h"

#include <gtest/gtest.h>

namespace sft {
namespace {

TEST(BytesTest, EverySizeIsShownInAUnitThatFitsIt) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(1'234), "1.23 kB");
  EXPECT_EQ(BytesText(45'600'000), "45.6 MB");
  EXPECT_EQ(BytesText(4'500'000'000), "4.50 GB");
  EXPECT_EQ(BytesText(80'000'000'000), "80.0 GB");
  EXPECT_EQ(BytesText(2'000'000'000'000), "2.00 TB");
  EXPECT_EQ(BytesText(-1'500'000), "-1.50 MB");
}

}  // namespace
}  // namespace sft
