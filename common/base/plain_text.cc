#include "common/base/plain_text.h"

#include <fmt/format.h>

#include "common/base/utf8.h"

namespace sft {

bool IsControl(char32_t character) {
  return character < 0x20 || (character >= 0x7f && character < 0xa0) ||
         (character >= 0x202a && character <= 0x202e) ||
         (character >= 0x2066 && character <= 0x2069);
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
