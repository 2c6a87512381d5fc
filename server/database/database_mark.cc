#include "server/database/database_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/io/sha256.h"

namespace sft::server {
namespace {

// Notes are positive, as an application_id is; those of places are below 2^29.
constexpr int64_t kClosed = 0x73667430;     // "sft0"
constexpr int64_t kSomewhere = 0x7366743f;  // "sft?": in use, where could not be told
constexpr int kPartBits = 14;
constexpr int64_t kPartMask = (int64_t{1} << kPartBits) - 1;
constexpr int64_t kNanos = 1'000'000'000;

int64_t HashOf(const std::string& text) {
  return std::stoll(io::Sha256Hex(text).substr(0, 7), nullptr, 16);
}

// Inode and birth apart, so that one can be compared without the other; a birth of zero: not told.
int64_t Note(const FilePlace& place) {
  const int64_t inode = HashOf(fmt::format("{}", place.inode)) & kPartMask;
  const int64_t birth =
      place.born_ns ? 1 + HashOf(fmt::format("{}", *place.born_ns)) % kPartMask : 0;
  return 1 + (inode << kPartBits | birth);
}

// As the version before noted it.
int64_t FormerNote(const FilePlace& place) {
  const int64_t born_ns = place.born_ns.value_or(0);
  return 1 + HashOf(fmt::format("{}:{}:{}", place.inode, born_ns / kNanos, born_ns % kNanos));
}

}  // namespace

absl::StatusOr<FilePlace> PlaceOf(const std::string& path) {
  struct statx found {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_INO | STATX_BTIME, &found) != 0) {
    return ErrnoStatus("cannot tell where " + path + " lies", errno);
  }
  FilePlace place{.inode = found.stx_ino};
  if ((found.stx_mask & STATX_BTIME) != 0) {
    place.born_ns = found.stx_btime.tv_sec * kNanos + found.stx_btime.tv_nsec;
  }
  return place;
}

int64_t NoteOf(const absl::StatusOr<FilePlace>& place) {
  return place.ok() ? Note(*place) : kSomewhere;
}

DatabaseMark JudgeNote(int64_t note, const absl::StatusOr<FilePlace>& place, bool has_log) {
  if (note == 0) return DatabaseMark::kNone;
  if (note == kClosed) return DatabaseMark::kClosed;
  const DatabaseMark maybe = has_log ? DatabaseMark::kInUseMaybeHere : DatabaseMark::kInUseNoLog;
  if (note == kSomewhere || !place.ok()) return maybe;
  if (note == Note(*place) || note == FormerNote(*place)) {
    return has_log ? DatabaseMark::kInUseHere : DatabaseMark::kInUseNoLog;
  }
  const FilePlace unborn{.inode = place->inode};
  const bool was_told = ((note - 1) & kPartMask) != 0;
  const bool same_inode = (note - 1) >> kPartBits == (Note(unborn) - 1) >> kPartBits;
  if (same_inode && (!was_told || !place->born_ns)) return maybe;
  return note == FormerNote(unborn) ? maybe : DatabaseMark::kInUseElsewhere;
}

absl::StatusOr<DatabaseMark> ReadMark(Database& db, const std::string& path, bool has_log) {
  SFT_ASSIGN_OR_RETURN(Statement ask, db.Prepare("PRAGMA application_id"));
  SFT_ASSIGN_OR_RETURN(const bool row, ask.Step());
  return JudgeNote(row ? ask.Int(0) : 0, PlaceOf(path), has_log);
}

absl::Status RefuseCopy(const std::string& path, DatabaseMark mark) {
  const std::string what =
      mark == DatabaseMark::kInUseNoLog
          ? fmt::format(
                "{0} is of a server that has not ended in order, and its {0}-wal is not "
                "there: an older copy was put over it, or the log was removed (sqlite3 does "
                "that, too)",
                path)
          : fmt::format("{} was copied while a server used it, or after one was killed", path);
  return FailedPrecondition(fmt::format(
      "{}: what was acknowledged last may be missing. End that server in order (systemctl stop "
      "sft-server) and copy its data folder again, or restore a backup (`sftctl admin backup`, "
      "sft-server --restore). If this copy is all that is left, --accept-copy checks all of it and "
      "starts with what it has",
      what));
}

absl::Status MarkInUse(Database& db, const std::string& path) {
  const absl::StatusOr<FilePlace> place = PlaceOf(path);
  if (absl::IsNotFound(place.status())) return absl::OkStatus();
  if (!place.ok()) {
    spdlog::warn("{}: a copy of it that is made while this server runs may not be known as one",
                 Message(place.status()));
  }
  SFT_RETURN_IF_ERROR(db.Execute(fmt::format("PRAGMA application_id = {}", NoteOf(place)).c_str()));
  return db.Execute("PRAGMA wal_checkpoint(TRUNCATE)");
}

absl::Status MarkClosed(Database& db) {
  return db.Execute(fmt::format("PRAGMA application_id = {}", kClosed).c_str());
}

}  // namespace sft::server
