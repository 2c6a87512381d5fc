#pragma once

#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// What happened in a span of time, a page at a time in the order of time: no page takes long. As
// jobs.h.

namespace sft::server::store {

// Where the next page begins.
struct HistoryCursor {
  int64_t time_us = 0;
  std::string key;  // of the last row at that time
};

// A slot that was held, for a while or still.
struct HeldSlot {
  std::string node, gpu_type, project, owner;
  std::string asked_type;  // that its job asked for: what it is priced by
  int64_t begin_us = 0;
  int64_t end_us = 0;  // 0: still held; of a removed node: when it was last heard of
};
// Those that were freed after the cursor; moves it. Fewer than `limit`: that was all.
absl::StatusOr<std::vector<HeldSlot>> FreedSlots(Database& db, HistoryCursor& cursor, int limit);
// Those that are held now; the cursor's key is the place of the last one.
absl::StatusOr<std::vector<HeldSlot>> HeldSlots(Database& db, HistoryCursor& cursor, int limit);

// A job that ended.
struct EndedJob {
  std::string project, owner;
  JobState state = JobState::kSucceeded;
};
absl::StatusOr<std::vector<EndedJob>> EndedJobs(Database& db, HistoryCursor& cursor, int limit);

// The part of an attempt that ended, on one of its nodes.
struct EndedPart {
  std::string project, owner, node;
  AttemptState state = AttemptState::kSucceeded;
  bool first = true;  // the attempt's first node: counted once by that
  Verdict verdict;
};
absl::StatusOr<std::vector<EndedPart>> EndedParts(Database& db, HistoryCursor& cursor, int limit);

// A job's first placement.
struct FirstPlacement {
  std::string project, owner;
  int64_t waited_us = 0;
};
absl::StatusOr<std::vector<FirstPlacement>> FirstPlacements(Database& db, HistoryCursor& cursor,
                                                            int limit);

}  // namespace sft::server::store
