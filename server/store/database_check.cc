#include "server/store/database_check.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include "common/io/file.h"

namespace sft::server {
namespace {

// The first column of a statement's first row.
absl::StatusOr<std::string> Ask(sqlite3* db, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  int code = sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
  if (code == SQLITE_OK) code = sqlite3_step(statement);
  std::string text;
  if (code == SQLITE_ROW && sqlite3_column_text(statement, 0) != nullptr) {
    text = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
  }
  sqlite3_finalize(statement);
  if (code == SQLITE_ROW) return text;
  return DataLoss(fmt::format("{}: {}", sql, sqlite3_errmsg(db)));
}

absl::StatusOr<DatabaseState> Look(sqlite3* db, const std::string& path) {
  sqlite3_busy_timeout(db, 5000);
  DatabaseState state;
  SFT_ASSIGN_OR_RETURN(state.bytes, io::FileSize(path));
  SFT_ASSIGN_OR_RETURN(const std::string version, Ask(db, "PRAGMA user_version"));
  state.schema = std::strtoll(version.c_str(), nullptr, 10);
  SFT_ASSIGN_OR_RETURN(const std::string found, Ask(db, "PRAGMA quick_check(1)"));
  if (found != "ok") return DataLoss(fmt::format("{} is damaged: {}", path, found));
  return state;
}

}  // namespace

absl::StatusOr<DatabaseState> CheckDatabaseFile(const std::string& path) {
  if (!io::Exists(path)) return NotFound(fmt::format("{} does not exist", path));
  sqlite3* db = nullptr;
  // A reader never writes to the file, nor moves the log into it while a server does.
  const int code = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READONLY, nullptr);
  absl::StatusOr<DatabaseState> state =
      code == SQLITE_OK ? Look(db, path)
                        : DataLoss(fmt::format("cannot open {}: {}", path, sqlite3_errmsg(db)));
  sqlite3_close(db);
  return state;
}

}  // namespace sft::server
