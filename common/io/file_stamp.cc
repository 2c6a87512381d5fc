#include "common/io/file_stamp.h"

#include <fmt/format.h>

namespace sft::io {
namespace {

std::string Text(const timespec& time) {
  return fmt::format("{}.{:09}", time.tv_sec, time.tv_nsec);
}

}  // namespace

std::string ContentStamp(const struct stat& info) {
  return fmt::format("{} bytes of {}", info.st_size, Text(info.st_mtim));
}

std::string FullStamp(const struct stat& info) {
  return fmt::format("{}, inode {} of {}", ContentStamp(info), info.st_ino, Text(info.st_ctim));
}

std::string ContentStampOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? ContentStamp(info) : "";
}

std::string FullStampOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? FullStamp(info) : "";
}

}  // namespace sft::io
