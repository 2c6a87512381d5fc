#include "server/door/page_token.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace sft::server {

absl::StatusOr<int> PageSize(int32_t asked, int max) {
  if (asked < 0) return InvalidArgument(fmt::format("page_size {}: must not be negative", asked));
  return asked == 0 ? kDefaultPageSize : std::min(asked, max);
}

std::string ToToken(int64_t position) {
  return position == 0 ? std::string() : fmt::format("p{:x}", position);
}

absl::StatusOr<int64_t> FromToken(const std::string& token) {
  if (token.empty()) return 0;
  int64_t position = 0;
  const char* const end = token.data() + token.size();
  const auto [stop, error] = std::from_chars(token.data() + 1, end, position, 16);
  if (token[0] != 'p' || error != std::errc() || stop != end || position < 0) {
    return InvalidArgument("page_token: pass on the token of the page before, unchanged");
  }
  return position;
}

}  // namespace sft::server
