#include "worker/engine/weights/layout.h"

#include <gtest/gtest.h>

namespace sft::engine {
namespace {

UnitInfo Unit() {
  return {"unit", {{"a.weight", {2, 3}}, {"b.bias", {5}}, {"c.lora_A.weight", {4}}}};
}

TEST(FlatLayoutTest, PlacesSelectedParametersAtTheAlignment) {
  const FlatLayout all(Unit(), [](const ParamInfo&) { return true; });
  EXPECT_EQ(all.size(), 15);
  const FlatLayout aligned(Unit(), [](const ParamInfo& p) { return p.shape.size() == 1; }, 4);
  ASSERT_EQ(aligned.pieces().size(), 2u);
  EXPECT_EQ(aligned.pieces()[0].begin, 0);
  EXPECT_EQ(aligned.pieces()[1].begin, 8);
  EXPECT_EQ(aligned.size(), 12);
}

TEST(FlatLayoutTest, SliceCutsPiecesAndSaysWhereTheyStartInTheParameter) {
  const FlatLayout all(Unit(), [](const ParamInfo&) { return true; });
  const auto slice = all.Slice(4, 5);
  ASSERT_EQ(slice.size(), 2u);
  EXPECT_EQ(slice[0].param, 0);
  EXPECT_EQ(slice[0].first, 4);
  EXPECT_EQ(slice[0].count, 2);
  EXPECT_EQ(slice[1].param, 1);
  EXPECT_EQ(slice[1].begin, 6);
  EXPECT_EQ(slice[1].first, 0);
  EXPECT_EQ(slice[1].count, 3);
  EXPECT_TRUE(all.Slice(7, 0).empty());
}

TEST(ParamInfoTest, ModuleIsTheNameWithoutItsLastPart) {
  EXPECT_EQ(Unit().params[0].module(), "a");
  EXPECT_EQ(Unit().params[1].module(), "b");
  EXPECT_EQ(Unit().params[2].module(), "c");
}

}  // namespace
}  // namespace sft::engine
