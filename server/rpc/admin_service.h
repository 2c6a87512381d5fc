#pragma once

#include "server/core/backup.h"
#include "sft/v1/admin_service.grpc.pb.h"

namespace sft::server {

// AdminService: what an operator does to the server itself.
class AdminServiceImpl final : public v1::AdminService::Service {
 public:
  explicit AdminServiceImpl(Backups& backups) : backups_(backups) {}

  grpc::Status Backup(grpc::ServerContext* context, const v1::BackupRequest* request,
                      grpc::ServerWriter<v1::BackupResponse>* writer) override;

 private:
  Backups& backups_;
};

}  // namespace sft::server
