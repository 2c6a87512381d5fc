#pragma once

#include <cstdint>

namespace sft {

// 32 random bits from the kernel's generator: the only source of randomness in the service.
uint32_t RandomWord();

// From now on this thread's words follow from `seed`, so that a simulation can be repeated.
void SeedRandom(uint64_t seed);

}  // namespace sft
