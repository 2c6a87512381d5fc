#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"

// The kernel log's messages about the node's GPUs and memory: XID messages of the NVIDIA driver,
// and processes killed because memory ran out.

namespace sft::worker {

// One record of /dev/kmsg.
struct KernelLine {
  Nanos since_boot{};
  std::string message;
};
// Parses a record of /dev/kmsg: "6,1234,5678901,-;message".
std::optional<KernelLine> ParseKernelLine(std::string_view record);
// All records of the ring buffer from `since` (time since boot) on; empty where this process may
// not read it. Does not block.
std::vector<KernelLine> ReadKernelLog(Nanos since, const std::string& path);

// The action after an XID, by NVIDIA's catalog.
enum class XidAction { kIgnore, kRestartJob, kResetGpu, kRebootNode, kFollowUp, kUnknown };
XidAction ActionOf(int xid);
// Advice for the operator, with the reason.
std::string AdviceFor(XidAction action, const std::string& node);

// "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
struct Xid {
  int number = 0;
  std::string pci;   // "0000:18:00"
  std::string text;  // the text after the number
};
std::optional<Xid> ParseXid(std::string_view message);

// A line "Out of memory: Killed process 1234 (sft-rank) ..." or "Memory cgroup out of memory:
// Killed ...".
struct OomKill {
  int64_t pid = 0;
  bool cgroup = false;  // a limit of a group, not the machine's memory
};
std::optional<OomKill> ParseOomKill(std::string_view message);

// Number of processes killed because this process's control group, or one above it with a limit,
// ran out of memory; nullopt where control groups cannot be read.
std::optional<int64_t> CgroupOomKills();

}  // namespace sft::worker
