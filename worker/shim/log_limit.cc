#include "worker/shim/log_limit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sft::shim {
namespace {

// Holes consist of whole blocks.
constexpr int64_t kBlock = 4096;

absl::Status WriteInPlace(int fd, const channel::LogGap& gap) {
  const std::string text = ToText(gap);
  if (pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus("cannot write a log's gap", errno);
  }
  // Synced before the bytes are removed: after a power failure zeros must not be taken for log
  // text.
  if (fdatasync(fd) != 0) return ErrnoStatus("cannot fsync a log's gap", errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LogLimit> LogLimit::Make(const std::string& dir, const std::string& name,
                                        int64_t limit_bytes) {
  LogLimit limit;
  if (limit_bytes <= 0) return limit;
  const std::string path = fmt::format("{}/{}.gap", dir, name);
  limit.gap_file_ = io::UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0640));
  if (!limit.gap_file_.valid()) return ErrnoStatus("cannot create " + path, errno);
  SFT_RETURN_IF_ERROR(WriteInPlace(limit.gap_file_.get(), limit.gap_));
  limit.log_path_ = fmt::format("{}/{}.log", dir, name);
  limit.limit_ = limit_bytes;
  return limit;
}

absl::Status LogLimit::Check() {
  if (limit_ == 0 || !io::Exists(log_path_)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(log_path_));
  const int64_t kept_from = std::max(gap_.end, std::min(kHeadBytes, limit_ / 4));
  if (size - kept_from <= limit_) return absl::OkStatus();
  // Removes a quarter at once, so that this is rare.
  channel::LogGap next;
  next.begin = gap_.end > 0 ? gap_.begin : kept_from / kBlock * kBlock;
  next.end = (size - limit_ / 4 * 3) / kBlock * kBlock;
  SFT_RETURN_IF_ERROR(WriteInPlace(gap_file_.get(), next));
  gap_ = next;
  return io::PunchHole(log_path_, next.begin, next.end);
}

}  // namespace sft::shim
