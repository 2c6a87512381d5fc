#include "server/rpc/rules.h"

#include <algorithm>

namespace sft::server {
namespace {

constexpr bool kChange = true;

constexpr Rule kRules[] = {
    {"/sft.v1.JobService/ResolveJob", Caller::kUser, Role::kSubmitter, Place::kAny},
    {"/sft.v1.JobService/SubmitJob", Caller::kUser, Role::kSubmitter, Place::kProject, kChange},
    {"/sft.v1.JobService/GetJob", Caller::kUser, Role::kViewer, Place::kNamed},
    {"/sft.v1.JobService/ListJobs", Caller::kUser, Role::kViewer, Place::kOwn},
    {"/sft.v1.JobService/CancelJob", Caller::kUser, Role::kSubmitter, Place::kNamed, kChange},
    {"/sft.v1.JobService/CheckpointJob", Caller::kUser, Role::kSubmitter, Place::kNamed, kChange},
    {"/sft.v1.JobService/ResumeJob", Caller::kUser, Role::kSubmitter, Place::kNamed, kChange},
    {"/sft.v1.JobService/ListCheckpoints", Caller::kUser, Role::kViewer, Place::kNamed},
    {"/sft.v1.JobService/WatchJob", Caller::kUser, Role::kViewer, Place::kNamed},
    {"/sft.v1.JobService/ListEvents", Caller::kUser, Role::kViewer, Place::kNamed},
    {"/sft.v1.JobService/ReadMetrics", Caller::kUser, Role::kViewer, Place::kNamed},
    {"/sft.v1.JobService/ReadLog", Caller::kUser, Role::kViewer, Place::kNamed},
    {"/sft.v1.JobService/ReadTensorBoard", Caller::kUser, Role::kViewer, Place::kNamed},

    {"/sft.v1.DataService/StatBlob", Caller::kEither, Role::kSubmitter, Place::kProject},
    {"/sft.v1.DataService/UploadBlob", Caller::kEither, Role::kSubmitter, Place::kProject, kChange},
    {"/sft.v1.DataService/DownloadBlob", Caller::kEither, Role::kViewer, Place::kOwn},
    {"/sft.v1.DataService/GetArtifact", Caller::kUser, Role::kViewer, Place::kNamed},
    {"/sft.v1.DataService/DownloadArtifactFile", Caller::kUser, Role::kViewer, Place::kNamed},

    // Before it knows its role a client asks for the server's version.
    {"/sft.v1.ClusterService/GetServerInfo", Caller::kEither, Role::kNone, Place::kAny},
    {"/sft.v1.ClusterService/ListNodes", Caller::kUser, Role::kViewer, Place::kAny},
    {"/sft.v1.ClusterService/ListVariants", Caller::kUser, Role::kViewer, Place::kAny},
    {"/sft.v1.ClusterService/ListModels", Caller::kUser, Role::kViewer, Place::kAny},

    {"/sft.v1.AdminService/Backup", Caller::kUser, Role::kAdmin, Place::kServer, kChange},

    {"/sft.v1.OperatorService/HoldNode", Caller::kUser, Role::kAdmin, Place::kServer, kChange},
    {"/sft.v1.OperatorService/ReleaseNode", Caller::kUser, Role::kAdmin, Place::kServer, kChange},
    {"/sft.v1.OperatorService/RemoveNode", Caller::kUser, Role::kAdmin, Place::kServer, kChange},
    {"/sft.v1.OperatorService/GetStats", Caller::kUser, Role::kAdmin, Place::kServer},

    {"/sft.v1.SchedulingService/HoldJob", Caller::kUser, Role::kSubmitter, Place::kNamed, kChange},
    {"/sft.v1.SchedulingService/ReleaseJob", Caller::kUser, Role::kSubmitter, Place::kNamed,
     kChange},
    {"/sft.v1.SchedulingService/SubmitSweep", Caller::kUser, Role::kSubmitter, Place::kProject,
     kChange},
    {"/sft.v1.SchedulingService/CancelSweep", Caller::kUser, Role::kSubmitter, Place::kOwn,
     kChange},
    {"/sft.v1.SchedulingService/ListProjects", Caller::kUser, Role::kViewer, Place::kOwn},
    {"/sft.v1.SchedulingService/SetProject", Caller::kUser, Role::kAdmin, Place::kServer, kChange},

    {"/sft.v1.StorageService/GetStorage", Caller::kUser, Role::kViewer, Place::kOwn},
    {"/sft.v1.StorageService/RemoveStored", Caller::kUser, Role::kSubmitter, Place::kNamed,
     kChange},
    {"/sft.v1.StorageService/ListStorageQuotas", Caller::kUser, Role::kAdmin, Place::kServer},
    {"/sft.v1.StorageService/SetStorageQuota", Caller::kUser, Role::kAdmin, Place::kServer,
     kChange},

    {"/sft.v1.AuthService/WhoAmI", Caller::kEither, Role::kNone, Place::kAny},
    {"/sft.v1.AuthService/Join", Caller::kJoiner, Role::kNone, Place::kServer, kChange},
    {"/sft.v1.AuthService/RenewCertificate", Caller::kNode, Role::kNone, Place::kServer, kChange},
    {"/sft.v1.AuthService/CreateToken", Caller::kUser, Role::kAdmin, Place::kServer, kChange},
    {"/sft.v1.AuthService/ListTokens", Caller::kUser, Role::kAdmin, Place::kServer},
    {"/sft.v1.AuthService/RevokeToken", Caller::kUser, Role::kAdmin, Place::kServer, kChange},
    {"/sft.v1.AuthService/PutUser", Caller::kUser, Role::kAdmin, Place::kServer, kChange},
    {"/sft.v1.AuthService/ListUsers", Caller::kUser, Role::kAdmin, Place::kServer},
    {"/sft.v1.AuthService/RemoveUser", Caller::kUser, Role::kAdmin, Place::kServer, kChange},
    {"/sft.v1.AuthService/ListAuditRecords", Caller::kUser, Role::kAdmin, Place::kServer},

    {"/sft.v1.WorkerService/Session", Caller::kNode, Role::kNone, Place::kServer},
    {"/sft.v1.WorkerService/AppendLog", Caller::kNode, Role::kNone, Place::kServer},
    {"/sft.v1.WorkerService/AppendEvents", Caller::kNode, Role::kNone, Place::kServer},
    {"/sft.v1.WorkerService/CommitArtifact", Caller::kNode, Role::kNone, Place::kServer},
    {"/sft.v1.WorkerService/CommitCheckpoint", Caller::kNode, Role::kNone, Place::kServer},
    {"/sft.v1.WorkerService/SendFile", Caller::kNode, Role::kNone, Place::kServer},
};

}  // namespace

std::span<const Rule> Rules() { return kRules; }

const Rule* FindRule(std::string_view method) {
  const auto* const found = std::find_if(std::begin(kRules), std::end(kRules),
                                         [&](const Rule& rule) { return rule.method == method; });
  return found == std::end(kRules) ? nullptr : found;
}

}  // namespace sft::server
