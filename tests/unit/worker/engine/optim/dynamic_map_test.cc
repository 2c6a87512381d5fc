#include "worker/engine/optim/dynamic_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sft::engine {
namespace {

TEST(DynamicMapTest, TablesAreSortedAndHaveTheKnownEnds) {
  for (const DynamicMap* map : {&DynamicMap::Signed(), &DynamicMap::Unsigned()}) {
    EXPECT_TRUE(std::is_sorted(map->values().begin(), map->values().end()));
    EXPECT_EQ(map->values().back(), 1.0f);
  }
  EXPECT_FLOAT_EQ(DynamicMap::Signed().values().front(), -0.99296874f);
  EXPECT_EQ(DynamicMap::Signed().values()[127], 0.0f);
  EXPECT_EQ(DynamicMap::Unsigned().values()[0], 0.0f);
  // Means of linspace(0.1, 1, 3) times 1e-6, and the largest of linspace(0.1, 1, 129).
  EXPECT_FLOAT_EQ(DynamicMap::Unsigned().values()[1], 3.25e-7f);
  EXPECT_FLOAT_EQ(DynamicMap::Unsigned().values()[2], 7.75e-7f);
  EXPECT_FLOAT_EQ(DynamicMap::Unsigned().values()[254], 0.99648438f);
}

TEST(DynamicMapTest, EveryCodeIsFoundFromItsValue) {
  for (const DynamicMap* map : {&DynamicMap::Signed(), &DynamicMap::Unsigned()}) {
    for (int code = 0; code < 256; ++code) EXPECT_EQ(map->Nearest(map->values()[code]), code);
  }
}

// At each midpoint and its two neighbours, and on a fine sweep over the exponents.
TEST(DynamicMapTest, FastSearchEqualsTheNearestValue) {
  const auto check = [](const DynamicMap& map, float x) {
    const auto exact = std::lower_bound(map.midpoints().begin(), map.midpoints().end(), x);
    EXPECT_EQ(map.Nearest(x), exact - map.midpoints().begin()) << x;
  };
  for (const DynamicMap* map : {&DynamicMap::Signed(), &DynamicMap::Unsigned()}) {
    for (int i = 0; i < 255; ++i) {
      const float middle = map->midpoints()[i];
      for (const float x : {middle, std::nextafter(middle, -2.0f), std::nextafter(middle, 2.0f)}) {
        check(*map, x);
      }
    }
    for (uint32_t bits = 0; bits <= 0x3f800000; bits += 0x1235) {
      float x;
      std::memcpy(&x, &bits, sizeof x);
      check(*map, x);
      if (map == &DynamicMap::Signed()) check(*map, -x);
    }
  }
}

}  // namespace
}  // namespace sft::engine
