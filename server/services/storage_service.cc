#include "server/services/storage_service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/state/names.h"

namespace sft::server {

void StorageService::AddTo(Methods& methods) {
  using enum Caller;
  using enum Place;
  constexpr Audit kChange = Audit::kChange;
  using Self = StorageService;
  methods.Unary({"StorageService.GetStorage", kUser, Role::kViewer, kOwn}, this, &Self::GetStorage);
  methods.Unary({"StorageService.RemoveStored", kUser, Role::kSubmitter, kNamed, kChange}, this,
                &Self::RemoveStored);
  methods.Unary({"StorageService.ListStorageQuotas", kUser, Role::kAdmin, kServer}, this,
                &Self::ListStorageQuotas);
  methods.Unary({"StorageService.SetStorageQuota", kUser, Role::kAdmin, kServer, kChange}, this,
                &Self::SetStorageQuota);
}

absl::StatusOr<v1::Storage> StorageService::GetStorage(CallContext& call,
                                                       const v1::GetStorageRequest& request) {
  return survey_.Get(request.biggest(), call.Visible());
}

absl::StatusOr<v1::RemoveStoredResponse> StorageService::RemoveStored(
    CallContext& call, const v1::RemoveStoredRequest& request) {
  SFT_ASSIGN_OR_RETURN(v1::RemoveStoredResponse removed,
                       removal_.Remove(request, call.actor(), call.ProjectsWith(Role::kSubmitter)));
  if (!request.dry_run()) survey_.Forget();
  return removed;
}

absl::StatusOr<v1::ListStorageQuotasResponse> StorageService::ListStorageQuotas(
    CallContext&, const v1::ListStorageQuotasRequest&) {
  SFT_ASSIGN_OR_RETURN(const auto quotas, survey_.Quotas());
  v1::ListStorageQuotasResponse response;
  response.mutable_quotas()->Add(quotas.begin(), quotas.end());
  return response;
}

absl::StatusOr<v1::StorageQuota> StorageService::SetStorageQuota(
    CallContext& call, const v1::SetStorageQuotaRequest& request) {
  if (!IsValidLabel(request.project())) {
    return InvalidArgument(fmt::format("project \"{}\" is not a name", request.project()));
  }
  if (request.dataset_bytes() < 0 || request.artifact_bytes() < 0) {
    return InvalidArgument("a quota is a number of bytes, 0 for no limit");
  }
  const absl::Status stored = store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(const auto known, store::QuotaOf(db, request.project()));
        store::Quota quota = known.value_or(store::Quota{request.project()});
        if (request.has_dataset_bytes()) quota.dataset_bytes = request.dataset_bytes();
        if (request.has_artifact_bytes()) quota.artifact_bytes = request.artifact_bytes();
        return store::PutQuota(db, quota);
      },
      call.audit());
  SFT_RETURN_IF_ERROR(stored);
  spdlog::info("storage quota of project {} set by {}", request.project(), call.caller().Title());
  survey_.Forget();
  SFT_ASSIGN_OR_RETURN(const auto quotas, survey_.Quotas());
  for (const v1::StorageQuota& quota : quotas) {
    if (quota.project() == request.project()) return quota;
  }
  return v1::StorageQuota();
}

}  // namespace sft::server
