#pragma once

#include "server/door/methods.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/projects.h"
#include "server/jobs/sweeps.h"
#include "server/jobs/wait_explainer.h"
#include "sft/v1/scheduling_service.pb.h"

namespace sft::server {

// SchedulingService: holds, why jobs wait, sweeps and projects.
class SchedulingService final {
 public:
  SchedulingService(Sweeps& sweeps, Projects& projects, JobManager& jobs, WaitExplainer& waits)
      : sweeps_(sweeps), projects_(projects), jobs_(jobs), waits_(waits) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::Job> HoldJob(CallContext& call, const v1::HoldJobRequest& request);
  absl::StatusOr<v1::Job> ReleaseJob(CallContext& call, const v1::ReleaseJobRequest& request);
  absl::StatusOr<v1::WaitExplanation> ExplainWait(CallContext& call,
                                                  const v1::ExplainWaitRequest& request);
  absl::StatusOr<v1::SubmitSweepResponse> SubmitSweep(CallContext& call,
                                                      const v1::SubmitSweepRequest& request);
  absl::StatusOr<v1::CancelSweepResponse> CancelSweep(CallContext& call,
                                                      const v1::CancelSweepRequest& request);
  absl::StatusOr<v1::ListProjectsResponse> ListProjects(CallContext& call,
                                                        const v1::ListProjectsRequest& request);
  absl::StatusOr<v1::Project> SetProject(CallContext& call, const v1::SetProjectRequest& request);

 private:
  Sweeps& sweeps_;
  Projects& projects_;
  JobManager& jobs_;
  WaitExplainer& waits_;
};

}  // namespace sft::server
