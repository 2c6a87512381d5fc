#include "common/io/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "common/io/file.h"

namespace sft::io {
namespace {

// Names of the memory files of one version of control groups.
struct Files {
  std::string_view folder;  // below the root, before the group's own path
  std::string_view limit, used;
  // Fields of memory.stat: page cache, which the kernel reclaims when memory is short.
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

// The number after `name` at the start of a line of `text`.
std::optional<int64_t> Line(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(name)) return Number(line.substr(name.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

// A function that reads one figure of a group in `folder`; nullopt if it has no limit or does not
// exist.
using GroupFigure = std::optional<int64_t> (*)(const Files& files, const std::string& folder);

std::optional<int64_t> LimitOf(const Files& files, const std::string& folder) {
  const auto text = ReadFile(fmt::format("{}/{}", folder, files.limit));
  return text.ok() ? Number(*text) : std::nullopt;  // "max" is not a number
}

// Memory that the group's limit leaves.
std::optional<int64_t> LeftOf(const Files& files, const std::string& folder) {
  const std::optional<int64_t> limit = LimitOf(files, folder);
  const auto used_text = ReadFile(fmt::format("{}/{}", folder, files.used));
  const std::optional<int64_t> used = used_text.ok() ? Number(*used_text) : std::nullopt;
  if (!limit || !used) return std::nullopt;
  int64_t cache = 0;
  if (const auto stat = ReadFile(folder + "/memory.stat"); stat.ok()) {
    cache = Line(*stat, files.inactive).value_or(0) + Line(*stat, files.active).value_or(0);
  }
  // The kernel gathers memory.stat every few seconds: cache that has just gone is still in it, but
  // no longer in the usage. A group without a limit has one of nearly all int64_t.
  return std::max<int64_t>(0, *limit - (*used - std::min(cache, *used)));
}

// The lowest figure of the group `path` and those above it. In a container the path may be the
// host's; then only the container's own group, at the top, is found.
int64_t Least(GroupFigure figure, const Files& files, const std::string& root,
              std::string_view path, int64_t least) {
  while (true) {
    const std::string folder =
        fmt::format("{}{}{}", root, files.folder, path == "/" ? std::string_view() : path);
    if (const std::optional<int64_t> bytes = figure(files, folder)) least = std::min(least, *bytes);
    if (path.empty() || path == "/") return least;
    path = path.substr(0, path.rfind('/'));
  }
}

// The lower of the line `name` of /proc/meminfo and the lowest figure of this process's groups.
absl::StatusOr<int64_t> LeastOfAll(std::string_view name, GroupFigure figure,
                                   const std::string& root) {
  constexpr int64_t kKibi = 1024;
  SFT_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile(root + "/proc/meminfo"));
  const std::optional<int64_t> machine = Line(meminfo, name);
  if (!machine) return Internal(fmt::format("{}/proc/meminfo has no line \"{}\"", root, name));
  int64_t least = *machine * kKibi;
  const auto groups = ReadFile(root + "/proc/self/cgroup");
  if (!groups.ok()) return least;  // a kernel without control groups
  // Lines are "0::/path" for version 2, "4:memory:/path" for version 1.
  std::string_view text = *groups;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = line.substr(second + 1);
    if (controllers.empty()) least = Least(figure, kVersion2, root, path, least);
    if (controllers == "memory") least = Least(figure, kVersion1, root, path, least);
  }
  return least;
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemory(const std::string& root) {
  return LeastOfAll("MemAvailable:", &LeftOf, root);
}

absl::StatusOr<int64_t> TotalMemory(const std::string& root) {
  return LeastOfAll("MemTotal:", &LimitOf, root);
}

}  // namespace sft::io
