#include "worker/hub/git_hash.h"

#include <fmt/format.h>

#include <array>
#include <bit>

namespace sft::worker {
namespace {

constexpr size_t kBlock = 64;

void AddBlock(const unsigned char* block, std::array<uint32_t, 5>& state) {
  std::array<uint32_t, 80> w{};
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | uint32_t{block[4 * i + 3]};
  }
  for (size_t i = 16; i < 80; ++i) {
    w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  }
  auto [a, b, c, d, e] = state;
  for (size_t i = 0; i < 80; ++i) {
    const uint32_t f = i < 20   ? (b & c) | (~b & d)
                       : i < 40 ? b ^ c ^ d
                       : i < 60 ? (b & c) | (b & d) | (c & d)
                                : b ^ c ^ d;
    constexpr std::array<uint32_t, 4> kRound = {0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6};
    const uint32_t next = std::rotl(a, 5) + f + e + kRound[i / 20] + w[i];
    e = d;
    d = c;
    c = std::rotl(b, 30);
    b = a;
    a = next;
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
  state[4] += e;
}

}  // namespace

std::string GitBlobId(std::string_view bytes) {
  std::string text = fmt::format("blob {}", bytes.size()) + '\0' + std::string(bytes);
  const uint64_t bits = uint64_t{text.size()} * 8;
  text += static_cast<char>(0x80);
  while (text.size() % kBlock != kBlock - 8) text += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift & 0xFF);
  std::array<uint32_t, 5> state = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
  for (size_t at = 0; at < text.size(); at += kBlock) {
    AddBlock(reinterpret_cast<const unsigned char*>(text.data()) + at, state);
  }
  std::string id;
  for (const uint32_t word : state) id += fmt::format("{:08x}", word);
  return id;
}

}  // namespace sft::worker
