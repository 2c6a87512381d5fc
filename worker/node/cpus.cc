#include "worker/node/cpus.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "common/io/file.h"

namespace sft::worker {
namespace {

// The number that the text begins with.
std::optional<int64_t> NumberIn(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// The parts between any of `separators`, without empty ones.
std::vector<std::string_view> Parts(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string Text(const std::string& path) {
  const absl::StatusOr<std::string> text = io::ReadFile(path);
  return text.ok() ? *text : std::string();
}

// How many a list as "0-3,8" names; 0: it cannot be read.
int CountOf(std::string_view list) {
  int64_t count = 0;
  for (const std::string_view range : Parts(list, ", \t")) {
    const size_t dash = range.find('-');
    const auto first = NumberIn(range);
    const auto last = dash == std::string_view::npos ? first : NumberIn(range.substr(dash + 1));
    if (!first || !last || *last < *first) return 0;
    count += *last - *first + 1;
  }
  return static_cast<int>(count);
}

int AllowedCpus(const std::string& root) {
  constexpr std::string_view kKey = "\nCpus_allowed_list:";
  const std::string status = Text(root + "/proc/self/status");
  const size_t at = status.find(kKey);
  int allowed = 0;
  if (at != std::string::npos) {
    const size_t begin = at + kKey.size();
    allowed = CountOf(std::string_view(status).substr(begin, status.find('\n', begin) - begin));
  }
  return allowed > 0 ? allowed
                     : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// What a quota and its period allow, rounded up; nothing where there is no limit.
std::optional<int64_t> CpusOf(std::optional<int64_t> quota, std::optional<int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return (*quota + *period - 1) / *period;
}

// Of one group: cpu.max of version 2 ("200000 100000", "max 100000"), two files of version 1.
std::optional<int64_t> QuotaOf(const std::string& folder, bool second) {
  if (!second) {
    return CpusOf(NumberIn(Text(folder + "/cpu.cfs_quota_us")),
                  NumberIn(Text(folder + "/cpu.cfs_period_us")));
  }
  const std::string text = Text(folder + "/cpu.max");
  const std::vector<std::string_view> fields = Parts(text, " \n");
  return fields.size() == 2 ? CpusOf(NumberIn(fields[0]), NumberIn(fields[1])) : std::nullopt;
}

}  // namespace

int UsableCpus(const std::string& root) {
  int64_t usable = AllowedCpus(root);
  // "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1. In a container the path may be the
  // host's: then only the container's own group, at the top, is found.
  const std::string groups = Text(root + "/proc/self/cgroup");
  for (const std::string_view line : Parts(groups, "\n")) {
    const size_t first = line.find(':'), end = line.find(':', first + 1);
    if (end == std::string_view::npos) continue;
    const std::vector<std::string_view> controllers =
        Parts(line.substr(first + 1, end - first - 1), ",");
    const bool second = controllers.empty();
    if (!second && std::find(controllers.begin(), controllers.end(), "cpu") == controllers.end()) {
      continue;
    }
    const std::string top = root + "/sys/fs/cgroup" + (second ? "" : "/cpu");
    for (std::string path(line.substr(end + 1) == "/" ? "" : line.substr(end + 1));;) {
      usable = std::min(usable, QuotaOf(top + path, second).value_or(usable));
      if (path.empty()) break;
      path.resize(std::min(path.size() - 1, path.rfind('/')));
    }
  }
  return static_cast<int>(std::max<int64_t>(1, usable));
}

int ThreadsOf(const CpuShare& share) {
  const int slots = std::max(1, share.slots);
  const bool shared = share.on_gpu && !share.given;
  return std::max(1, share.cpus / (shared ? std::max(slots, share.machine_gpus) : slots));
}

}  // namespace sft::worker
