#include "worker/gpus/kernel_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

#include "common/io/file.h"

namespace sft::worker {
namespace {

constexpr size_t kMaxRecordBytes = 8192;
// Bound for a ring buffer that is written faster than it is read.
constexpr int kMaxRecords = 100'000;

template <size_t N>
bool In(const std::array<int, N>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Parses the number at the start of `text` and removes it.
std::optional<int64_t> TakeNumber(std::string_view& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

std::optional<int64_t> OomKillsIn(const std::string& events_file) {
  const absl::StatusOr<std::string> text = io::ReadFile(events_file);
  if (!text.ok()) return std::nullopt;
  constexpr std::string_view kKey = "oom_kill ";
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    std::string_view line = std::string_view(*text).substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(kKey)) continue;
    line.remove_prefix(kKey.size());
    return TakeNumber(line);
  }
  return std::nullopt;
}

// The folder of this process's memory control group, of either version.
std::optional<std::string> MemoryGroupFile() {
  const absl::StatusOr<std::string> text = io::ReadFile("/proc/self/cgroup");
  if (!text.ok()) return std::nullopt;
  std::optional<std::string> found;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers == "memory") return "/sys/fs/cgroup/memory" + path + "/memory.oom_control";
    if (controllers.empty()) found = "/sys/fs/cgroup" + path + "/memory.events";
  }
  return found;
}

}  // namespace

std::optional<KernelLine> ParseKernelLine(std::string_view record) {
  const size_t semicolon = record.find(';');
  if (semicolon == std::string_view::npos) return std::nullopt;
  std::string_view head = record.substr(0, semicolon);
  std::string_view message = record.substr(semicolon + 1);
  // priority,sequence,microseconds,flags
  for (int comma = 0; comma < 2; ++comma) {
    const size_t at = head.find(',');
    if (at == std::string_view::npos) return std::nullopt;
    head.remove_prefix(at + 1);
  }
  const std::optional<int64_t> micros = TakeNumber(head);
  if (!micros) return std::nullopt;
  message = message.substr(0, message.find('\n'));  // the rest are the record's properties
  return KernelLine{std::chrono::microseconds(*micros), std::string(message)};
}

std::vector<KernelLine> ReadKernelLog(Nanos since, const std::string& path) {
  std::vector<KernelLine> lines;
  const io::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return lines;
  std::array<char, kMaxRecordBytes> record;
  for (int i = 0; i < kMaxRecords; ++i) {
    const ssize_t got = ::read(fd.get(), record.data(), record.size());
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;  // records were overwritten
    if (got <= 0) break;
    auto line = ParseKernelLine({record.data(), static_cast<size_t>(got)});
    if (line && line->since_boot >= since) lines.push_back(*std::move(line));
  }
  return lines;
}

XidAction ActionOf(int xid) {
  static constexpr std::array kIgnored{43, 63, 92, 121, 157};
  static constexpr std::array kRestart{8, 11, 13, 31, 32, 39, 69, 94};
  static constexpr std::array kReset{46,  62,  64,  95,  109, 110, 119,
                                     120, 136, 140, 143, 155, 156, 158};
  static constexpr std::array kFollow{45, 48, 74, 144, 145, 146, 147, 148, 149, 150, 154};
  if (In(kIgnored, xid)) return XidAction::kIgnore;
  if (In(kRestart, xid)) return XidAction::kRestartJob;
  if (In(kReset, xid)) return XidAction::kResetGpu;
  if (xid == 79) return XidAction::kRebootNode;
  return In(kFollow, xid) ? XidAction::kFollowUp : XidAction::kUnknown;
}

std::string AdviceFor(XidAction action, const std::string& node) {
  switch (action) {
    case XidAction::kIgnore:
      return "";
    case XidAction::kRestartJob:
      return "the job can run again as it is; if it happens on other GPUs too, the program is at "
             "fault";
    case XidAction::kResetGpu:
      return fmt::format("reset the GPU (nvidia-smi --gpu-reset) before node {} gets new work",
                         node);
    case XidAction::kRebootNode:
      return fmt::format("restart node {}; if the GPU is lost again, have it replaced", node);
    case XidAction::kFollowUp:
      return fmt::format(
          "look at the XIDs beside it and at the NVLinks of node {} (nvidia-smi nvlink -e)", node);
    case XidAction::kUnknown:
      return fmt::format("look the XID up in NVIDIA's catalog and check node {}", node);
  }
  return "";
}

std::optional<Xid> ParseXid(std::string_view message) {
  constexpr std::string_view kHead = "NVRM: Xid (";
  const size_t head = message.find(kHead);
  if (head == std::string_view::npos) return std::nullopt;
  message.remove_prefix(head + kHead.size());
  const size_t close = message.find("): ");
  if (close == std::string_view::npos) return std::nullopt;
  Xid xid;
  xid.pci = std::string(message.substr(0, close));
  if (xid.pci.starts_with("PCI:")) xid.pci.erase(0, 4);
  message.remove_prefix(close + 3);
  const std::optional<int64_t> number = TakeNumber(message);
  if (!number || *number < 0 || *number > 9999) return std::nullopt;
  xid.number = static_cast<int>(*number);
  if (message.starts_with(", ")) message.remove_prefix(2);
  xid.text = std::string(message);
  return xid;
}

std::optional<OomKill> ParseOomKill(std::string_view message) {
  constexpr std::string_view kKilled = "ut of memory: Killed process ";
  const size_t at = message.find(kKilled);
  if (at == std::string_view::npos) return std::nullopt;
  OomKill kill;
  kill.cgroup = message.find("cgroup") < at;
  message.remove_prefix(at + kKilled.size());
  const std::optional<int64_t> pid = TakeNumber(message);
  if (!pid) return std::nullopt;
  kill.pid = *pid;
  return kill;
}

std::optional<int64_t> CgroupOomKills() {
  const std::optional<std::string> file = MemoryGroupFile();
  return file ? OomKillsIn(*file) : std::nullopt;
}

}  // namespace sft::worker
