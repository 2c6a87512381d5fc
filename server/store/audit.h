#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/database/sqlite.h"

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

// The row of one call that changes something. Whoever makes the change passes it to Store::Write,
// which writes it in the transaction of the change. Of one thread at a time.
struct AuditRow {
  AuditRecord record;
  bool written = false;
};

// On whose behalf a change is made.
struct Actor {
  Actor() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a name alone is an actor without an audit row
  Actor(std::string name_in, AuditRow* audit_in = nullptr)
      : name(std::move(name_in)), audit(audit_in) {}
  Actor(const char* name_in) : name(name_in) {}  // NOLINT(google-explicit-constructor)

  std::string name;           // Principal::Title; empty: the server itself
  AuditRow* audit = nullptr;  // null: the change has no row
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
