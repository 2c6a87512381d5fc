#pragma once

#include <string>

#include "server/store/sqlite.h"

namespace sft::server {

// A note in a database's header of whether a server uses it, and where its file then lay. A file
// that was copied while a server ran lacks what that server had acknowledged and not yet brought
// into it, and may have pages of different moments, which no look at its rows can tell. Such a copy
// says that it is in use, at a place where it does not lie. What was killed or lost its power lies
// where it was; so does what a snapshot of a whole disk brings back. What was closed in order may
// be copied.
enum class DatabaseMark {
  kNone,           // of an earlier version, or new
  kClosed,         // the last server ended in order
  kInUseHere,      // one runs, or was ended at once
  kInUseElsewhere  // a copy of one that was in use
};

absl::StatusOr<DatabaseMark> ReadMark(Database& db, const std::string& path);
// The refusal of a copy.
absl::Status IsACopy(const std::string& path);
// Reaches the file itself before it returns, not the write-ahead log alone. Of no effect on what is
// no file.
absl::Status MarkInUse(Database& db, const std::string& path);
absl::Status MarkClosed(Database& db);

}  // namespace sft::server
