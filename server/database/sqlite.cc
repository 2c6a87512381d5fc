#include "server/database/sqlite.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cerrno>
#include <utility>

#include "common/io/file.h"

namespace sft::server {
namespace {

absl::Status SqliteStatus(sqlite3* db, int code, std::string_view what) {
  const std::string message = fmt::format("database: {}: {}", what, sqlite3_errmsg(db));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return ResourceExhausted(message + " (free space on the disk of the data folder)");
    case SQLITE_CONSTRAINT:
      return AlreadyExists(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unavailable(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLoss(message);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return PermissionDenied(message);
    case SQLITE_IOERR:
      if (sqlite3_system_errno(db) == ENOSPC) {
        return ResourceExhausted(message + " (free space on the disk of the data folder)");
      }
      return Unavailable(message);
    default:
      return Internal(message);
  }
}

std::string UriOf(const std::string& path) {
  std::string uri = "file:";
  // Two at the beginning would name a host.
  const size_t begin = path.starts_with("//") ? path.find_first_not_of('/') - 1 : 0;
  for (const char c : path.substr(begin)) {
    if (c == '%' || c == '?' || c == '#') {
      uri += fmt::format("%{:02X}", c);
    } else {
      uri += c;
    }
  }
  return uri;
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : db_(other.db_),
      statement_(std::exchange(other.statement_, nullptr)),
      next_(other.next_),
      bind_error_(other.bind_error_) {}

Statement::~Statement() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

void Statement::Check(int code) {
  if (code != SQLITE_OK && bind_error_ == SQLITE_OK) bind_error_ = code;
}

Statement& Statement::Bind(int64_t value) {
  Check(sqlite3_bind_int64(statement_, next_++, value));
  return *this;
}

Statement& Statement::Bind(double value) {
  Check(sqlite3_bind_double(statement_, next_++, value));
  return *this;
}

Statement& Statement::Bind(std::string_view text) {
  Check(sqlite3_bind_text64(statement_, next_++, text.empty() ? "" : text.data(), text.size(),
                            SQLITE_TRANSIENT, SQLITE_UTF8));
  return *this;
}

Statement& Statement::BindBlob(std::string_view bytes) {
  Check(sqlite3_bind_blob64(statement_, next_++, bytes.empty() ? "" : bytes.data(), bytes.size(),
                            SQLITE_TRANSIENT));
  return *this;
}

Statement& Statement::BindNull() {
  Check(sqlite3_bind_null(statement_, next_++));
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  if (bind_error_ != SQLITE_OK) return SqliteStatus(db_, bind_error_, "bind");
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return SqliteStatus(db_, code, sqlite3_sql(statement_));
}

absl::Status Statement::Run() { return Step().status(); }

int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

double Statement::Real(int column) const { return sqlite3_column_double(statement_, column); }

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

std::string Statement::Text(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return size == 0 ? std::string() : std::string(static_cast<const char*>(bytes), size);
}

absl::StatusOr<std::unique_ptr<Database>> Database::OpenFile(const std::string& path, int flags) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_NOMUTEX | flags, nullptr);
  std::unique_ptr<Database> database(new Database(raw));
  if (code != SQLITE_OK) return SqliteStatus(raw, code, fmt::format("cannot open {}", path));
  sqlite3_extended_result_codes(raw, 1);
  return database;
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path) {
  // Or connections wait for each other at each piece of memory, to count it. Of no effect once the
  // library is in use.
  sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Database> database,
                       OpenFile(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA journal_mode = WAL"));
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA synchronous = FULL"));
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA foreign_keys = ON"));
  // Pages kept in memory: 64 MiB hold what the scheduler reads of some thousand waiting jobs. The
  // rest is the page cache of the machine.
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA cache_size = -65536"));
  // Pages of the log that a commit brings into the database once there are so many: of more, those
  // who wait for it would wait longer than for all else.
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA wal_autocheckpoint = 500"));
  // Or each savepoint of a large group makes a file.
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA temp_store = MEMORY"));
  return database;
}

absl::StatusOr<std::unique_ptr<Database>> Database::OpenReader(const std::string& path) {
  // What readers share is written, too, the index of the log.
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Database> database, OpenFile(path, SQLITE_OPEN_READWRITE));
  sqlite3_busy_timeout(database->db_, 5000);
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA query_only = ON"));
  // Only the connection that writes brings the log into the database: where two do, releases before
  // 3.51.3 can corrupt it (sqlite.org/wal.html#walresetbug).
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA wal_autocheckpoint = 0"));
  database->KeepLog();
  // Each commit empties what a reader keeps, at a cost that grows with what it may keep.
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA cache_size = -2048"));
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA temp_store = MEMORY"));
  return database;
}

absl::StatusOr<std::unique_ptr<Database>> Database::OpenToLook(const std::string& path) {
  int flags = SQLITE_OPEN_READONLY;
  std::string name = path;
  if (io::Exists(path + "-journal")) {
    flags = SQLITE_OPEN_READWRITE;
  } else if (!io::Exists(path + "-wal")) {
    // Nobody has it open. Or the look itself would leave a log behind.
    flags |= SQLITE_OPEN_URI;
    name = UriOf(path) + "?immutable=1";
  }
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Database> database, OpenFile(name, flags));
  sqlite3_busy_timeout(database->db_, 5000);
  database->KeepLog();
  return database;
}

absl::StatusOr<std::unique_ptr<Database>> Database::OpenCopy(const std::string& path) {
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Database> database, OpenFile(path, SQLITE_OPEN_READWRITE));
  SFT_RETURN_IF_ERROR(database->Execute("PRAGMA journal_mode = DELETE"));
  return database;
}

void Database::KeepLog() { sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr); }

Database::~Database() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

absl::StatusOr<Statement> Database::Prepare(const char* sql) {
  const auto known = statements_.find(std::string_view(sql));
  if (known != statements_.end()) return Statement(db_, known->second);
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return SqliteStatus(db_, code, sql);
  statements_.emplace(sql, statement);
  return Statement(db_, statement);
}

absl::Status Database::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return SqliteStatus(db_, code, sql);
  return absl::OkStatus();
}

absl::Status Database::Run(const char* sql) {
  SFT_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  return statement.Run();
}

int64_t Database::changes() const { return sqlite3_changes64(db_); }
int64_t Database::last_insert_rowid() const { return sqlite3_last_insert_rowid(db_); }
int64_t Database::total_changes() const { return sqlite3_total_changes64(db_); }

absl::StatusOr<int64_t> Database::UserVersion() {
  SFT_ASSIGN_OR_RETURN(Statement statement, Prepare("PRAGMA user_version"));
  SFT_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

}  // namespace sft::server
