#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/store/sqlite.h"

namespace sft::server {

// Who changed what: one call that changed something, or calls of one kind that were refused or
// failed within a minute.
struct AuditRecord {
  int64_t sequence = 0;
  int64_t time_us = 0;
  std::string principal;  // Principal::Title
  std::string token;      // id
  std::string peer;
  std::string method;
  std::string object;
  int outcome = 0;  // gRPC status code
  int64_t calls = 1;
};

// The call that this thread serves, while it serves one that changes something. The first write to
// the store that succeeds on the thread takes the record into its own transaction: what is changed
// has its row, and costs no second commit.
class AuditScope {
 public:
  // Replaces what was there.
  static void Begin(AuditRecord record);
  // What the call turned out to be about; nothing outside a scope.
  static void SetObject(const std::string& object);
  // Ends the scope. Null: there was none.
  struct Ended {
    AuditRecord record;
    bool written = false;
  };
  static std::unique_ptr<Ended> End();

  // For Store: the record to write; null: none is left to write.
  static AuditRecord* Pending();
  static void MarkWritten();
};

namespace store {

// The newest so many rows are kept.
inline constexpr int64_t kMaxAuditRows = 1'000'000;

absl::Status InsertAudit(Database& db, const AuditRecord& record, int64_t keep = kMaxAuditRows);
// So many calls are in a row that is there.
absl::Status CountAudit(Database& db, int64_t sequence, int64_t calls);

// Which rows a listing shows.
struct AuditFilter {
  std::string principal;  // empty: all
  int64_t since_us = 0;
  int64_t before_sequence = 0;  // 0: from the newest
  int limit = 50;
};
// Newest first.
absl::StatusOr<std::vector<AuditRecord>> ListAudit(Database& db, const AuditFilter& filter);

}  // namespace store
}  // namespace sft::server
