#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <vector>

#include "common/io/file.h"
#include "server/database/migration_lists.h"
#include "server/database/online_copy.h"

namespace sft::server {
namespace {

absl::Status Apply(Database& db, const Migration& migration) {
  SFT_RETURN_IF_ERROR(db.Execute("BEGIN IMMEDIATE"));
  absl::Status status = db.Execute(migration.sql);
  if (status.ok()) {
    status = db.Execute(fmt::format("PRAGMA user_version = {}", migration.version).c_str());
  }
  if (status.ok()) status = db.Execute("COMMIT");
  if (!status.ok()) {
    const absl::Status undone = db.Execute("ROLLBACK");
    return Annotate(status, fmt::format("migration {}{}", migration.version,
                                        undone.ok() ? "" : " (and its rollback failed)"));
  }
  return absl::OkStatus();
}

// The database as it is, in a file that is whole or not there.
absl::Status SaveBefore(Database& db, const std::string& path) {
  if (io::Exists(path)) return absl::OkStatus();
  const std::string partial = path + ".partial";
  SFT_RETURN_IF_ERROR(io::RemoveAll(partial));
  {
    SFT_ASSIGN_OR_RETURN(const std::unique_ptr<OnlineCopy> copy, OnlineCopy::Start(db, partial));
    SFT_RETURN_IF_ERROR(copy->Step(-1).status());
  }
  SFT_RETURN_IF_ERROR(FinishCopy(partial).status());
  SFT_RETURN_IF_ERROR(io::RenameDurably(partial, path));
  spdlog::info("the database as it was before its migration is kept in {}", path);
  return absl::OkStatus();
}

}  // namespace

std::span<const Migration> Migrations() {
  static const std::vector<Migration> all = [] {
    std::vector<Migration> list(MigrationsTo22().begin(), MigrationsTo22().end());
    list.insert(list.end(), MigrationsFrom23().begin(), MigrationsFrom23().end());
    return list;
  }();
  return all;
}

absl::Status Migrate(Database& db, const std::string& backup) {
  SFT_ASSIGN_OR_RETURN(const int64_t version, db.UserVersion());
  const int newest = Migrations().back().version;
  if (version > newest) {
    return FailedPrecondition(fmt::format(
        "the database has schema {}, this server knows up to {}: it was written by a newer "
        "server; start that one, or give another --data-dir",
        version, newest));
  }
  if (version > 0 && version < newest) {
    const absl::Status saved = SaveBefore(db, fmt::format("{}.schema-{}", backup, version));
    if (!saved.ok()) {
      return Annotate(saved, "no migration without a copy of the database from before it");
    }
  }
  for (const Migration& migration : Migrations()) {
    if (migration.version > version) SFT_RETURN_IF_ERROR(Apply(db, migration));
  }
  return db.Execute("PRAGMA optimize");
}

}  // namespace sft::server
