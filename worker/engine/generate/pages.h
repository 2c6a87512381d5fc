#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace sft::engine {

// Which pages of keys and values are free. A page holds the same kPageTokens tokens of one request
// in every layer. Thread-compatible.
class PageTable {
 public:
  static constexpr int64_t kPageTokens = 16;

  // `most`: pages that there may be.
  explicit PageTable(int64_t most) : most_(most) {}

  static int64_t PagesFor(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

  int64_t most() const { return most_; }
  // Pages numbered below this were in use at some time.
  int64_t touched() const { return touched_; }
  bool HasRoom(int64_t pages) const { return pages <= most_ - used_; }
  // Takes pages, which there must be; those that were given back last come first.
  std::vector<int32_t> Take(int64_t pages);
  void GiveBack(const std::vector<int32_t>& pages);

 private:
  int64_t most_ = 0, used_ = 0, touched_ = 0;
  std::vector<int32_t> free_;  // below touched_
};

// The keys and values of one layer, in pages: k and v [pages, kPageTokens, key heads, D].
struct LayerPages {
  at::Tensor k, v;

  // Makes room for pages [0, count), of the type and device of `like`, and keeps what there is.
  // `most`: pages that there may ever be.
  void Reserve(int64_t count, int64_t most, at::IntArrayRef heads, const at::TensorOptions& like);
  // Writes keys and values [T, key heads, D] at slots int64 [T]: page * kPageTokens + place in it.
  void Write(const at::Tensor& slots, const at::Tensor& keys, const at::Tensor& values);
};

}  // namespace sft::engine
