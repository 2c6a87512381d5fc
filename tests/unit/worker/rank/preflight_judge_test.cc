#include "worker/rank/preflight_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace sft::rank {
namespace {

using ::testing::HasSubstr;

// Nodes "a", "b", ... of two GPUs each, all as they should be.
PreflightFigures Good(size_t nodes) {
  PreflightFigures figures;
  for (size_t n = 0; n < nodes; ++n) {
    figures.nodes.push_back({.name = std::string(1, static_cast<char>('a' + n)),
                             .products = {650, 640},
                             .inside = {300},
                             .wall_us = 1'000'000'000,
                             .versions = "torch 2.11.0, driver 570"});
    for (size_t other = 0; other < n; ++other) figures.links.push_back({other, n, 40, 30});
  }
  return figures;
}

PreflightLink& LinkOf(PreflightFigures& figures, size_t a, size_t b) {
  for (PreflightLink& link : figures.links) {
    if (link.a == a && link.b == b) return link;
  }
  throw std::logic_error("no such link");
}

void Slow(PreflightFigures& figures, size_t node, double rate) {
  for (PreflightLink& link : figures.links) {
    if (link.a == node || link.b == node) link.gigabytes_per_second = rate;
  }
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(PreflightJudgeTest, NamesWhatIsSlowAndBlamesWhatIsBroken) {
  struct Case {
    const char* what;
    size_t nodes;
    void (*change)(PreflightFigures&);
    const char* text;  // of the first finding; null: there is none
    int blamed;        // -1: not broken
    size_t findings = 1;
  };
  const Case cases[] = {
      {"all well", 4, [](auto&) {}, nullptr, -1, 0},
      {"one node, all well", 1, [](auto&) {}, nullptr, -1, 0},
      {"noise", 4, [](auto& f) { f.nodes[1].products[0] = 400; }, nullptr, -1, 0},
      {"a slow GPU", 4, [](auto& f) { f.nodes[1].products[1] = 380; },
       "node b: GPU 1 of the job there is slow: 380 TFLOP/s, 58 % of the 650 TFLOP/s of the ranks' "
       "median",
       -1},
      {"of two GPUs the slower one", 1,
       [](auto& f) {
         f.nodes[0].products = {300, 640};
       },
       "node a: GPU 0 of the job there is slow: 300 TFLOP/s, 47 % of the 640 TFLOP/s", -1},
      {"a broken GPU", 4, [](auto& f) { f.nodes[2].products[0] = 100; },
       "node c: GPU 0 of the job there is broken: 100 TFLOP/s, 16 % of the 640 TFLOP/s", 2},
      {"a product that is no number", 1, [](auto& f) { f.nodes[0].products[1] = kNan; },
       "node a: GPU 1 of the job there is broken: nan TFLOP/s", 0},
      {"one GPU that computes nonsense", 1, [](auto& f) { f.nodes[0].products = {kNan}; },
       "node a: GPU 0 of the job there is broken: nan TFLOP/s", 0},
      {"all GPUs slower than before", 1, [](auto& f) { f.nodes[0].past.product = 1200; },
       "node a: GPU 0 of the job there is slow: 650 TFLOP/s, 54 % of the 1.2e+03 TFLOP/s of its "
       "own "
       "earlier runs",
       -1, 2},
      {"NVLink of a node", 3, [](auto& f) { f.nodes[2].inside = {50}; },
       "node c: the network between its GPUs is broken: 50 GB/s a GPU, 17 % of the 300 GB/s a GPU "
       "of the nodes' median",
       2},
      {"NVLink of the only node, by its past", 1, [](auto& f) { f.nodes[0].past.inside = 600; },
       "node a: the network between its GPUs is slow: 300 GB/s a GPU, 50 %", -1},
      {"a slow node of three", 3, [](auto& f) { Slow(f, 1, 10); },
       "node b: its network to other nodes is slow: 10 GB/s a rank, 25 % of the 40 GB/s a rank of "
       "the other nodes",
       -1},
      {"a broken node of four", 4, [](auto& f) { Slow(f, 3, 0.02); },
       "node d: its network to other nodes is broken: 0.02 GB/s a rank, 0 % of", 3},
      {"no data at all", 4, [](auto& f) { Slow(f, 0, kNan); },
       "node a: its network to other nodes is broken: 0 GB/s a rank, 0 % of", 0},
      {"one link of three nodes", 3, [](auto& f) { LinkOf(f, 0, 2).gigabytes_per_second = 12; },
       "the network between nodes a and c is slow: 12 GB/s a rank, 30 % of the 40 GB/s a rank of "
       "the other links",
       -1},
      {"two nodes without a past: nothing to compare with", 2, [](auto& f) { Slow(f, 0, 0.02); },
       nullptr, -1, 0},
      {"two nodes, one of which was faster once", 2,
       [](auto& f) {
         Slow(f, 0, 5);
         f.nodes[0].past.between = 40;
         f.nodes[1].past.between = 6;
       },
       "the network between nodes a and b is broken: 5 GB/s a rank, 12 % of the 40 GB/s a rank of "
       "its own earlier runs",
       0},
      {"two nodes, nonsense", 2, [](auto& f) { Slow(f, 0, kNan); },
       "the network between nodes a and b is broken: nan GB/s a rank", 1},
      {"a late link", 3, [](auto& f) { LinkOf(f, 1, 2).latency_us = 900; },
       "the network between nodes b and c is late: 900 us for the smallest message, 30 us between",
       -1},
      {"a clock", 3, [](auto& f) { f.nodes[1].wall_us -= 61'000'000; },
       "node b: its clock is 61 s behind that of the other nodes", -1},
      {"a driver", 3, [](auto& f) { f.nodes[2].versions = "torch 2.11.0, driver 535"; },
       "node c: torch 2.11.0, driver 535; the others: torch 2.11.0, driver 570", -1},
      {"the broken one first", 3,
       [](auto& f) {
         f.nodes[0].products[0] = 300;
         Slow(f, 2, 1);
       },
       "node c: its network to other nodes is broken", 2, 2},
  };
  for (const Case& each : cases) {
    PreflightFigures figures = Good(each.nodes);
    each.change(figures);
    const std::vector<PreflightFinding> findings = JudgePreflight(figures);
    EXPECT_EQ(findings.size(), each.findings) << each.what;
    if (each.text == nullptr || findings.empty()) continue;
    EXPECT_THAT(findings[0].text, HasSubstr(each.text)) << each.what;
    EXPECT_EQ(findings[0].broken, each.blamed >= 0) << each.what;
    EXPECT_EQ(findings[0].blamed, each.blamed) << each.what;
  }
}

TEST(PreflightJudgeTest, InTheRoundsEveryPairMeetsOnce) {
  for (size_t nodes = 0; nodes <= 20; ++nodes) {
    std::set<std::pair<size_t, size_t>> met;
    const auto rounds = PreflightRounds(nodes);
    for (const auto& round : rounds) {
      std::set<size_t> busy;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_LT(b, nodes);
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second) << nodes;
        EXPECT_TRUE(met.insert({a, b}).second) << nodes;
      }
    }
    const size_t pairs = nodes < 2 ? 0 : nodes <= 8 ? nodes * (nodes - 1) / 2 : nodes;
    EXPECT_EQ(met.size(), pairs) << nodes;
    EXPECT_LE(rounds.size(), 7u);
  }
}

TEST(PreflightJudgeTest, TheMedianOfTwoIsTheBetter) {
  EXPECT_EQ(UpperMedian({}), 0);
  EXPECT_EQ(UpperMedian({3}), 3);
  EXPECT_EQ(UpperMedian({1, 2}), 2);
  EXPECT_EQ(UpperMedian({5, 1, 3}), 3);
}

}  // namespace
}  // namespace sft::rank
