#pragma once

#include "server/core/removal.h"
#include "server/core/storage_survey.h"
#include "server/store/store.h"
#include "sft/v1/storage_service.grpc.pb.h"

namespace sft::server {

// StorageService: what the server keeps, and how it goes away.
class StorageServiceImpl final : public v1::StorageService::Service {
 public:
  StorageServiceImpl(Store& store, StorageSurvey& survey, Removal& removal)
      : store_(store), survey_(survey), removal_(removal) {}

  grpc::Status GetStorage(grpc::ServerContext* context, const v1::GetStorageRequest* request,
                          v1::Storage* response) override;
  grpc::Status RemoveStored(grpc::ServerContext* context, const v1::RemoveStoredRequest* request,
                            v1::RemoveStoredResponse* response) override;
  grpc::Status ListStorageQuotas(grpc::ServerContext* context,
                                 const v1::ListStorageQuotasRequest* request,
                                 v1::ListStorageQuotasResponse* response) override;
  grpc::Status SetStorageQuota(grpc::ServerContext* context,
                               const v1::SetStorageQuotaRequest* request,
                               v1::StorageQuota* response) override;

 private:
  Store& store_;
  StorageSurvey& survey_;
  Removal& removal_;
};

}  // namespace sft::server
