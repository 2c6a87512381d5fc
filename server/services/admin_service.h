#pragma once

#include "server/core/generation.h"
#include "server/door/methods.h"
#include "server/stored/backup.h"
#include "sft/v1/admin_service.pb.h"

namespace sft::server {

// AdminService: what an operator does to the server itself.
class AdminService final {
 public:
  AdminService(Backups& backups, Generation& generation)
      : backups_(backups), generation_(generation) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::Status Backup(CallContext& call, const v1::BackupRequest& request,
                      Sink<v1::BackupResponse>& sink);
  absl::Status ReadFile(CallContext& call, const v1::ReadFileRequest& request,
                        Sink<v1::ReadFileResponse>& sink);
  absl::StatusOr<v1::RetireResponse> Retire(CallContext& call, const v1::RetireRequest& request);

 private:
  Backups& backups_;
  Generation& generation_;
};

}  // namespace sft::server
