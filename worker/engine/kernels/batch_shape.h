#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

// The shape of a packed micro-batch as what is launched for it depends on it. Attention rounds the
// longest document and their number, so that batches share cuDNN's plans; recordings of a
// micro-batch serve all of one shape (model/block_graphs.h), and padding brings batches there
// (train/padding.h).

namespace sft::engine {

// Documents below this length are FlashAttention-2's, which is as fast as cuDNN there.
inline constexpr int64_t kShortestForCudnn = 256;

inline int64_t RoundUp(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Up to an eighth more where that is a tile or more: whole tiles of 128, or of 64 below
// kShortestForCudnn, where it stays.
inline int64_t RoundLongest(int64_t tokens) {
  if (tokens < kShortestForCudnn) return std::min(RoundUp(tokens, 64), kShortestForCudnn - 1);
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens)));
  return RoundUp(tokens, std::max<int64_t>(128, power / 8));
}

// 1, 2, 3, 4, 6, 8, 12, 16, ...: counts with many divisors, half as many again at most.
inline int64_t RoundDocuments(int64_t documents) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(documents)));
  return documents <= power / 4 * 3 ? power / 4 * 3 : power;
}

// Shape of a micro-batch: everything that decides which kernels are launched for it.
struct BatchShape {
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t longest = 0;  // rounded where `ragged`
  // Not of one length; short documents count as such, whatever their lengths.
  bool ragged = false;

  friend auto operator<=>(const BatchShape&, const BatchShape&) = default;
};

inline BatchShape ShapeOf(c10::IntArrayRef lengths) {
  if (lengths.empty()) return {};
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const bool ragged = *least != *most || *most < kShortestForCudnn;
  return {std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
          static_cast<int64_t>(lengths.size()), ragged ? RoundLongest(*most) : *most, ragged};
}

}  // namespace sft::engine
