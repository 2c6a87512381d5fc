#include "common/spec/hold_out.h"

#include <fmt/format.h>

#include <charconv>

namespace sft::spec {
namespace {

template <typename T>
bool ParseWhole(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

}  // namespace

absl::StatusOr<HoldOut> ParseHoldOut(std::string_view text) {
  HoldOut hold_out;
  if (text.empty()) return hold_out;
  std::string_view count = text;
  for (const std::string_view word : {" rows", " row"}) {
    if (count.ends_with(word)) count.remove_suffix(word.size());
  }
  if (ParseWhole(count, hold_out.rows) && hold_out.rows >= (count == text ? 0 : 1)) return hold_out;
  hold_out.rows = 0;
  if (ParseWhole(text, hold_out.share) && hold_out.share >= 0 && hold_out.share < 1)
    return hold_out;
  return InvalidArgument(fmt::format(
      "must be a share of the rows below 1, such as 0.05, or a number of them, such as \"500 "
      "rows\", but is \"{}\"",
      text));
}

}  // namespace sft::spec
