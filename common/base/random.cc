#include "common/base/random.h"

#include <optional>
#include <random>

namespace sft {
namespace {

thread_local std::optional<std::mt19937> seeded;

}  // namespace

uint32_t RandomWord() {
  // libstdc++ reads the kernel's generator here.
  static thread_local std::random_device device;
  return seeded ? (*seeded)() : device();
}

void SeedRandom(uint64_t seed) {
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  seeded.emplace(sequence);
}

}  // namespace sft
