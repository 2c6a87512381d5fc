#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace sft::spec {

// The part of the training rows that data.val_split holds out.
struct HoldOut {
  double share = 0;  // of the groups; 0: not by share
  int64_t rows = 0;  // 0: not by count
  bool on() const { return share > 0 || rows > 0; }
};

// Parses "0.05", "500 rows" or "500"; "" and "0" hold nothing out. InvalidArgument says what would
// be right.
absl::StatusOr<HoldOut> ParseHoldOut(std::string_view text);

}  // namespace sft::spec
