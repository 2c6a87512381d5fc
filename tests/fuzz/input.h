#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace sft::fuzz {

// The input as a file, for code that reads files; in memory alone.
class InputFile {
 public:
  InputFile(const uint8_t* data, size_t size) : fd_(memfd_create("input", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~InputFile() { close(fd_); }
  InputFile(const InputFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

// A broken promise is a crash that the fuzzer keeps.
inline void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace sft::fuzz
