#include "common/io/proc.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>

#include "common/io/file.h"

namespace sft::io {

std::optional<ProcessStat> ReadProcessStat(pid_t pid) {
  const absl::StatusOr<std::string> text = ReadFile(fmt::format("/proc/{}/stat", pid));
  if (!text.ok()) return std::nullopt;
  // The command's name may contain anything, so the fields, of which the state is the third, are
  // parsed after its last ')'.
  const size_t end = text->rfind(')');
  if (end == std::string::npos) return std::nullopt;
  ProcessStat stat;
  uint64_t user = 0, system = 0;
  const int got = sscanf(text->c_str() + end + 1,
                         " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64
                         " %*d %*d %*d %*d %*d %*d %" SCNu64,
                         &stat.state, &stat.parent, &user, &system, &stat.start_ticks);
  if (got != 5) return std::nullopt;
  stat.cpu_ticks = user + system;
  return stat;
}

}  // namespace sft::io
