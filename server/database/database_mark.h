#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/database/sqlite.h"

namespace sft::server {

// A note in a database's header of whether a server uses it, and where its file then lay. A file
// that was copied while a server ran lacks what that server had acknowledged and not yet brought
// into it, and may have pages of different moments, which no look at its rows can tell. Such a copy
// says that it is in use, at a place where it does not lie. What was killed or lost its power lies
// where it was, with its write-ahead log beside it, which goes with the close in order alone; so
// does what a snapshot of a whole disk brings back. What was closed in order may be copied.
enum class DatabaseMark {
  kNone,            // of an earlier version, or new
  kClosed,          // the last server ended in order
  kInUseHere,       // one runs, or was ended at once
  kInUseMaybeHere,  // the same, as far as the file system tells: not all that was noted, or is now
  kInUseNoLog,      // in use here, without its log: an older copy was put over the file
  kInUseElsewhere   // a copy of one that was in use
};
inline bool IsCopy(DatabaseMark mark) {
  return mark == DatabaseMark::kInUseNoLog || mark == DatabaseMark::kInUseElsewhere;
}

// Where a file lies: a copy is another file, made at another time. Not the disk's number, which
// another boot may change.
struct FilePlace {
  uint64_t inode = 0;
  std::optional<int64_t> born_ns;  // not every file system and kernel says it
};
absl::StatusOr<FilePlace> PlaceOf(const std::string& path);

// What the header says of a database in use at a place; one that cannot be told is noted as such.
int64_t NoteOf(const absl::StatusOr<FilePlace>& place);
// What a note means of a file that lies there now, `has_log` with its write-ahead log.
DatabaseMark JudgeNote(int64_t note, const absl::StatusOr<FilePlace>& place, bool has_log);

absl::StatusOr<DatabaseMark> ReadMark(Database& db, const std::string& path, bool has_log);
// The refusal of a copy, of either kind.
absl::Status RefuseCopy(const std::string& path, DatabaseMark mark);
// Reaches the file itself before it returns, not the write-ahead log alone. Of no effect on what is
// no file.
absl::Status MarkInUse(Database& db, const std::string& path);
absl::Status MarkClosed(Database& db);

}  // namespace sft::server
