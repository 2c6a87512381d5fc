#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace sft::server {

// A prepared statement in use: bind, step, read columns. Reset when it goes out of scope, so that
// the database's cache can hand it out again. Errors of binds are kept and returned by Step.
class Statement {
 public:
  Statement(sqlite3* db, sqlite3_stmt* statement) : db_(db), statement_(statement) {}
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  // Values for the next `?`, left to right.
  Statement& Bind(int64_t value);
  Statement& Bind(int value) { return Bind(int64_t{value}); }
  Statement& Bind(bool value) { return Bind(int64_t{value}); }
  Statement& Bind(double value);
  Statement& Bind(std::string_view text);
  Statement& Bind(const char* text) { return Bind(std::string_view(text)); }
  Statement& BindBlob(std::string_view bytes);
  Statement& BindNull();

  // True: a row is there to read; false: done.
  absl::StatusOr<bool> Step();
  // For statements that give no rows.
  absl::Status Run();

  // Columns of the row, from 0.
  int64_t Int(int column) const;
  bool Bool(int column) const { return Int(column) != 0; }
  double Real(int column) const;
  bool IsNull(int column) const;
  std::string Text(int column) const;

 private:
  void Check(int code);

  sqlite3* db_;
  sqlite3_stmt* statement_;
  int next_ = 1;
  int bind_error_ = 0;
};

// A connection. Not thread-safe: whoever runs a function owns it meanwhile, and hands it a
// reference.
class Database {
 public:
  // Creates the file when it is missing; sets WAL, synchronous=FULL, foreign keys.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path);
  // A connection that can neither change anything nor do a checkpoint, beside that of Open.
  static absl::StatusOr<std::unique_ptr<Database>> OpenReader(const std::string& path);
  // A connection that never writes to the file, nor brings the log into it, while a server may use
  // it. What a transaction left half done before there was a log (a -journal) it takes back first:
  // nothing can be read before.
  static absl::StatusOr<std::unique_ptr<Database>> OpenToLook(const std::string& path);
  // Opens a copy that no server uses: a single file, without a write-ahead log.
  static absl::StatusOr<std::unique_ptr<Database>> OpenCopy(const std::string& path);
  // What is closed leaves the log where it is, as if it had been killed.
  void KeepLog();
  ~Database();

  // A cached prepared statement. `sql` is a literal of ours: an error in it is a bug and INTERNAL.
  absl::StatusOr<Statement> Prepare(const char* sql);
  // One statement without values or rows, cached as by Prepare.
  absl::Status Run(const char* sql);
  // One or more statements without values or rows.
  absl::Status Execute(const char* sql);
  // Rows that the last statement changed.
  int64_t changes() const;
  // Of the row that the last INSERT added.
  int64_t last_insert_rowid() const;
  // Rows that statements changed since the opening, undone ones among them.
  int64_t total_changes() const;

  // Says that nodes, their GPUs or models change: Store::fleet_version counts it with the commit.
  void NoteFleetChange() { ++fleet_changes_; }
  int64_t fleet_changes() const { return fleet_changes_; }
  // Says that the feed of events changes: Store::WhenFed.
  void NoteFeedChange() { ++feed_changes_; }
  int64_t feed_changes() const { return feed_changes_; }

  absl::StatusOr<int64_t> UserVersion();
  // For OnlineCopy.
  sqlite3* handle() { return db_; }

 private:
  explicit Database(sqlite3* db) : db_(db) {}
  // With SQLite's flags.
  static absl::StatusOr<std::unique_ptr<Database>> OpenFile(const std::string& path, int flags);

  sqlite3* db_;
  int64_t fleet_changes_ = 0;
  int64_t feed_changes_ = 0;
  // Found by a hash: most texts begin alike, and are long.
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, sqlite3_stmt*, Hash, std::equal_to<>> statements_;
};

}  // namespace sft::server
