#include "server/sched/places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

namespace sft::server::sched {
namespace {

using Nodes = std::vector<int>;

PlaceTree Tree(const std::vector<std::string>& places) {
  PlaceTree tree;
  for (const std::string& place : places) tree.Add(place);
  return tree;
}

TEST(PlaceTreeTest, TakesTheNarrowestPartThatHoldsTheGang) {
  struct Case {
    const char* what;
    std::vector<std::string> places;
    Nodes offered;  // in the order of preference
    size_t count;
    Nodes chosen;
  };
  const std::vector<std::string> flat(4, "");
  const std::vector<std::string> racks = {"a", "b", "a", "b", "b"};
  const std::vector<std::string> tree = {
      "x/r1/s1", "x/r1/s2", "x/r1/s1", "x/r2/s1", "y/r1", "y/r1", "", "x/r1/s2", "x/r1/s2",
  };
  const Case cases[] = {
      {"nothing known: by preference", flat, {2, 0, 3, 1}, 3, {2, 0, 3}},
      {"the rack with fewest that is enough", racks, {0, 1, 2, 3, 4}, 2, {0, 2}},
      {"only one rack has three", racks, {0, 1, 2, 3, 4}, 3, {1, 3, 4}},
      {"none is enough: the largest, then as few others as can be",
       racks,
       {0, 1, 2, 3, 4},
       4,
       {1, 3, 4, 0}},
      {"all", racks, {4, 3, 2, 1, 0}, 5, {4, 3, 1, 2, 0}},
      {"a switch", tree, {0, 1, 2, 3, 4, 5, 6, 7, 8}, 3, {1, 7, 8}},
      {"of two switches with enough the one with fewer", tree, {8, 7, 2, 1, 0}, 2, {2, 0}},
      {"a rack holds five, no switch does", tree, {0, 1, 2, 3, 4, 5, 6, 7, 8}, 5, {1, 7, 8, 0, 2}},
      {"a block holds six: its ranks stay together by rack and switch",
       tree,
       {3, 0, 1, 2, 4, 5, 6, 7, 8},
       6,
       {1, 7, 8, 0, 2, 3}},
      {"the whole network: blocks, then nodes of no known place",
       tree,
       {6, 4, 0, 1, 2, 3, 5, 7, 8},
       9,
       {1, 7, 8, 0, 2, 3, 4, 5, 6}},
      {"a rack without known switches", tree, {4, 5, 6, 0}, 2, {4, 5}},
      {"of a switch what is preferred", tree, {8, 1, 7}, 2, {8, 1}},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(Tree(each.places).Choose(each.offered, each.count), each.chosen) << each.what;
  }
}

TEST(PlaceTreeTest, NodesBesideNarrowerPartsComeAfterThem) {
  const PlaceTree tree = Tree({"r/s1", "r", "r/s1", "r/s2"});
  EXPECT_EQ(tree.Choose({1, 3, 0, 2}, 4), (Nodes{0, 2, 3, 1}));
  EXPECT_EQ(tree.Choose({1, 3}, 2), (Nodes{3, 1}));
}

// Whatever is offered: the gang is whole, of what was offered, and each part's ranks are
// consecutive.
TEST(PlaceTreeTest, RanksOfAPartAreConsecutive) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> places;
    Nodes offered;
    for (int node = 0; node < 1 + below(24); ++node) {
      std::string place;
      for (int depth = below(4); depth > 0; --depth) {
        place += (place.empty() ? "p" : "/p") + std::to_string(below(3));
      }
      places.push_back(place);
      offered.push_back(node);
    }
    std::shuffle(offered.begin(), offered.end(), random);
    const size_t count = 1 + static_cast<size_t>(below(offered.size()));
    const Nodes chosen = Tree(places).Choose(offered, count);
    ASSERT_EQ(std::set<int>(chosen.begin(), chosen.end()).size(), count);
    std::set<std::string> left;  // parts that the ranks have gone out of
    for (size_t i = 1; i < chosen.size(); ++i) {
      const auto parts_of = [&](int node) {
        std::set<std::string> parts;
        const std::string& place = places[static_cast<size_t>(node)];
        for (size_t at = 0; at != place.npos && !place.empty();) {
          at = place.find('/', at + 1);
          parts.insert(place.substr(0, at));
        }
        return parts;
      };
      const std::set<std::string> before = parts_of(chosen[i - 1]), now = parts_of(chosen[i]);
      for (const std::string& part : before) {
        if (!now.contains(part)) left.insert(part);
      }
      for (const std::string& part : now) EXPECT_FALSE(left.contains(part)) << part;
    }
  }
}

}  // namespace
}  // namespace sft::server::sched
