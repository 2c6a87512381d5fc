#pragma once

#include <cstddef>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

// Which nodes of a network a gang takes, so that its ranks are close together. Pure.

namespace sft::server::sched {

// The places of nodes as a tree: "block-a/rack-3/switch-2" lies in "block-a/rack-3". A node whose
// place ends at one that others go on from lies there, outside their narrower parts.
class PlaceTree {
 public:
  PlaceTree() : parts_(1) {}  // the whole network

  // Adds the next node; empty: its place is not known. The text is borrowed.
  void Add(std::string_view place);

  // `count` of `nodes`, in node rank order. `nodes` are in the order of preference among equals,
  // and at least so many. They are taken from the narrowest part of the network that holds the
  // gang, of several from the one with the fewest of `nodes`. Where that part has narrower ones, as
  // few of them as possible are used, and ranks in one of them are consecutive, so that a ring over
  // all ranks enters and leaves each part once.
  std::vector<int> Choose(const std::vector<int>& nodes, size_t count) const;

 private:
  struct Part {
    size_t parent = 0;  // its own index for the whole network
    int depth = 0;
    std::vector<size_t> children;
  };
  // The nodes to choose from by part: in all of it, and outside its narrower parts.
  struct Offer {
    std::vector<size_t> counts;
    std::vector<std::vector<int>> own;
  };
  void Take(const Offer& offer, size_t part, size_t count, std::vector<int>& chosen) const;

  std::vector<Part> parts_;
  std::map<std::pair<size_t, std::string_view>, size_t> names_;  // parent and name → part
  std::vector<size_t> part_of_;                                  // by node
};

}  // namespace sft::server::sched
