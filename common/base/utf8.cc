#include "common/base/utf8.h"

namespace sft {
namespace {

// Bytes of the character that `lead` begins; 0: it begins none.
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

size_t FindInvalidUtf8(std::string_view text) {
  for (std::string_view rest = text; !rest.empty();) {
    const size_t at = text.size() - rest.size();
    bool valid = false;
    TakeCharacter(rest, valid);
    if (!valid) return at;
  }
  return text.npos;
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
