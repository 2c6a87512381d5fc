#include "client/output/text.h"

#include <algorithm>
#include <iterator>

#include "common/base/plain_text.h"
#include "common/base/utf8.h"

namespace sft::client {
namespace {

struct Range {
  char32_t first, last;
};
// East Asian wide and full-width characters, and emoji (Unicode's EastAsianWidth.txt, in blocks).
constexpr Range kWide[] = {
    {0x1100, 0x115f}, {0x2e80, 0x303e},   {0x3041, 0x33ff},   {0x3400, 0x4dbf},  {0x4e00, 0x9fff},
    {0xa000, 0xa4cf}, {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},  {0xff00, 0xff60},
    {0xffe0, 0xffe6}, {0x1f300, 0x1f64f}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
// Combining marks, joiners, variation selectors.
constexpr Range kNone[] = {{0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x064b, 0x065f},
                           {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};

template <size_t N>
bool IsIn(const Range (&ranges)[N], char32_t character) {
  return std::any_of(std::begin(ranges), std::end(ranges), [&](const Range& range) {
    return character >= range.first && character <= range.last;
  });
}

}  // namespace

std::string OneLine(std::string_view text) { return Escaped(text, /*keep_breaks=*/false); }

std::string Lines(std::string_view text) { return Escaped(text, /*keep_breaks=*/true); }

size_t Columns(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    bool valid = false;
    const char32_t character = TakeCharacter(text, valid);
    if (!IsIn(kNone, character)) columns += IsIn(kWide, character) ? 2 : 1;
  }
  return columns;
}

}  // namespace sft::client
