#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/database/sqlite.h"

namespace sft::server {

// Connections that only read, each in the thread of its caller, beside the one that writes.
// Thread-safe. What a function reads is of one moment: the last commit before it began.
class Readers {
 public:
  // Of a database that another connection has opened, in its write-ahead log's mode.
  static absl::StatusOr<std::unique_ptr<Readers>> Open(const std::string& path, int count);

  // Waits for a connection while all are in use.
  absl::Status Run(const std::function<absl::Status(Database&)>& function) SFT_EXCLUDES(mutex_);

 private:
  Readers() = default;

  Mutex mutex_;
  CondVar free_;
  std::vector<std::unique_ptr<Database>> idle_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
