#pragma once

namespace sft::obs {

// Raises this process's soft limit of open files (RLIMIT_NOFILE) to its hard limit, for processes
// that are started outside of a service manager: the usual soft limit of 1,024 is less than a large
// fleet's connections. Child processes inherit it. A failure is only logged.
void RaiseOpenFileLimit();

}  // namespace sft::obs
