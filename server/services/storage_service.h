#pragma once

#include "server/door/methods.h"
#include "server/store/store.h"
#include "server/stored/removal.h"
#include "server/stored/storage_survey.h"
#include "sft/v1/storage_service.pb.h"

namespace sft::server {

// StorageService: what the server keeps, and how it goes away.
class StorageService final {
 public:
  StorageService(Store& store, StorageSurvey& survey, Removal& removal)
      : store_(store), survey_(survey), removal_(removal) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::Storage> GetStorage(CallContext& call, const v1::GetStorageRequest& request);
  absl::StatusOr<v1::RemoveStoredResponse> RemoveStored(CallContext& call,
                                                        const v1::RemoveStoredRequest& request);
  absl::StatusOr<v1::ListStorageQuotasResponse> ListStorageQuotas(
      CallContext& call, const v1::ListStorageQuotasRequest& request);
  absl::StatusOr<v1::StorageQuota> SetStorageQuota(CallContext& call,
                                                   const v1::SetStorageQuotaRequest& request);

 private:
  Store& store_;
  StorageSurvey& survey_;
  Removal& removal_;
};

}  // namespace sft::server
