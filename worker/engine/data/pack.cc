#include "worker/engine/data/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

// The room left in each bin, as a tree of maxima: finds the first bin with enough room in O(log n).
class Room {
 public:
  Room(size_t bins, int64_t capacity)
      : leaves_(std::bit_ceil(bins)), most_(2 * leaves_, capacity) {}

  // The first bin with at least `length` of room; there is always one.
  size_t FirstFit(int64_t length) const {
    size_t node = 1;
    while (node < leaves_) node = most_[2 * node] >= length ? 2 * node : 2 * node + 1;
    return node - leaves_;
  }

  void Take(size_t bin, int64_t length) {
    size_t node = bin + leaves_;
    most_[node] -= length;
    while (node > 1) {
      node /= 2;
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    }
  }

 private:
  size_t leaves_;
  std::vector<int64_t> most_;
};

}  // namespace

std::vector<std::vector<uint32_t>> PackFirstFitDecreasing(std::span<const int64_t> lengths,
                                                          int64_t capacity) {
  std::vector<uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order,
                           [lengths](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  Room room(std::max<size_t>(lengths.size(), 1), capacity);
  std::vector<std::vector<uint32_t>> bins;
  for (const uint32_t item : order) {
    if (lengths[item] > capacity) {
      throw InternalError(
          fmt::format("a document of {} tokens in bins of {}", lengths[item], capacity));
    }
    const size_t bin = room.FirstFit(lengths[item]);
    room.Take(bin, lengths[item]);
    if (bin == bins.size()) bins.emplace_back();
    bins[bin].push_back(item);
  }
  return bins;
}

}  // namespace sft::engine
