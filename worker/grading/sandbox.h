#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::grading {

// What a program of a user's may do, and for how long.
struct Confinement {
  std::chrono::milliseconds deadline{10'000};
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t processes = 32;
  int64_t file_bytes = int64_t{64} << 20;
  size_t output_bytes = size_t{64} << 10;
  int64_t folder_bytes = int64_t{256} << 20;
  // Where it runs, and the only place that it may write to: for it an empty file system in memory
  // of folder_bytes lies there, which ends with it.
  std::string folder;
  std::vector<std::string> roots;  // that it may read and run, beside the system's
};

// Whether the kernel can confine programs of this process's user so: with namespaces (no network,
// no other process to be seen, none that outlives the program, every file system read-only but its
// folder), Landlock (it reads single parts of the system, the roots and its folder) and seccomp (no
// sockets, no key rings). FAILED_PRECONDITION says what is missing. Tried with a program.
absl::Status CheckConfinement();

// Runs a program to its end: no shell, no sockets, `input` on its standard input, an environment of
// PATH, HOME, TMPDIR and LANG alone, no file of this process open, and whatever it has started is
// killed with it. Returns its standard output. ABORTED where `stop` was set; another error says
// what went wrong, with the last line of its standard error. Safe in a process with many threads.
absl::StatusOr<std::string> RunConfined(const std::vector<std::string>& argv,
                                        std::string_view input, const Confinement& confinement,
                                        const std::atomic<bool>& stop);

}  // namespace sft::grading
