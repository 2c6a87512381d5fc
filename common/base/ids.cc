#include "common/base/ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

#include "common/base/random.h"

namespace sft {
namespace {

constexpr std::string_view kAlphabet = "abcdefghjkmnpqrstuvwxyz023456789";  // 32 letters

}  // namespace

std::vector<std::string> IdsInPath(std::string_view prefix, std::string_view path, int length) {
  const std::string begin = std::string(prefix) + "-";
  std::vector<std::string> ids;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    std::string part(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
    std::transform(part.begin(), part.end(), part.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool fits = part.starts_with(begin) &&
                      part.size() == begin.size() + static_cast<size_t>(length) &&
                      part.find_first_not_of(kAlphabet, begin.size()) == part.npos;
    if (fits) ids.push_back(std::move(part));
  }
  return ids;
}

std::string RandomId(std::string_view prefix, int length) {
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
