#include "server/services/scheduling_service.h"

#include "server/services/job_service.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr size_t kMaxJobHoldReason = 500;

}  // namespace

void SchedulingService::AddTo(Methods& methods) {
  using enum Caller;
  using enum Place;
  constexpr Role kViewer = Role::kViewer, kSubmitter = Role::kSubmitter, kAdmin = Role::kAdmin;
  constexpr Audit kChange = Audit::kChange;
  using Self = SchedulingService;
  methods.Unary({"SchedulingService.HoldJob", kUser, kSubmitter, kNamed, kChange}, this,
                &Self::HoldJob);
  methods.Unary({"SchedulingService.ReleaseJob", kUser, kSubmitter, kNamed, kChange}, this,
                &Self::ReleaseJob);
  methods.Unary({"SchedulingService.ExplainWait", kUser, kViewer, kNamed}, this,
                &Self::ExplainWait);
  // What a sweep names is in its job.
  methods.Unary({"SchedulingService.SubmitSweep", kUser, kSubmitter, kProject, kChange}, this,
                &Self::SubmitSweep, &v1::SubmitSweepRequest::job);
  methods.Unary({"SchedulingService.CancelSweep", kUser, kSubmitter, kOwn, kChange}, this,
                &Self::CancelSweep);
  methods.Unary({"SchedulingService.ListProjects", kUser, kViewer, kOwn}, this,
                &Self::ListProjects);
  methods.Unary({"SchedulingService.SetProject", kUser, kAdmin, kServer, kChange}, this,
                &Self::SetProject);
}

absl::StatusOr<v1::Job> SchedulingService::HoldJob(CallContext& call,
                                                   const v1::HoldJobRequest& request) {
  const auto holding = request.pause() ? JobManager::Holding::kPause : JobManager::Holding::kHold;
  return jobs_.Hold(request.name(), holding, request.reason().substr(0, kMaxJobHoldReason),
                    call.actor());
}

absl::StatusOr<v1::Job> SchedulingService::ReleaseJob(CallContext& call,
                                                      const v1::ReleaseJobRequest& request) {
  return jobs_.Hold(request.name(), JobManager::Holding::kRelease, "", call.actor());
}

absl::StatusOr<v1::WaitExplanation> SchedulingService::ExplainWait(
    CallContext&, const v1::ExplainWaitRequest& request) {
  return waits_.Explain(request.name());
}

absl::StatusOr<v1::SubmitSweepResponse> SchedulingService::SubmitSweep(
    CallContext& call, const v1::SubmitSweepRequest& request) {
  v1::SubmitSweepRequest asked = request;
  if (call.project() != kDefaultProject) asked.mutable_job()->set_project(call.project());
  SFT_ASSIGN_OR_RETURN(Sweeps::Sweep sweep, sweeps_.Submit(asked, call.actor()));
  SFT_RETURN_IF_ERROR(RefuseOutcome(sweep.refused, request.job().file_name()));
  return std::move(sweep.response);
}

absl::StatusOr<v1::CancelSweepResponse> SchedulingService::CancelSweep(
    CallContext& call, const v1::CancelSweepRequest& request) {
  const auto may = [&](const std::string& project) {
    return call.caller().admin || call.caller().RoleIn(project) >= Role::kSubmitter;
  };
  return sweeps_.Cancel(request, may, call.actor());
}

absl::StatusOr<v1::ListProjectsResponse> SchedulingService::ListProjects(
    CallContext& call, const v1::ListProjectsRequest&) {
  SFT_ASSIGN_OR_RETURN(v1::ListProjectsResponse all, projects_.List());
  v1::ListProjectsResponse response;
  for (v1::Project& project : *all.mutable_projects()) {
    if (call.caller().admin || call.caller().RoleIn(project.name()) != Role::kNone) {
      *response.add_projects() = std::move(project);
    }
  }
  return response;
}

absl::StatusOr<v1::Project> SchedulingService::SetProject(CallContext& call,
                                                          const v1::SetProjectRequest& request) {
  return projects_.Set(request, call.actor());
}

}  // namespace sft::server
