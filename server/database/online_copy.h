#pragma once

#include <memory>
#include <string>

#include "server/database/sqlite.h"

struct sqlite3_backup;

namespace sft::server {

// A copy of a database, made page by page while it is written to (SQLite's online backup). What is
// committed between two steps is in the copy. Used on the thread that owns the connection, its end
// included.
class OnlineCopy {
 public:
  // `path` must not exist; only its owner may read it.
  static absl::StatusOr<std::unique_ptr<OnlineCopy>> Start(Database& from, const std::string& path);
  ~OnlineCopy();
  OnlineCopy(const OnlineCopy&) = delete;

  // Copies up to so many pages, -1 for all. True: the copy is whole, its bytes not yet synced.
  absl::StatusOr<bool> Step(int pages);
  int64_t pages_done() const;
  int64_t pages_total() const;

 private:
  OnlineCopy(sqlite3* to, sqlite3_backup* backup) : to_(to), backup_(backup) {}
  sqlite3* to_;
  sqlite3_backup* backup_;
};

// Makes a file of a copied database whole in itself (no write-ahead log beside it), checks every
// page and syncs it. Returns its schema's number. DATA_LOSS when it is damaged.
absl::StatusOr<int> FinishCopy(const std::string& path);

}  // namespace sft::server
