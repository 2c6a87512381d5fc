#include "common/base/mail_address.h"

#include <algorithm>

namespace sft {
namespace {

constexpr size_t kMost = 254, kMostLocal = 64, kMostLabel = 63;
constexpr std::string_view kMarks = "!#$%&'*+-/=?^_`{|}~";

bool IsWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Parts with points between them, none empty, each of which `is_part` takes.
template <typename IsPart>
bool AreParts(std::string_view text, const IsPart& is_part) {
  while (true) {
    const size_t point = std::min(text.find('.'), text.size());
    if (point == 0 || !is_part(text.substr(0, point))) return false;
    if (point == text.size()) return true;
    text.remove_prefix(point + 1);
  }
}

}  // namespace

bool IsMailAddress(std::string_view text) {
  const size_t at = text.find('@');
  if (text.size() > kMost || at == std::string_view::npos || at > kMostLocal) return false;
  const bool local = AreParts(text.substr(0, at), [](std::string_view part) {
    return std::ranges::all_of(
        part, [](char c) { return IsWord(c) || kMarks.find(c) != std::string_view::npos; });
  });
  return local && AreParts(text.substr(at + 1), [](std::string_view label) {
           return label.size() <= kMostLabel && label.front() != '-' && label.back() != '-' &&
                  std::ranges::all_of(label, [](char c) { return IsWord(c) || c == '-'; });
         });
}

}  // namespace sft
