#include "common/base/edit_distance.h"

#include <gtest/gtest.h>

namespace sft {
namespace {

TEST(EditDistanceTest, CountsChangesInsertionsDeletionsAndSwaps) {
  EXPECT_EQ(EditDistance("status", "status"), 0u);
  EXPECT_EQ(EditDistance("statsu", "status"), 1u);
  EXPECT_EQ(EditDistance("stauts", "status"), 1u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
}

TEST(EditDistanceTest, AShortWordIsNotTakenForAnyOther) {
  EXPECT_EQ(SuggestionLimit("nope"), 1u);
  EXPECT_EQ(SuggestionLimit("learning_rate"), 4u);
}

}  // namespace
}  // namespace sft
