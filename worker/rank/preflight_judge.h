#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// What a preflight's figures say: which node or link is slow or broken. Pure.

namespace sft::rank {

// Medians of a node's earlier preflights; 0: too few are known.
struct PreflightPast {
  double product = 0, inside = 0, between = 0;
};

// What was measured of one node. Rates that were not measured are absent; those that are not finite
// or not above 0 were measured as nonsense.
struct PreflightNode {
  std::string name;
  // Of each of its ranks: bf16 products of large matrices, in 10^12 operations a second.
  std::vector<double> products;
  // Between its GPUs, GB/s that each sends at once; none: one GPU, or a CPU.
  std::vector<double> inside;
  int64_t wall_us = 0;   // its clock, when those of all nodes were read
  std::string versions;  // "torch 2.11.0, driver 570.86.15, NVIDIA H100 80GB HBM3"
  PreflightPast past;
};

// Between two nodes, all of whose ranks send at once.
struct PreflightLink {
  size_t a = 0, b = 0;              // indices of nodes
  double gigabytes_per_second = 0;  // of a rank, the slowest of them
  double latency_us = 0;            // of the smallest message, the fastest of them
};

// All that the ranks measured.
struct PreflightFigures {
  std::vector<PreflightNode> nodes;  // in node rank order
  std::vector<PreflightLink> links;  // those that were measured
};

// Something that is not as it should be.
struct PreflightFinding {
  std::string text;     // names node or link, and what was measured and expected
  bool broken = false;  // training must not start
  int blamed = -1;      // the node that had better be left out, if it is broken
};

// A rate is compared with that of the other ranks, nodes or links (their median, of two the better
// one) and with the node's own past: below 0.6 of either it is slow, below 0.2, or if it is no
// number above 0, it is broken. A link is a node's fault where most of its links are slow and those
// of others are not. Clocks that are seconds apart, and versions that only few nodes have, are
// said. Broken ones come first.
std::vector<PreflightFinding> JudgePreflight(const PreflightFigures& figures);

// Rounds of pairs in which each pair of `nodes` nodes meets once and no node twice in a round; for
// more than 8 nodes the neighbours in a ring only, in two rounds, or in three for an odd number.
std::vector<std::vector<std::pair<size_t, size_t>>> PreflightRounds(size_t nodes);

// The larger of both in the middle of an even number; 0 of none.
double UpperMedian(std::vector<double> values);

}  // namespace sft::rank
