#pragma once

#include <string>

#include "client/base/connection.h"
#include "sft/v1/data_service.pb.h"

namespace sft::client {

// A file of this machine, by content.
struct LocalFile {
  std::string path;  // on this machine
  std::string sha256;
  int64_t size = 0;
};

// Reads and hashes a file that a job names; the error names the key that asked for it.
absl::StatusOr<LocalFile> HashLocalFile(const std::string& key, const std::string& path);

// Whether the server has the file for this project; also false where it does not say.
bool IsUploaded(Connection& connection, const LocalFile& file, const std::string& project);

// Sends the file unless the server has it, from where an earlier upload stopped. Safe to repeat.
// `project`: whose it will be; empty: the server knows the one.
absl::Status UploadDataset(Connection& connection, const LocalFile& file,
                           const std::string& project);

}  // namespace sft::client
