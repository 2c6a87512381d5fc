#include "server/store/tallies.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace sft::server::store {
namespace {

// As stored, by the number of the enum.
constexpr std::array kNames = {"jobs_ended",        "attempts_restarted", "waits",
                               "wait_seconds",      "gpu_seconds",        "backup",
                               "webhook_deliveries"};
static_assert(kNames.size() == static_cast<size_t>(Tally::kWebhookDeliveries) + 1);

const char* NameOf(Tally tally) { return kNames.at(static_cast<size_t>(tally)); }

absl::Status Put(Database& db, const char* sql, const TallyRecord& record) {
  SFT_ASSIGN_OR_RETURN(Statement put, db.Prepare(sql));
  put.Bind(NameOf(record.tally)).Bind(record.label).Bind(record.second).Bind(record.value);
  return put.Run();
}

}  // namespace

absl::Status AddTally(Database& db, const TallyRecord& added) {
  return Put(db,
             "INSERT INTO tallies (name, label, second, value) VALUES (?, ?, ?, ?) ON CONFLICT DO "
             "UPDATE SET value = value + excluded.value",
             added);
}

absl::Status SetTally(Database& db, const TallyRecord& set) {
  return Put(db,
             "INSERT INTO tallies (name, label, second, value) VALUES (?, ?, ?, ?) ON CONFLICT DO "
             "UPDATE SET value = excluded.value",
             set);
}

absl::Status CountWait(Database& db, const std::string& priority_class, int64_t waited_us) {
  const double seconds = static_cast<double>(std::max<int64_t>(waited_us, 0)) / 1e6;
  const auto bucket = std::ranges::lower_bound(kWaitBounds, seconds) - std::begin(kWaitBounds);
  SFT_RETURN_IF_ERROR(AddTally(db, {Tally::kWaits, priority_class, std::to_string(bucket), 1}));
  return AddTally(db, {Tally::kWaitSeconds, priority_class, "", seconds});
}

absl::StatusOr<std::vector<TallyRecord>> AllTallies(Database& db) {
  std::vector<TallyRecord> records;
  for (size_t i = 0; i < kNames.size(); ++i) {
    SFT_ASSIGN_OR_RETURN(Statement list,
                         db.Prepare("SELECT label, second, value FROM tallies WHERE name = ? ORDER "
                                    "BY label, second LIMIT 10000"));
    list.Bind(kNames.at(i));
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      records.push_back({static_cast<Tally>(i), list.Text(0), list.Text(1), list.Real(2)});
    }
  }
  return records;
}

}  // namespace sft::server::store
