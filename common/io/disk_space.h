#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

// How full a file system is, and the marks at which somebody should know.

namespace sft::io {

// Of a file system, in bytes.
struct DiskSpace {
  int64_t total = 0;
  int64_t free = 0;  // for an ordinary user
};
absl::StatusOr<DiskSpace> SpaceOf(const std::string& path);

// Bytes of a file, or of all files below a folder; 0 for what is not there. What goes away
// meanwhile does not count.
int64_t TreeBytes(const std::string& path);

// So much shall stay free: a share of the disk, a number of bytes, or the smaller of both. Zero: no
// mark.
struct DiskMark {
  double share = 0;
  int64_t bytes = 0;

  int64_t Of(const DiskSpace& space) const;
};
// "5%", "10GB" (10^9; also MB, TB), "5%,10GB" for the smaller of both, "off".
absl::StatusOr<DiskMark> ParseDiskMark(std::string_view text);

// Of a large disk a share is more than anybody needs free, so both have a limit in bytes.
inline constexpr char kDefaultLowMark[] = "10%,40GB";
inline constexpr char kDefaultFullMark[] = "5%,10GB";

// Both marks of a disk.
struct DiskMarks {
  DiskMark low;   // told
  DiskMark full;  // nothing new is taken
};
absl::StatusOr<DiskMarks> ParseDiskMarks(std::string_view low, std::string_view full);

enum class DiskLevel : int { kOk = 1, kLow = 2, kFull = 3 };
DiskLevel LevelOf(const DiskSpace& space, const DiskMarks& marks);

}  // namespace sft::io
