#pragma once

#include <string>

#include "common/io/file.h"

namespace sft::server {

// Holds the data folder for one server process (flock, so that it ends with the process).
class DataDirLock {
 public:
  // Creates the folder; FAILED_PRECONDITION when another server holds it.
  static absl::StatusOr<DataDirLock> Acquire(const std::string& data_dir);

 private:
  explicit DataDirLock(io::UniqueFd fd) : fd_(std::move(fd)) {}
  io::UniqueFd fd_;
};

}  // namespace sft::server
