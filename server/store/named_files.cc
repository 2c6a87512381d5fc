#include "server/store/named_files.h"

#include <fmt/format.h>

#include <limits>

#include "server/store/job_lists.h"

namespace sft::server::store {
namespace {

#define SFT_FILE_SELECT                                                                        \
  "SELECT f.sequence, f.id, f.project, f.owner, f.sha256, d.size, d.rows, f.name, f.purpose, " \
  "f.created_us FROM files f JOIN datasets d ON d.sha256 = f.sha256 WHERE "

FileRecord ReadFile(const Statement& row) {
  return {row.Int(0), row.Text(1), row.Text(2), row.Text(3), row.Text(4),
          row.Int(5), row.Int(6),  row.Text(7), row.Text(8), row.Int(9)};
}

}  // namespace

absl::Status InsertFile(Database& db, FileRecord& file) {
  SFT_ASSIGN_OR_RETURN(Statement insert,
                       db.Prepare("INSERT INTO files (id, project, owner, sha256, name, purpose, "
                                  "created_us) VALUES (?, ?, ?, ?, ?, ?, ?)"));
  insert.Bind(file.id).Bind(file.project).Bind(file.owner).Bind(file.sha256);
  SFT_RETURN_IF_ERROR(insert.Bind(file.name).Bind(file.purpose).Bind(file.created_us).Run());
  file.sequence = db.last_insert_rowid();
  return absl::OkStatus();
}

absl::Status NoFile(const std::string& id) {
  return NotFound(fmt::format("no file \"{}\"", id.substr(0, 80)));
}

absl::StatusOr<FileRecord> GetFile(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare(SFT_FILE_SELECT "f.id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  if (!row) return NoFile(id);
  return ReadFile(get);
}

absl::StatusOr<std::optional<FileRecord>> FindSameFile(Database& db, const FileRecord& file,
                                                       int64_t since_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement get, db.Prepare(SFT_FILE_SELECT
                                "f.sha256 = ? AND f.project = ? AND f.owner = ? AND f.name = ? AND "
                                "f.purpose = ? AND f.created_us >= ? ORDER BY f.sequence DESC "
                                "LIMIT 1"));
  get.Bind(file.sha256).Bind(file.project).Bind(file.owner).Bind(file.name);
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(file.purpose).Bind(since_us).Step());
  if (!row) return std::optional<FileRecord>();
  return std::optional<FileRecord>(ReadFile(get));
}

absl::StatusOr<std::vector<FileRecord>> ListFiles(Database& db, const FileFilter& filter) {
  // A project is looked up in an index where it is asked for.
  const std::string sql = fmt::format(
      SFT_FILE_SELECT
      "{}f.sequence {} ? AND (? = '' OR f.project IN (SELECT value FROM json_each(?))) AND (? = '' "
      "OR f.purpose = ?) ORDER BY f.sequence{} LIMIT ?",
      filter.project.empty() ? "" : "f.project = ? AND ", filter.oldest_first ? ">" : "<",
      filter.oldest_first ? "" : " DESC");
  SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare(sql.c_str()));
  if (!filter.project.empty()) list.Bind(filter.project);
  const bool newest = !filter.oldest_first && filter.after == 0;
  list.Bind(newest ? std::numeric_limits<int64_t>::max() : filter.after);
  const std::string visible = VisibleJson(filter.visible);
  list.Bind(visible).Bind(visible).Bind(filter.purpose).Bind(filter.purpose).Bind(filter.limit);
  std::vector<FileRecord> files;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return files;
    files.push_back(ReadFile(list));
  }
}

absl::Status DeleteFile(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement drop, db.Prepare("DELETE FROM files WHERE id = ?"));
  return drop.Bind(id).Run();
}

absl::StatusOr<int64_t> CountFilesOf(Database& db, const std::string& project,
                                     const std::string& sha256) {
  SFT_ASSIGN_OR_RETURN(Statement count,
                       db.Prepare("SELECT count(*) FROM files WHERE sha256 = ? AND project = ?"));
  SFT_RETURN_IF_ERROR(count.Bind(sha256).Bind(project).Step().status());
  return count.Int(0);
}

}  // namespace sft::server::store
