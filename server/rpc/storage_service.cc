#include "server/rpc/storage_service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/rpc/status.h"
#include "server/rpc/principal.h"
#include "server/state/names.h"

namespace sft::server {

grpc::Status StorageServiceImpl::GetStorage(grpc::ServerContext* context,
                                            const v1::GetStorageRequest* request,
                                            v1::Storage* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  absl::StatusOr<v1::Storage> storage =
      survey_.Get(request->biggest(), ProjectsWith(CallerOf(*context), Role::kViewer));
  if (!storage.ok()) return rpc::ToGrpc(storage.status());
  *response = *std::move(storage);
  return grpc::Status::OK;
}

grpc::Status StorageServiceImpl::RemoveStored(grpc::ServerContext* context,
                                              const v1::RemoveStoredRequest* request,
                                              v1::RemoveStoredResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  auto removed = removal_.Remove(*request, PrincipalOf(*context),
                                 ProjectsWith(CallerOf(*context), Role::kSubmitter));
  if (removed.ok() && !request->dry_run()) survey_.Forget();
  if (!removed.ok()) return rpc::ToGrpc(removed.status());
  *response = *std::move(removed);
  return grpc::Status::OK;
}

grpc::Status StorageServiceImpl::ListStorageQuotas(grpc::ServerContext* context,
                                                   const v1::ListStorageQuotasRequest* request,
                                                   v1::ListStorageQuotasResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  (void)request;  // there is nothing to choose
  const auto quotas = survey_.Quotas();
  if (!quotas.ok()) return rpc::ToGrpc(quotas.status());
  response->mutable_quotas()->Add(quotas->begin(), quotas->end());
  return grpc::Status::OK;
}

grpc::Status StorageServiceImpl::SetStorageQuota(grpc::ServerContext* context,
                                                 const v1::SetStorageQuotaRequest* request,
                                                 v1::StorageQuota* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  if (!IsValidLabel(request->project())) {
    return rpc::ToGrpc(
        InvalidArgument(fmt::format("project \"{}\" is not a name", request->project())));
  }
  if (request->dataset_bytes() < 0 || request->artifact_bytes() < 0) {
    return rpc::ToGrpc(InvalidArgument("a quota is a number of bytes, 0 for no limit"));
  }
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto known, store::QuotaOf(db, request->project()));
    store::Quota quota = known.value_or(store::Quota{request->project()});
    if (request->has_dataset_bytes()) quota.dataset_bytes = request->dataset_bytes();
    if (request->has_artifact_bytes()) quota.artifact_bytes = request->artifact_bytes();
    return store::PutQuota(db, quota);
  });
  if (!stored.ok()) return rpc::ToGrpc(stored);
  spdlog::info("storage quota of project {} set by {}", request->project(), PrincipalOf(*context));
  survey_.Forget();
  const auto quotas = survey_.Quotas();
  if (!quotas.ok()) return rpc::ToGrpc(quotas.status());
  for (const v1::StorageQuota& quota : *quotas) {
    if (quota.project() == request->project()) *response = quota;
  }
  return grpc::Status::OK;
}

}  // namespace sft::server
