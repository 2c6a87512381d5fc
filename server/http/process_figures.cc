#include "server/http/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>

#include "common/io/file.h"

namespace sft::server {
namespace {

std::string ReadProc(const std::string& path) { return io::ReadFile(path).value_or(""); }

// The number after `skip` spaces; 0 where there is none.
int64_t NumberAfter(std::string_view text, int skip) {
  for (; skip > 0; --skip) {
    const size_t space = text.find(' ');
    if (space == text.npos) return 0;
    text.remove_prefix(space + 1);
  }
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Seconds since the Unix epoch: the machine's start (btime) and the process' own after it, field 22
// of proc_pid_stat(5). The name before it, in parentheses, may hold anything.
double StartTime() {
  constexpr std::string_view kBoot = "\nbtime ";
  const std::string machine = ReadProc("/proc/stat"), process = ReadProc("/proc/self/stat");
  const size_t boot = machine.find(kBoot), name_end = process.rfind(") ");
  if (boot == machine.npos || name_end == process.npos) return 0;
  const int64_t ticks = NumberAfter(std::string_view(process).substr(name_end + 2), 19);
  return static_cast<double>(NumberAfter(std::string_view(machine).substr(boot + 1), 1)) +
         static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

void AddProcess(Exposition& page) {
  const std::string pages = ReadProc("/proc/self/statm");
  const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  page.Metric("process_resident_memory_bytes", "gauge", "Resident memory.");
  page.Sample({}, static_cast<double>(NumberAfter(pages, 1)) * page_bytes);
  page.Metric("process_virtual_memory_bytes", "gauge", "Address space in use.");
  page.Sample({}, static_cast<double>(NumberAfter(pages, 0)) * page_bytes);
  page.Metric("process_start_time_seconds", "gauge", "Start of the process, Unix time.");
  page.Sample({}, StartTime());
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  page.Metric("process_cpu_seconds_total", "counter", "Processor time, the kernel's included.");
  page.Sample({}, Seconds(used.ru_utime) + Seconds(used.ru_stime));
  const auto files = io::ListDir("/proc/self/fd");
  page.Metric("process_open_fds", "gauge", "Open file descriptors.");
  if (files.ok()) page.Sample({}, static_cast<double>(files->size()));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  page.Metric("process_max_fds", "gauge", "File descriptors that the process may have open.");
  page.Sample({}, static_cast<double>(limit.rlim_cur));
}

}  // namespace sft::server
