#include "server/database/online_copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>

#include "common/io/file.h"
#include "server/database/database_mark.h"

namespace sft::server {
namespace {

absl::Status CopyStatus(sqlite3* db, int code, std::string_view what) {
  const std::string text = fmt::format("backup: {}: {}", what, sqlite3_errmsg(db));
  if ((code & 0xff) == SQLITE_FULL) return ResourceExhausted(text + " (free space on its disk)");
  if ((code & 0xff) == SQLITE_CANTOPEN) return PermissionDenied(text);
  return Unavailable(text);
}

// SQLite would make it readable for everybody, and it has what users submit.
absl::Status MakeOwnFile(const std::string& path) {
  const io::UniqueFd made(
      ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, io::kPrivateMode));
  if (made.valid()) return absl::OkStatus();
  return errno == EEXIST ? AlreadyExists(path + " exists")
                         : ErrnoStatus("cannot create " + path, errno);
}

}  // namespace

absl::StatusOr<std::unique_ptr<OnlineCopy>> OnlineCopy::Start(Database& from,
                                                              const std::string& path) {
  SFT_RETURN_IF_ERROR(MakeOwnFile(path));
  sqlite3* to = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<OnlineCopy> copy(new OnlineCopy(to, nullptr));
  if (code != SQLITE_OK) return CopyStatus(to, code, "cannot create " + path);
  // A copy that was not finished is of no use: nothing of it need survive a crash.
  sqlite3_exec(to, "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF", nullptr, nullptr,
               nullptr);
  copy->backup_ = sqlite3_backup_init(to, "main", from.handle(), "main");
  if (copy->backup_ == nullptr) return CopyStatus(to, sqlite3_errcode(to), "cannot start");
  return copy;
}

OnlineCopy::~OnlineCopy() {
  sqlite3_backup_finish(backup_);
  sqlite3_close(to_);
}

absl::StatusOr<bool> OnlineCopy::Step(int pages) {
  const int code = sqlite3_backup_step(backup_, pages);
  if (code == SQLITE_OK) return false;
  if (code == SQLITE_DONE) return true;
  return CopyStatus(to_, code, "cannot copy");
}

int64_t OnlineCopy::pages_done() const { return pages_total() - sqlite3_backup_remaining(backup_); }
int64_t OnlineCopy::pages_total() const { return sqlite3_backup_pagecount(backup_); }

absl::StatusOr<int> FinishCopy(const std::string& path) {
  int schema = 0;
  {
    SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Database> db, Database::OpenCopy(path));
    SFT_ASSIGN_OR_RETURN(Statement check, db->Prepare("PRAGMA integrity_check(1)"));
    SFT_ASSIGN_OR_RETURN(const bool row, check.Step());
    if (!row || check.Text(0) != "ok") {
      return DataLoss(fmt::format("{} is damaged: {}", path, row ? check.Text(0) : "no answer"));
    }
    SFT_RETURN_IF_ERROR(MarkClosed(*db));
    SFT_ASSIGN_OR_RETURN(const int64_t version, db->UserVersion());
    schema = static_cast<int>(version);
  }
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  if (::fsync(fd.get()) != 0) return ErrnoStatus("cannot fsync " + path, errno);
  return schema;
}

}  // namespace sft::server
