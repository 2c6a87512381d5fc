#include "server/sched/places.h"

#include <algorithm>
#include <tuple>

namespace sft::server::sched {

void PlaceTree::Add(std::string_view place) {
  size_t at = 0;
  while (!place.empty()) {
    const size_t slash = std::min(place.find('/'), place.size());
    const std::string_view name = place.substr(0, slash);
    place.remove_prefix(std::min(slash + 1, place.size()));
    const auto [known, is_new] = names_.try_emplace({at, name}, parts_.size());
    if (is_new) {
      parts_[at].children.push_back(known->second);
      parts_.push_back({.parent = at, .depth = parts_[at].depth + 1, .children = {}});
    }
    at = known->second;
  }
  part_of_.push_back(at);
}

void PlaceTree::Take(const Offer& offer, size_t part, size_t count,
                     std::vector<int>& chosen) const {
  std::vector<size_t> narrower;
  for (const size_t child : parts_[part].children) {
    if (offer.counts[child] > 0) narrower.push_back(child);
  }
  const auto fewer = [&](size_t a, size_t b) {
    return std::tuple(offer.counts[a], a) < std::tuple(offer.counts[b], b);
  };
  while (count > 0 && !narrower.empty()) {
    // The smallest that holds the rest, or else the largest.
    auto next = narrower.end();
    for (auto each = narrower.begin(); each != narrower.end(); ++each) {
      if (offer.counts[*each] < count) continue;
      if (next == narrower.end() || fewer(*each, *next)) next = each;
    }
    if (next == narrower.end()) {
      next = std::max_element(narrower.begin(), narrower.end(), [&](size_t a, size_t b) {
        return offer.counts[a] < offer.counts[b];
      });
    }
    const size_t taken = std::min(count, offer.counts[*next]);
    Take(offer, *next, taken, chosen);
    count -= taken;
    narrower.erase(next);
  }
  const std::vector<int>& own = offer.own[part];
  chosen.insert(chosen.end(), own.begin(), own.begin() + static_cast<std::ptrdiff_t>(count));
}

std::vector<int> PlaceTree::Choose(const std::vector<int>& nodes, size_t count) const {
  Offer offer{.counts = std::vector<size_t>(parts_.size()),
              .own = std::vector<std::vector<int>>(parts_.size())};
  for (const int node : nodes) {
    size_t part = part_of_[static_cast<size_t>(node)];
    offer.own[part].push_back(node);
    for (; part != 0; part = parts_[part].parent) ++offer.counts[part];
    ++offer.counts[0];
  }
  size_t best = 0;
  for (size_t part = 1; part < parts_.size(); ++part) {
    if (offer.counts[part] < count) continue;
    const auto key = [&](size_t p) { return std::tuple(-parts_[p].depth, offer.counts[p], p); };
    if (key(part) < key(best)) best = part;
  }
  std::vector<int> chosen;
  chosen.reserve(count);
  Take(offer, best, count, chosen);
  return chosen;
}

}  // namespace sft::server::sched
