#pragma once

#include "server/door/methods.h"
#include "server/stored/backup.h"
#include "sft/v1/admin_service.pb.h"

namespace sft::server {

// AdminService: what an operator does to the server itself.
class AdminService final {
 public:
  explicit AdminService(Backups& backups) : backups_(backups) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::Status Backup(CallContext& call, const v1::BackupRequest& request,
                      Sink<v1::BackupResponse>& sink);

 private:
  Backups& backups_;
};

}  // namespace sft::server
