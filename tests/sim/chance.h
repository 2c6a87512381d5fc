#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "common/base/clock.h"

namespace sft::sim {

// The chance of one simulation: all of it follows from the seed.
class Chance {
 public:
  explicit Chance(uint64_t seed) : generator_(seed) {}

  // 0 .. below - 1.
  int Below(int below) { return static_cast<int>(generator_() % static_cast<uint64_t>(below)); }
  bool OneIn(int n) { return Below(n) == 0; }
  // Evenly from `least` to `most`.
  Nanos Between(Nanos least, Nanos most) {
    return least + Nanos(static_cast<int64_t>(generator_() %
                                              static_cast<uint64_t>((most - least).count() + 1)));
  }
  template <typename T>
  T& Pick(std::vector<T>& from) {
    return from[static_cast<size_t>(Below(static_cast<int>(from.size())))];
  }
  uint64_t Word() { return generator_(); }

 private:
  std::mt19937_64 generator_;
};

}  // namespace sft::sim
