#include "server/store/database_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <optional>

#include "common/io/sha256.h"

namespace sft::server {
namespace {

constexpr int64_t kClosed = 0x73667430;  // "sft0"

// Of the place of a file: a copy is another file, made at another time. Not the disk's number,
// which another boot may change. Nothing for what is no file.
std::optional<int64_t> PlaceOf(const std::string& path) {
  struct statx found {};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_INO | STATX_BTIME, &found) != 0) return std::nullopt;
  const bool has_birth = (found.stx_mask & STATX_BTIME) != 0;
  const std::string text =
      fmt::format("{}:{}:{}", found.stx_ino, has_birth ? found.stx_btime.tv_sec : 0,
                  has_birth ? found.stx_btime.tv_nsec : 0);
  // Neither zero nor kClosed, and positive as an application_id.
  const uint64_t word = std::stoull(io::Sha256Hex(text).substr(0, 7), nullptr, 16);
  return static_cast<int64_t>(word + 1);
}

}  // namespace

absl::StatusOr<DatabaseMark> ReadMark(Database& db, const std::string& path) {
  SFT_ASSIGN_OR_RETURN(Statement ask, db.Prepare("PRAGMA application_id"));
  SFT_ASSIGN_OR_RETURN(const bool row, ask.Step());
  const int64_t mark = row ? ask.Int(0) : 0;
  if (mark == 0) return DatabaseMark::kNone;
  if (mark == kClosed) return DatabaseMark::kClosed;
  return mark == PlaceOf(path) ? DatabaseMark::kInUseHere : DatabaseMark::kInUseElsewhere;
}

absl::Status IsACopy(const std::string& path) {
  return FailedPrecondition(fmt::format(
      "{} was copied while a server used it, or after one was killed: what was acknowledged last "
      "may "
      "be missing. End that server in order (systemctl stop sft-server) and copy its data folder "
      "again, or restore a backup (`sftctl admin backup`, sft-server --restore). If this copy is "
      "all "
      "that is left, --accept-copy checks all of it and starts with what it has",
      path));
}

absl::Status MarkInUse(Database& db, const std::string& path) {
  const std::optional<int64_t> place = PlaceOf(path);
  if (!place.has_value()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(db.Execute(fmt::format("PRAGMA application_id = {}", *place).c_str()));
  return db.Execute("PRAGMA wal_checkpoint(TRUNCATE)");
}

absl::Status MarkClosed(Database& db) {
  return db.Execute(fmt::format("PRAGMA application_id = {}", kClosed).c_str());
}

}  // namespace sft::server
