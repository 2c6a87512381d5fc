#pragma once

#include <string>
#include <vector>

#include "server/database/sqlite.h"

// Figures that are counted over the life of the database: each is added to in the transaction of
// what it counts, so that it neither misses nor repeats anything, and survives restarts. As jobs.h.

namespace sft::server::store {

// What is counted, and by which two labels.
enum class Tally {
  kJobsEnded,          // verdict, domain
  kAttemptsRestarted,  // verdict
  kWaits,              // class, number of the bucket of kWaitBounds
  kWaitSeconds,        // class
  kGpuSeconds,         // project; of slots that were freed
  kBackup,             // the time of the last one
  kWebhookDeliveries,  // result
};

// Upper bounds, in seconds, of the waits from submit to first placement.
inline constexpr double kWaitBounds[] = {1,    10,   60,    300,   900,   1800,
                                         3600, 7200, 14400, 43200, 86400, 604800};

// One figure with its labels.
struct TallyRecord {
  Tally tally{};
  std::string label, second;
  double value = 0;
};

absl::Status AddTally(Database& db, const TallyRecord& added);
// The newest value takes the place of the last one.
absl::Status SetTally(Database& db, const TallyRecord& set);
// A job of the priority class waited so long for its first placement.
absl::Status CountWait(Database& db, const std::string& priority_class, int64_t waited_us);
// In the order of the enum and of their labels.
absl::StatusOr<std::vector<TallyRecord>> AllTallies(Database& db);

}  // namespace sft::server::store
