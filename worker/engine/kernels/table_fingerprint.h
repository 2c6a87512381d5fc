#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "worker/engine/kernels/ops.h"

namespace sft::engine::ops {

namespace internal {

// FNV-1a.
consteval uint64_t Mixed(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

template <typename Result, typename... Parameters>
consteval size_t ParameterBytes(Result (*Implementations::*)(Parameters...)) {
  return (size_t{0} + ... + sizeof(std::remove_reference_t<Parameters>));
}

}  // namespace internal

// Tells two tables of operations apart: by the text of the lines of operations.def and the sizes of
// their parameters. The program and the CUDA plugin call each other through the table, so both must
// have been compiled with the same one (cuda/loader.h).
consteval uint64_t TableFingerprint() {
  uint64_t hash = 0xcbf29ce484222325ULL;
#define SFT_OPERATION(Result, Name, ...)                                \
  hash = internal::Mixed(hash, #Result " " #Name "(" #__VA_ARGS__ ")"); \
  hash = (hash ^ internal::ParameterBytes(&Implementations::Name)) * 0x100000001b3ULL;
#include "worker/engine/kernels/operations.def"
  return hash;
}

}  // namespace sft::engine::ops
