#include "common/obs/open_file_limit.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace sft::obs {

void RaiseOpenFileLimit() {
  rlimit files{};
  bool raised = ::getrlimit(RLIMIT_NOFILE, &files) == 0;
  if (raised && files.rlim_cur != files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    raised = ::setrlimit(RLIMIT_NOFILE, &files) == 0;
  }
  if (!raised) spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));
}

}  // namespace sft::obs
