#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::server {

// Secrets of projects by which the server calls others for their jobs, such as a judge's API key.
// Each is a file DIR/PROJECT/NAME beside the database, for this user alone, and so in no backup. No
// call returns a value, no node gets one, and no message holds one. Thread-safe.
class Secrets {
 public:
  // A value is cut out of what a judge says: a shorter one could be part of any word.
  static constexpr size_t kFewestBytes = 8;
  static constexpr size_t kMostBytes = 4096, kMostOfProject = 64;

  // An empty folder: none are kept.
  explicit Secrets(std::string dir) : dir_(std::move(dir)) {}

  // In order.
  absl::StatusOr<std::vector<std::string>> Names(const std::string& project) const;
  // NOT_FOUND: the project has none of that name.
  absl::StatusOr<std::string> Get(const std::string& project, const std::string& name) const;
  // INVALID_ARGUMENT for a name or a value that cannot be one, also from Check, which sets nothing.
  static absl::Status Check(std::string_view name, std::string_view value);
  // An empty value removes it.
  absl::Status Set(const std::string& project, const std::string& name, const std::string& value);

 private:
  std::string PathOf(const std::string& project, const std::string& name) const {
    return dir_ + "/" + project + "/" + name;
  }

  const std::string dir_;
};

}  // namespace sft::server
