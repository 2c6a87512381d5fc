#include "common/base/ids.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "common/base/random.h"

namespace sft {

std::string RandomId(std::string_view prefix, int length) {
  static constexpr std::string_view kAlphabet = "abcdefghjkmnpqrstuvwxyz023456789";  // 32 letters
  std::string id(prefix);
  if (!id.empty()) id += '-';
  for (int i = 0; i < length; ++i) id += kAlphabet[RandomWord() % kAlphabet.size()];
  return id;
}

std::string RandomUuid() {
  const uint32_t a = RandomWord(), b = RandomWord(), c = RandomWord(), d = RandomWord();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:04x}{:08x}", a, b >> 16, b & 0xfff,
                     (c >> 16 & 0x3fff) | 0x8000, c & 0xffff, d);
}

}  // namespace sft
