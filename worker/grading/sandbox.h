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
  std::string folder;              // its own: where it runs, and the only one that it may write to
  std::vector<std::string> roots;  // that it may read and run, beside the system's
};

// Whether the kernel can confine programs so: with namespaces (no network, no other process to be
// seen, and none that outlives the program) and Landlock (it reads the system, the roots and its
// folder, and writes to its folder alone). FAILED_PRECONDITION says what is missing. Tried in a
// child.
absl::Status CheckConfinement();

// Runs a program to its end: no shell, no sockets, `input` on its standard input, an environment of
// PATH, HOME, TMPDIR and LANG alone, no file of this process open, and whatever it has started is
// killed with it. Returns its standard output. ABORTED where `stop` was set; another error says
// what went wrong, with the last line of its standard error. Safe in a process with many threads.
absl::StatusOr<std::string> RunConfined(const std::vector<std::string>& argv,
                                        std::string_view input, const Confinement& confinement,
                                        const std::atomic<bool>& stop);

}  // namespace sft::grading
