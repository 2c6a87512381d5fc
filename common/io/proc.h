#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace sft::io {

// The state of a process, from /proc/PID/stat.
struct ProcessStat {
  char state = 0;  // 'Z': ended, not yet reaped; 'T': stopped; 'D': blocked in the kernel
  pid_t parent = 0;
  uint64_t cpu_ticks = 0;    // CPU time of all its threads so far
  uint64_t start_ticks = 0;  // with the pid, unique until the machine restarts
};

// Nullopt when there is no such process.
std::optional<ProcessStat> ReadProcessStat(pid_t pid);

}  // namespace sft::io
