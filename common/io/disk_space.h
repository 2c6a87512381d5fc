#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

// Free space of file systems, and the thresholds at which the service warns or stops taking data.

namespace sft::io {

// Size and free space of a file system, in bytes.
struct DiskSpace {
  int64_t total = 0;
  int64_t free = 0;  // available to an ordinary user
};
absl::StatusOr<DiskSpace> SpaceOf(const std::string& path);

// Bytes of a file, or of all files below a folder; 0 if it does not exist. Files that vanish
// meanwhile are not counted.
int64_t TreeBytes(const std::string& path);

// The free space to keep: a share of the disk, a number of bytes, or the smaller of both. Zero
// means no threshold.
struct DiskMark {
  double share = 0;
  int64_t bytes = 0;

  int64_t Of(const DiskSpace& space) const;
};
// Parses "5%", "10GB" (10^9; also MB, TB), "5%,10GB" for the smaller of both, or "off".
absl::StatusOr<DiskMark> ParseDiskMark(std::string_view text);

// On a large disk a share is more than anybody needs free, so both defaults also have a limit in
// bytes.
inline constexpr char kDefaultLowMark[] = "10%,40GB";
inline constexpr char kDefaultFullMark[] = "5%,10GB";

// The two thresholds of a disk.
struct DiskMarks {
  DiskMark low;   // below it, a warning is shown
  DiskMark full;  // below it, no new data is accepted
};
absl::StatusOr<DiskMarks> ParseDiskMarks(std::string_view low, std::string_view full);

enum class DiskLevel : int { kOk = 1, kLow = 2, kFull = 3 };
DiskLevel LevelOf(const DiskSpace& space, const DiskMarks& marks);

}  // namespace sft::io
