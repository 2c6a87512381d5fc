#include "common/io/disk_space.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

namespace sft::io {
namespace {

absl::Status BadMark(std::string_view text) {
  return InvalidArgument(
      fmt::format("\"{}\" is no mark of a disk: give a share (5%), a size (10GB), both with the "
                  "smaller one meant (5%,10GB), or off",
                  text));
}

// Parses one half of "5%,10GB".
bool ParsePart(std::string_view text, DiskMark& mark) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number <= 0) return false;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (unit == "%" && number < 100 && mark.share == 0) {
    mark.share = number / 100;
    return true;
  }
  const double scale = unit == "MB" ? 1e6 : unit == "GB" ? 1e9 : unit == "TB" ? 1e12 : 0;
  if (scale == 0 || number > 1e6 || mark.bytes != 0) return false;
  mark.bytes = static_cast<int64_t>(number * scale);
  return true;
}

}  // namespace

absl::StatusOr<DiskSpace> SpaceOf(const std::string& path) {
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) != 0) {
    return ErrnoStatus(fmt::format("cannot ask how full the disk of {} is", path), errno);
  }
  const auto block = static_cast<int64_t>(info.f_frsize);
  return DiskSpace{static_cast<int64_t>(info.f_blocks) * block,
                   static_cast<int64_t>(info.f_bavail) * block};
}

int64_t TreeBytes(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    const auto size = fs::file_size(path, error);
    return error ? 0 : static_cast<int64_t>(size);
  }
  int64_t bytes = 0;
  fs::recursive_directory_iterator at(path, error);
  while (!error && at != fs::recursive_directory_iterator()) {
    std::error_code of_file;
    if (at->is_regular_file(of_file)) {
      const auto size = at->file_size(of_file);
      if (!of_file) bytes += static_cast<int64_t>(size);
    }
    at.increment(error);
  }
  return bytes;
}

int64_t DiskMark::Of(const DiskSpace& space) const {
  const auto by_share = static_cast<int64_t>(share * static_cast<double>(space.total));
  if (share == 0) return bytes;
  return bytes == 0 ? by_share : std::min(bytes, by_share);
}

absl::StatusOr<DiskMark> ParseDiskMark(std::string_view text) {
  DiskMark mark;
  if (text == "off") return mark;
  const size_t comma = text.find(',');
  if (!ParsePart(text.substr(0, comma), mark)) return BadMark(text);
  if (comma != text.npos && !ParsePart(text.substr(comma + 1), mark)) return BadMark(text);
  return mark;
}

absl::StatusOr<DiskMarks> ParseDiskMarks(std::string_view low, std::string_view full) {
  DiskMarks marks;
  SFT_ASSIGN_OR_RETURN(marks.low, ParseDiskMark(low));
  SFT_ASSIGN_OR_RETURN(marks.full, ParseDiskMark(full));
  return marks;
}

DiskLevel LevelOf(const DiskSpace& space, const DiskMarks& marks) {
  if (space.free < marks.full.Of(space)) return DiskLevel::kFull;
  return space.free < marks.low.Of(space) ? DiskLevel::kLow : DiskLevel::kOk;
}

}  // namespace sft::io
