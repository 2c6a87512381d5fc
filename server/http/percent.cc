#include "server/http/percent.h"

#include <algorithm>

#include "server/http/http_request.h"

namespace sft::server {
namespace {

constexpr size_t kMostNames = 100;

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Takes what is before the next `end`, and the `end`.
std::string_view TakePart(std::string_view& text, char end) {
  const size_t at = text.find(end);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return part;
}

}  // namespace

std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? DigitOf(text[i + 1]) : -1;
    const int low = high < 0 ? -1 : DigitOf(text[i + 2]);
    if (low < 0 || (high == 0 && low == 0)) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

bool IsPlainPath(std::string_view path) {
  const std::optional<std::string> decoded = PercentDecoded(path);
  if (!decoded.has_value()) return false;
  std::string_view rest = *decoded;
  while (!rest.empty()) {
    const std::string_view segment = TakePart(rest, '/');
    if (segment == "." || segment == "..") return false;
  }
  return true;
}

std::optional<std::vector<std::pair<std::string, std::string>>> ReadQuery(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> values;
  while (!query.empty()) {
    std::string part(TakePart(query, '&'));
    if (part.empty()) continue;
    std::ranges::replace(part, '+', ' ');
    std::string_view value = part;
    const std::string_view name = TakePart(value, '=');
    auto read_name = PercentDecoded(name), read_value = PercentDecoded(value);
    if (!read_name.has_value() || !read_value.has_value() || values.size() >= kMostNames) {
      return std::nullopt;
    }
    values.emplace_back(*std::move(read_name), *std::move(read_value));
  }
  return values;
}

std::optional<std::string> CookieIn(std::string_view field, std::string_view name) {
  std::optional<std::string> found;
  while (!field.empty()) {
    std::string_view value = Trimmed(TakePart(field, ';'));
    if (Trimmed(TakePart(value, '=')) != name) continue;
    if (found.has_value() && *found != Trimmed(value)) return std::nullopt;
    found = Trimmed(value);
  }
  return found;
}

}  // namespace sft::server
