#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace sft::server {

inline constexpr int kDefaultPageSize = 50;

// Rows of a page: the default for 0, at most `max`; INVALID_ARGUMENT for a negative size.
absl::StatusOr<int> PageSize(int32_t asked, int max);

// A position as an opaque token; 0 is the empty token.
std::string ToToken(int64_t position);
absl::StatusOr<int64_t> FromToken(const std::string& token);

}  // namespace sft::server
