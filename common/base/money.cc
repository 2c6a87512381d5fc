#include "common/base/money.h"

#include <fmt/format.h>

#include <algorithm>

namespace sft {
namespace {

constexpr size_t kMostDigits = 6;

std::string With(std::string text, std::string_view currency) {
  return currency.empty() ? text : fmt::format("{} {}", text, currency);
}

}  // namespace

std::string MoneyText(int64_t micros, std::string_view currency) {
  constexpr int64_t kHundredth = kMoneyUnit / 100;
  if (micros > 0 && micros < kHundredth) return With("< 0.01", currency);
  const int64_t hundredths = micros / kHundredth + (micros % kHundredth >= kHundredth / 2 ? 1 : 0);
  return With(fmt::format("{}.{:02}", hundredths / 100, hundredths % 100), currency);
}

std::string ExactMoneyText(int64_t micros, std::string_view currency) {
  std::string text = fmt::format("{}.{:06}", micros / kMoneyUnit, micros % kMoneyUnit);
  const size_t least = text.size() - (kMostDigits - 2);
  text.resize(std::max(least, text.find_last_not_of('0') + 1));
  return With(std::move(text), currency);
}

std::optional<int64_t> ParseMoney(std::string_view text, int64_t most) {
  const size_t point = text.find('.');
  const size_t digits = point == std::string_view::npos ? 0 : text.size() - point - 1;
  if (point == 0 || text.empty() || digits > kMostDigits) return std::nullopt;
  if (point != std::string_view::npos && digits == 0) return std::nullopt;
  int64_t micros = 0;
  const auto add = [&](int digit) {
    if (micros > (most - digit) / 10) return false;
    micros = micros * 10 + digit;
    return true;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == point) continue;
    if (text[i] < '0' || text[i] > '9' || !add(text[i] - '0')) return std::nullopt;
  }
  for (size_t i = digits; i < kMostDigits; ++i) {
    if (!add(0)) return std::nullopt;
  }
  return micros;
}

}  // namespace sft
