#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sft {

// Amounts of money are in millionths of a currency, which is a label: "EUR".
inline constexpr int64_t kMoneyUnit = 1'000'000;

// "1234.50 EUR", rounded to two digits behind the point; what is not 0 but less than a hundredth is
// "< 0.01 EUR". Without a currency the number alone.
std::string MoneyText(int64_t micros, std::string_view currency);
// As it is, with at least two digits behind the point: "0.0125 EUR".
std::string ExactMoneyText(int64_t micros, std::string_view currency);

// "2", "2.10", "0.000001": digits with at most six behind a point, up to `most` micros; nullopt for
// any other text.
std::optional<int64_t> ParseMoney(std::string_view text, int64_t most);

}  // namespace sft
