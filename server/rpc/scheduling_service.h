#pragma once

#include "server/core/job_manager.h"
#include "server/core/scheduling.h"
#include "server/rpc/methods.h"
#include "sft/v1/scheduling_service.pb.h"

namespace sft::server {

// SchedulingService: holds, sweeps and projects.
class SchedulingService final {
 public:
  SchedulingService(Scheduling& scheduling, JobManager& jobs)
      : scheduling_(scheduling), jobs_(jobs) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::Job> HoldJob(CallContext& call, const v1::HoldJobRequest& request);
  absl::StatusOr<v1::Job> ReleaseJob(CallContext& call, const v1::ReleaseJobRequest& request);
  absl::StatusOr<v1::SubmitSweepResponse> SubmitSweep(CallContext& call,
                                                      const v1::SubmitSweepRequest& request);
  absl::StatusOr<v1::CancelSweepResponse> CancelSweep(CallContext& call,
                                                      const v1::CancelSweepRequest& request);
  absl::StatusOr<v1::ListProjectsResponse> ListProjects(CallContext& call,
                                                        const v1::ListProjectsRequest& request);
  absl::StatusOr<v1::Project> SetProject(CallContext& call, const v1::SetProjectRequest& request);

 private:
  Scheduling& scheduling_;
  JobManager& jobs_;
};

}  // namespace sft::server
