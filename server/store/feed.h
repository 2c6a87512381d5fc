#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"

// The feed: what happened to jobs, nodes and what is stored, in one sequence. As jobs.h.

namespace sft::server::store {

// The newest events are kept, this many and a part of kFeedTrimmed.
inline constexpr int64_t kFeedKept = 100'000, kFeedTrimmed = 1'000;

// An event of the feed.
struct FeedEvent {
  int64_t sequence = 0;
  int64_t time_us = 0;
  // Whose members alone see it; empty: everybody.
  std::string project;
  // The job that it is about, with its sequence there; empty: none.
  std::string job_id;
  int64_t job_sequence = 0;
  // What it is about where that is no job: "nodes/a", "server".
  std::string subject;
  std::string type;
  std::string message;
  int attempt = 0;
};

// An event of a job that AddEvent (jobs.h) has stored: its text is there.
absl::Status FeedJobEvent(Database& db, const std::string& job_id, int64_t job_sequence,
                          int64_t time_us);
// Any other, as it is but for its sequence.
absl::Status FeedOther(Database& db, const FeedEvent& event);

// Which events are read.
struct FeedFilter {
  int64_t after = 0;    // events with a later sequence
  std::string project;  // of this one alone; empty: of all
  // Projects whose events may be seen; absent: all.
  std::optional<std::vector<std::string>> visible;
  int limit = 50;
};
// What was read.
struct FeedPage {
  std::vector<FeedEvent> events;
  int64_t last = 0;   // read up to here, whether there was something to see or not
  bool more = false;  // there are later ones to see
  // The first sequence that was asked for and is not kept any more, and the last; 0: there is none.
  int64_t gap_first = 0, gap_last = 0;
};
// OUT_OF_RANGE where `after` is beyond the last event that ever was.
absl::StatusOr<FeedPage> ReadFeed(Database& db, const FeedFilter& filter);
// The sequence of the last event; 0: there was none.
absl::StatusOr<int64_t> LastInFeed(Database& db);

}  // namespace sft::server::store
