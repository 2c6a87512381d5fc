#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::server {

// What a page follows, and how far it has got: read from the feed's query and cursor
// (docs/rest.md).
struct FeedQuery {
  struct Log {
    int rank = 0;
    int attempt = 0;  // 0: the current or last one
    int64_t offset = 0;
  };
  // A list of which changes are told.
  struct List {
    std::optional<uint64_t> place;  // of the last change that was told; none: from now on
    bool lost = false;              // the cursor is of another life of the server
  };

  std::string job;  // empty: none
  std::optional<int64_t> metrics;
  std::vector<Log> logs;
  std::optional<List> jobs, nodes;
};

// Ranks whose logs one feed may follow.
inline constexpr size_t kMostFeedLogs = 16;

// `cursor` is the id of the last message that was received; empty: from where the query says.
// `life` names this life of the server. INVALID_ARGUMENT for what cannot be read.
absl::StatusOr<FeedQuery> ReadFeedQuery(std::string_view query, std::string_view cursor,
                                        std::string_view life);
// The cursor of where it is.
std::string CursorOf(const FeedQuery& feed, std::string_view life);

}  // namespace sft::server
