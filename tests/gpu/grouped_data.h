#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <ostream>
#include <vector>

#include "tests/gpu/gpu_test.h"

// Groups of rows for the tests of their products.

namespace sft::engine {

struct GroupedShape {
  std::vector<int> rows;  // of each group
  int64_t outputs, depth, rank;

  int64_t groups() const { return static_cast<int64_t>(rows.size()); }
  // With 3 rows before the groups and 5 behind, which are nobody's.
  int64_t all_rows() const {
    int64_t all = 8;
    for (const int count : rows) all += count;
    return all;
  }
  at::Tensor begins() const {
    std::vector<int> begins{3};
    for (const int count : rows) begins.push_back(begins.back() + count);
    return at::tensor(begins, at::kInt);
  }
  friend void PrintTo(const GroupedShape& s, std::ostream* out) {
    *out << s.groups() << " groups, " << s.all_rows() << " rows, " << s.outputs << " x " << s.depth
         << ", r " << s.rank;
  }
};

// Values of bf16, in fp32; and such values on the GPU, in bf16.
inline at::Tensor RoundedNormal(at::IntArrayRef sizes, uint64_t seed, double scale = 1.0) {
  return Normal(sizes, seed, scale).to(at::kBFloat16).to(at::kFloat);
}
inline at::Tensor InBf16OnGpu(const at::Tensor& x) { return ToGpu(x.to(at::kBFloat16)); }

}  // namespace sft::engine
