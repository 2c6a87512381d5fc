#include "server/rpc/scheduling_service.h"

#include "common/rpc/status.h"
#include "server/rpc/job_service.h"
#include "server/rpc/principal.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr size_t kMaxReason = 500;

template <typename Message>
grpc::Status Answer(absl::StatusOr<Message> answer, Message* response) {
  if (!answer.ok()) return rpc::ToGrpc(answer.status());
  *response = *std::move(answer);
  return grpc::Status::OK;
}

}  // namespace

grpc::Status SchedulingServiceImpl::HoldJob(grpc::ServerContext* context,
                                            const v1::HoldJobRequest* request, v1::Job* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return Answer(jobs_.Hold(request->name(), true, request->reason().substr(0, kMaxReason)),
                response);
}

grpc::Status SchedulingServiceImpl::ReleaseJob(grpc::ServerContext* context,
                                               const v1::ReleaseJobRequest* request,
                                               v1::Job* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return Answer(jobs_.Hold(request->name(), false, ""), response);
}

grpc::Status SchedulingServiceImpl::SubmitSweep(grpc::ServerContext* context,
                                                const v1::SubmitSweepRequest* request,
                                                v1::SubmitSweepResponse* response) {
  if (const auto status = Admit(*context, request->job(), request); !status.ok()) return status;
  v1::SubmitSweepRequest asked = *request;
  if (ProjectOf(*context) != kDefaultProject) asked.mutable_job()->set_project(ProjectOf(*context));
  absl::StatusOr<Scheduling::Sweep> sweep = scheduling_.Submit(asked, PrincipalOf(*context));
  if (!sweep.ok()) return rpc::ToGrpc(sweep.status());
  if (const auto refused = RefuseOutcome(sweep->refused, request->job().file_name());
      !refused.ok()) {
    return refused;
  }
  *response = std::move(sweep->response);
  return grpc::Status::OK;
}

grpc::Status SchedulingServiceImpl::CancelSweep(grpc::ServerContext* context,
                                                const v1::CancelSweepRequest* request,
                                                v1::CancelSweepResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  const Principal& caller = CallerOf(*context);
  const auto may = [&](const std::string& project) {
    return caller.admin || caller.RoleIn(project) >= Role::kSubmitter;
  };
  return Answer(scheduling_.Cancel(*request, may), response);
}

grpc::Status SchedulingServiceImpl::ListProjects(grpc::ServerContext* context,
                                                 const v1::ListProjectsRequest* request,
                                                 v1::ListProjectsResponse* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  absl::StatusOr<v1::ListProjectsResponse> all = scheduling_.ListProjects();
  if (!all.ok()) return rpc::ToGrpc(all.status());
  const Principal& caller = CallerOf(*context);
  for (v1::Project& project : *all->mutable_projects()) {
    if (caller.admin || caller.RoleIn(project.name()) != Role::kNone) {
      *response->add_projects() = std::move(project);
    }
  }
  return grpc::Status::OK;
}

grpc::Status SchedulingServiceImpl::SetProject(grpc::ServerContext* context,
                                               const v1::SetProjectRequest* request,
                                               v1::Project* response) {
  if (const auto status = Admit(*context, *request); !status.ok()) return status;
  return Answer(scheduling_.SetProject(*request), response);
}

}  // namespace sft::server
