#pragma once

#include <string>

#include "client/base/connection.h"
#include "sft/v1/data_service.pb.h"

namespace sft::client {

// A local file, with its hash and size.
struct LocalFile {
  std::string path;  // on this machine
  std::string sha256;
  int64_t size = 0;
  std::string name;  // for people, where it is another than the path
  const std::string& shown() const { return name.empty() ? path : name; }
};

// Reads and hashes a file that a job names; the error names the job's key.
absl::StatusOr<LocalFile> HashLocalFile(const std::string& key, const std::string& path);

// True when the server has the file for this project; false too when the server does not answer.
bool IsUploaded(Connection& connection, const LocalFile& file, const std::string& project);

// Uploads the file unless the server has it, resuming an earlier upload. Safe to repeat. `project`:
// the owner; empty: the server knows the only one.
absl::Status UploadDataset(Connection& connection, const LocalFile& file,
                           const std::string& project);

}  // namespace sft::client
