#include "server/store/database_check.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/io/file.h"

namespace sft::server {
namespace {

// The first column of a statement's first row.
absl::StatusOr<std::string> Ask(Database& db, const char* sql) {
  SFT_ASSIGN_OR_RETURN(Statement ask, db.Prepare(sql));
  const absl::StatusOr<bool> row = ask.Step();
  if (!row.ok()) return DataLoss(std::string(Message(row.status())));
  return *row ? ask.Text(0) : std::string();
}

absl::StatusOr<DatabaseState> Look(Database& db, const std::string& path, CheckDepth depth) {
  DatabaseState state;
  SFT_ASSIGN_OR_RETURN(state.bytes, io::FileSize(path));
  const absl::StatusOr<int64_t> schema = db.UserVersion();
  if (!schema.ok()) {
    return DataLoss(fmt::format("{} is damaged: {}", path, Message(schema.status())));
  }
  state.schema = *schema;
  SFT_ASSIGN_OR_RETURN(state.mark, ReadMark(db, path));
  const absl::StatusOr<std::string> found =
      Ask(db, depth == CheckDepth::kAll ? "PRAGMA integrity_check(1)" : "PRAGMA quick_check(1)");
  if (found.ok() && *found == "ok") return state;
  return DataLoss(fmt::format("{} is damaged: {}", path,
                              found.ok() ? *found : std::string(Message(found.status()))));
}

}  // namespace

absl::StatusOr<DatabaseState> CheckDatabaseFile(const std::string& path, CheckDepth depth) {
  if (!io::Exists(path)) return NotFound(fmt::format("{} does not exist", path));
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Database> db, Database::OpenToLook(path));
  return Look(*db, path, depth);
}

absl::Status CheckBeforeStart(const std::string& path, bool accept_copy) {
  const absl::StatusOr<DatabaseState> state = CheckDatabaseFile(path, CheckDepth::kPages);
  if (absl::IsNotFound(state.status())) return absl::OkStatus();
  if (!state.ok()) {
    return Annotate(state.status(),
                    "restore the last backup (sft-server --restore) or look with "
                    "`sft-server check`");
  }
  const bool is_copy = state->mark == DatabaseMark::kInUseElsewhere;
  if (is_copy && !accept_copy) return IsACopy(path);
  // Of a version that did not say where it lies: once.
  if (!is_copy && state->mark != DatabaseMark::kNone) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(CheckDatabaseFile(path, CheckDepth::kAll).status());
  if (is_copy) {
    spdlog::warn(
        "{} is a copy of a database in use: its rows and indexes fit together, and what "
        "was acknowledged last before the copy may be missing",
        path);
  }
  return absl::OkStatus();
}

}  // namespace sft::server
