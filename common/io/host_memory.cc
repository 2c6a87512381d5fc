#include "common/io/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "common/io/file.h"

namespace sft::io {
namespace {

// Names of one version of control groups' memory files.
struct Files {
  std::string_view folder;  // below the root, above the group's own path
  std::string_view limit, used;
  // Of memory.stat: page cache, which the kernel takes back when memory is short.
  std::string_view inactive, active;
};
constexpr Files kVersion2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ",
                             "active_file "};
constexpr Files kVersion1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                             "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "};

std::optional<int64_t> Number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

// The number after `name` at the start of a line.
std::optional<int64_t> Line(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(name)) return Number(line.substr(name.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

// What the group in `folder` leaves; nothing where it has no limit or does not exist.
std::optional<int64_t> LeftOf(const Files& files, const std::string& folder) {
  const auto limit_text = ReadFile(fmt::format("{}/{}", folder, files.limit));
  const auto used_text = ReadFile(fmt::format("{}/{}", folder, files.used));
  if (!limit_text.ok() || !used_text.ok()) return std::nullopt;
  const std::optional<int64_t> limit = Number(*limit_text), used = Number(*used_text);
  if (!limit || !used) return std::nullopt;  // "max"
  int64_t cache = 0;
  if (const auto stat = ReadFile(folder + "/memory.stat"); stat.ok()) {
    cache = Line(*stat, files.inactive).value_or(0) + Line(*stat, files.active).value_or(0);
  }
  return std::max<int64_t>(0, *limit - *used + cache);
}

// The least that the group `path` and those above it leave. In a container the path may be the
// host's: then only the container's own group, at the top, is found.
int64_t LeastLeft(const Files& files, const std::string& root, std::string_view path,
                  int64_t least) {
  while (true) {
    const std::string folder =
        fmt::format("{}{}{}", root, files.folder, path == "/" ? std::string_view() : path);
    if (const std::optional<int64_t> left = LeftOf(files, folder)) least = std::min(least, *left);
    if (path.empty() || path == "/") return least;
    path = path.substr(0, path.rfind('/'));
  }
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemory(const std::string& root) {
  constexpr int64_t kKibi = 1024;
  SFT_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile(root + "/proc/meminfo"));
  const std::optional<int64_t> available = Line(meminfo, "MemAvailable:");
  if (!available) return Internal(root + "/proc/meminfo has no line \"MemAvailable:\"");
  int64_t least = *available * kKibi;
  const auto groups = ReadFile(root + "/proc/self/cgroup");
  if (!groups.ok()) return least;  // a kernel without them
  // "0::/path" of version 2, "4:memory:/path" of version 1.
  std::string_view text = *groups;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = line.substr(second + 1);
    if (controllers.empty()) least = LeastLeft(kVersion2, root, path, least);
    if (controllers == "memory") least = LeastLeft(kVersion1, root, path, least);
  }
  return least;
}

}  // namespace sft::io
