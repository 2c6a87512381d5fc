#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"

// What the kernel says about the node's GPUs and memory: XID messages of the NVIDIA driver and
// processes that were killed because memory ran out.

namespace sft::worker {

// One record of /dev/kmsg.
struct KernelLine {
  Nanos since_boot{};
  std::string message;
};
// A record as /dev/kmsg gives it: "6,1234,5678901,-;message".
std::optional<KernelLine> ParseKernelLine(std::string_view record);
// All records of the ring buffer from `since` (time since boot) on; empty where this process may
// not read it. Does not wait.
std::vector<KernelLine> ReadKernelLog(Nanos since, const std::string& path);

// What NVIDIA's catalog says to do after an XID.
enum class XidAction { kIgnore, kRestartJob, kResetGpu, kRebootNode, kFollowUp, kUnknown };
XidAction ActionOf(int xid);
// What the operator should do, and why.
std::string AdviceFor(XidAction action, const std::string& node);

// "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus."
struct Xid {
  int number = 0;
  std::string pci;   // "0000:18:00"
  std::string text;  // what follows the number
};
std::optional<Xid> ParseXid(std::string_view message);

// "Out of memory: Killed process 1234 (sft-rank) ...", "Memory cgroup out of memory: Killed ...".
struct OomKill {
  int64_t pid = 0;
  bool cgroup = false;  // a limit of a group, not the machine's memory
};
std::optional<OomKill> ParseOomKill(std::string_view message);

// Processes that were killed because this process's control group, or one above it with a limit,
// ran out of memory; nothing where control groups cannot be read.
std::optional<int64_t> CgroupOomKills();

}  // namespace sft::worker
