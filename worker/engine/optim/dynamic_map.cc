#include "worker/engine/optim/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "worker/engine/kernels/nf4_tables.h"

namespace sft::engine {
namespace {

std::array<float, 256> SignedValues() {
  std::array<float, 256> values;
  std::copy_n(kDynamicMap, 256, values.begin());
  return values;
}

// Seven decades from 1e-6 up; decade i holds the means of 2^(i+1) equal steps of [0.1, 1].
std::array<float, 256> UnsignedValues() {
  std::array<float, 256> values{};
  size_t count = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int steps = 1 << (decade + 1);
    for (int i = 0; i < steps; ++i) {
      const double mean = 0.1 + 0.9 * (i + 0.5) / steps;
      values[count++] = static_cast<float>(std::pow(10.0, decade - 6) * mean);
    }
  }
  values[count++] = 0.0f;
  values[count++] = 1.0f;
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

const DynamicMap& DynamicMap::Signed() {
  static const DynamicMap map(SignedValues());
  return map;
}

const DynamicMap& DynamicMap::Unsigned() {
  static const DynamicMap map(UnsignedValues());
  return map;
}

DynamicMap::DynamicMap(const std::array<float, 256>& values) : values_(values) {
  for (size_t i = 0; i + 1 < values_.size(); ++i) {
    midpoints_[i] = (values_[i] + values_[i + 1]) / 2;
  }
  midpoints_.back() = std::numeric_limits<float>::infinity();
  for (uint32_t high = 0; high < first_.size(); ++high) {
    // The least value of a cell: its lower bits are zero, or all ones when it is negative.
    const uint32_t bits = high << 16 | (high & 0x8000 ? 0xffff : 0);
    float least;
    std::memcpy(&least, &bits, sizeof least);
    const auto found = std::lower_bound(midpoints_.begin(), midpoints_.end(), least);
    first_[high] = static_cast<uint8_t>(std::min<std::ptrdiff_t>(found - midpoints_.begin(), 255));
  }
}

}  // namespace sft::engine
