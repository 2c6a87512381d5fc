#include "common/base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sft {
namespace {

// Length in bytes of the character that `lead` begins; 0 if it begins none.
size_t LengthOf(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

}  // namespace

char32_t TakeCharacter(std::string_view& text, bool& valid) {
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto lead = static_cast<unsigned char>(text.front());
  const size_t length = LengthOf(lead);
  valid = length > 0 && length <= text.size();
  char32_t character = length == 1 ? lead : lead & (0x7f >> length);
  for (size_t i = 1; valid && i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    valid = (next & 0xc0) == 0x80;
    character = character << 6 | (next & 0x3f);
  }
  valid = valid && character >= kSmallest[length] && character <= 0x10ffff &&
          (character < 0xd800 || character > 0xdfff);
  text.remove_prefix(valid ? length : 1);
  return valid ? character : kReplacementCharacter;
}

size_t BytesOfBegunCharacter(std::string_view text) {
  constexpr size_t kMostBegun = 3;
  for (size_t bytes = 1; bytes <= std::min(kMostBegun, text.size()); ++bytes) {
    const auto byte = static_cast<unsigned char>(text[text.size() - bytes]);
    if ((byte & 0xc0) != 0x80) return LengthOf(byte) > bytes ? bytes : 0;
  }
  return 0;
}

size_t FindInvalidUtf8(std::string_view text) {
  for (std::string_view rest = text; !rest.empty();) {
    const size_t at = text.size() - rest.size();
    bool valid = false;
    TakeCharacter(rest, valid);
    if (!valid) return at;
  }
  return text.npos;
}

std::string FindHidden(std::string_view text) {
  // Controls, the soft hyphen, fillers, joiners, direction marks and overrides, line and paragraph
  // separators, tags, and noncharacters.
  static constexpr std::pair<char32_t, char32_t> kHidden[] = {
      {0x00, 0x1f},     {0x7f, 0x9f},       {0xad, 0xad},      {0x34f, 0x34f},   {0x61c, 0x61c},
      {0x115f, 0x1160}, {0x17b4, 0x17b5},   {0x180b, 0x180f},  {0x200b, 0x200f}, {0x2028, 0x202e},
      {0x2060, 0x206f}, {0x3164, 0x3164},   {0xfeff, 0xfeff},  {0xffa0, 0xffa0}, {0xfff0, 0xfffb},
      {0xfffe, 0xffff}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text.front());
    bool valid = false;
    const char32_t character = TakeCharacter(text, valid);
    if (!valid) return fmt::format("the byte 0x{:02x}", byte);
    for (const auto& [first, last] : kHidden) {
      if (character >= first && character <= last) {
        return fmt::format("U+{:04X}", static_cast<uint32_t>(character));
      }
    }
  }
  return "";
}

std::string WithoutHidden(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::string_view before = text;
    bool valid = false;
    TakeCharacter(text, valid);
    const std::string_view character = before.substr(0, before.size() - text.size());
    shown += FindHidden(character).empty() ? character : "_";
  }
  return shown;
}

std::string ToUtf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const std::string_view before = text;
    bool valid = false;
    TakeCharacter(text, valid);
    clean += valid ? before.substr(0, before.size() - text.size()) : "\xef\xbf\xbd";
  }
  return clean;
}

}  // namespace sft
