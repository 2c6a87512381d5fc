#include "common/base/plain_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/utf8.h"

namespace sft {

bool IsControl(char32_t character) {
  // C0, C1, direction marks and overrides, separators of lines, what is invisible and joins
  // nothing, and tags.
  static constexpr std::pair<char32_t, char32_t> kControls[] = {
      {0x00, 0x1f},     {0x7f, 0x9f},     {0x61c, 0x61c},   {0x200b, 0x200b}, {0x200e, 0x200f},
      {0x2028, 0x202e}, {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
  return std::ranges::any_of(kControls, [character](const auto& range) {
    return character >= range.first && character <= range.second;
  });
}

bool IsPlain(std::string_view text) {
  while (!text.empty()) {
    bool valid = false;
    const char32_t character = TakeCharacter(text, valid);
    if (!valid || IsControl(character)) return false;
  }
  return true;
}

std::string Escaped(std::string_view text, bool keep_breaks) {
  std::string escaped;
  while (!text.empty()) {
    const std::string_view before = text;
    bool valid = false;
    const char32_t character = TakeCharacter(text, valid);
    const bool is_break = character == '\n' || character == '\t';
    if (!valid) {
      escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(before.front()));
    } else if (is_break || character == '\r') {
      escaped += keep_breaks && is_break ? static_cast<char>(character) : ' ';
    } else if (IsControl(character)) {
      escaped += fmt::format("\\x{:02x}", static_cast<uint32_t>(character));
    } else {
      escaped += before.substr(0, before.size() - text.size());
    }
  }
  return escaped;
}

std::string Shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return fmt::format("{}... ({} bytes)", text.substr(0, end), text.size());
}

std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string Plain(std::string_view text, size_t most) {
  return Escaped(Shortened(text, most), /*keep_breaks=*/false);
}

}  // namespace sft
