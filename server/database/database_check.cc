#include "server/database/database_check.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <optional>

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

// What a start after a kill looks at in full: 13 s for a GB, where the pages alone take 1.3 s.
constexpr int64_t kSoonLookedAt = 500'000'000;

// The pages alone of what was closed in order; all of what was not. Of a large file that lies where
// it was the pages alone, too: a server that was killed must be back soon.
CheckDepth DepthOf(const DatabaseState& state) {
  const bool large = state.bytes > kSoonLookedAt;
  const bool pages =
      state.mark == DatabaseMark::kClosed || (large && state.mark == DatabaseMark::kInUseHere);
  return pages ? CheckDepth::kPages : CheckDepth::kAll;
}

absl::StatusOr<DatabaseState> Look(const std::string& path, bool has_log,
                                   std::optional<CheckDepth> depth) {
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Database> db, Database::OpenToLook(path));
  DatabaseState state;
  SFT_ASSIGN_OR_RETURN(state.bytes, io::FileSize(path));
  const absl::StatusOr<int64_t> schema = db->UserVersion();
  if (!schema.ok()) {
    return DataLoss(fmt::format("{} is damaged: {}", path, Message(schema.status())));
  }
  state.schema = *schema;
  SFT_ASSIGN_OR_RETURN(state.mark, ReadMark(*db, path, has_log));
  const bool all = depth.value_or(DepthOf(state)) == CheckDepth::kAll;
  const absl::StatusOr<std::string> found =
      Ask(*db, all ? "PRAGMA integrity_check(1)" : "PRAGMA quick_check(1)");
  if (found.ok() && *found == "ok") return state;
  return DataLoss(fmt::format("{} is damaged: {}", path,
                              found.ok() ? *found : std::string(Message(found.status()))));
}

absl::StatusOr<DatabaseState> LookAt(const std::string& path, std::optional<CheckDepth> depth) {
  if (!io::Exists(path)) return NotFound(fmt::format("{} does not exist", path));
  const bool has_log = io::Exists(path + "-wal");
  absl::StatusOr<DatabaseState> state = Look(path, has_log, depth);
  // A server that began meanwhile has changed pages under a look that took them for settled.
  const bool began = !has_log && io::Exists(path + "-wal");
  return state.ok() || !began ? state : Look(path, true, depth);
}

}  // namespace

absl::StatusOr<DatabaseState> CheckDatabaseFile(const std::string& path, CheckDepth depth) {
  return LookAt(path, depth);
}

absl::Status CheckBeforeStart(const std::string& path, bool accept_copy) {
  const absl::StatusOr<DatabaseState> state = LookAt(path, std::nullopt);
  if (absl::IsNotFound(state.status())) return absl::OkStatus();
  if (!state.ok()) {
    return Annotate(state.status(),
                    "restore the last backup (sft-server --restore) or look with "
                    "`sft-server check`");
  }
  if (IsCopy(state->mark) && !accept_copy) return RefuseCopy(path, state->mark);
  if (IsCopy(state->mark)) {
    spdlog::warn(
        "{} is a copy of a database in use: its rows and indexes fit together, and what "
        "was acknowledged last before the copy may be missing",
        path);
  } else if (state->mark == DatabaseMark::kInUseMaybeHere) {
    spdlog::warn(
        "{} was not closed in order, and the file system does not tell all of where it lay then "
        "and lies now: it is taken for the same file; its rows and indexes fit together",
        path);
  }
  return absl::OkStatus();
}

}  // namespace sft::server
