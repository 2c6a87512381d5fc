#include "common/spec/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sft::spec {
namespace {

using ::testing::ElementsAre;

TEST(SweepTest, TheLastKeyChangesFromOneJobToTheNext) {
  EXPECT_THAT(SweepValues({2, 3}, 0), ElementsAre(0, 0));
  EXPECT_THAT(SweepValues({2, 3}, 1), ElementsAre(0, 1));
  EXPECT_THAT(SweepValues({2, 3}, 3), ElementsAre(1, 0));
  EXPECT_THAT(SweepValues({2, 3}, 5), ElementsAre(1, 2));
  EXPECT_THAT(SweepValues({4}, 2), ElementsAre(2));
}

}  // namespace
}  // namespace sft::spec
