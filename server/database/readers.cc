#include "server/database/readers.h"

#include <utility>

namespace sft::server {
namespace {

absl::Status RunIn(Database& db, const std::function<absl::Status(Database&)>& function) {
  SFT_RETURN_IF_ERROR(db.Run("BEGIN"));
  absl::Status status = function(db);
  // There is nothing to undo; this ends the moment that was read.
  status.Update(db.Run("ROLLBACK"));
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Readers>> Readers::Open(const std::string& path, int count) {
  std::unique_ptr<Readers> readers(new Readers());
  const MutexLock lock(readers->mutex_);
  for (int i = 0; i < count; ++i) {
    SFT_ASSIGN_OR_RETURN(std::unique_ptr<Database> db, Database::OpenReader(path));
    readers->idle_.push_back(std::move(db));
  }
  return readers;
}

absl::Status Readers::Run(const std::function<absl::Status(Database&)>& function) {
  std::unique_ptr<Database> db;
  {
    const MutexLock lock(mutex_);
    while (idle_.empty()) free_.Wait(mutex_);
    // The last one used has the most in its memory.
    db = std::move(idle_.back());
    idle_.pop_back();
  }
  const absl::Status status = RunIn(*db, function);
  const MutexLock lock(mutex_);
  idle_.push_back(std::move(db));
  free_.NotifyOne();
  return status;
}

}  // namespace sft::server
