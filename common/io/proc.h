#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace sft::io {

// What /proc/PID/stat says of a process.
struct ProcessStat {
  char state = 0;  // 'Z': ended, not yet reaped; 'T': stopped; 'D': waits in the kernel
  pid_t parent = 0;
  uint64_t cpu_ticks = 0;    // CPU time of all its threads so far
  uint64_t start_ticks = 0;  // with the pid it names a process until the machine restarts
};

// Nothing when there is no such process.
std::optional<ProcessStat> ReadProcessStat(pid_t pid);

}  // namespace sft::io
