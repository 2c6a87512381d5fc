#include "server/store/audit.h"

namespace sft::server {
namespace store {

absl::Status InsertAudit(Database& db, const AuditRecord& record, int64_t keep) {
  SFT_ASSIGN_OR_RETURN(Statement insert,
                       db.Prepare("INSERT INTO audit (time_us, principal, token, peer, method, "
                                  "object, outcome, calls) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
  insert.Bind(record.time_us).Bind(record.principal).Bind(record.token).Bind(record.peer);
  insert.Bind(record.method).Bind(record.object).Bind(record.outcome).Bind(record.calls);
  SFT_RETURN_IF_ERROR(insert.Run());
  const int64_t sequence = db.last_insert_rowid();
  // Now and then, so many at once as have come since.
  constexpr int64_t kPeriod = 256;
  if (sequence % kPeriod != 0) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(Statement trim, db.Prepare("DELETE FROM audit WHERE sequence <= ?"));
  return trim.Bind(sequence - keep).Run();
}

absl::Status CountAudit(Database& db, int64_t sequence, int64_t calls) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE audit SET calls = ? WHERE sequence = ?"));
  return update.Bind(calls).Bind(sequence).Run();
}

absl::StatusOr<std::vector<AuditRecord>> ListAudit(Database& db, const AuditFilter& filter) {
  // Two texts, so that each finds its index.
  const char* const sql =
      filter.principal.empty()
          ? "SELECT sequence, time_us, principal, token, peer, method, object, outcome, calls FROM "
            "audit WHERE sequence < ? AND time_us >= ? ORDER BY sequence DESC LIMIT ?"
          : "SELECT sequence, time_us, principal, token, peer, method, object, outcome, calls FROM "
            "audit WHERE sequence < ? AND time_us >= ? AND principal = ? ORDER BY sequence DESC "
            "LIMIT ?";
  SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare(sql));
  list.Bind(filter.before_sequence > 0 ? filter.before_sequence : INT64_MAX).Bind(filter.since_us);
  if (!filter.principal.empty()) list.Bind(filter.principal);
  list.Bind(std::clamp(filter.limit, 1, 500));
  std::vector<AuditRecord> records;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return records;
    records.push_back({list.Int(0), list.Int(1), list.Text(2), list.Text(3), list.Text(4),
                       list.Text(5), list.Text(6), static_cast<int>(list.Int(7)), list.Int(8)});
  }
}

}  // namespace store
}  // namespace sft::server
