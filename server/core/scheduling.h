#pragma once

#include <string>

#include "server/core/job_intake.h"
#include "server/core/job_manager.h"
#include "server/store/store.h"
#include "sft/v1/scheduling_service.pb.h"

namespace sft::server {

// Sweeps, and what projects may use. Thread-safe.
class Scheduling {
 public:
  // Jobs of one sweep.
  static constexpr int64_t kMaxSweep = 1000;
  // Of the job file, once for each job: so much of it is stored.
  static constexpr int64_t kMaxSweepBytes = 64 << 20;

  Scheduling(Store& store, Clock& clock, JobIntake& intake, JobManager& jobs)
      : store_(store), clock_(clock), intake_(intake), jobs_(jobs) {}

  struct Sweep {
    // Not empty: refused, with all problems of one combination, and nothing was stored.
    JobIntake::Outcome refused;
    v1::SubmitSweepResponse response;
  };
  absl::StatusOr<Sweep> Submit(const v1::SubmitSweepRequest& request, const Actor& actor);
  // Of the sweep's jobs those of projects in which the caller `may`; the others are not there.
  absl::StatusOr<v1::CancelSweepResponse> Cancel(
      const v1::CancelSweepRequest& request,
      const std::function<bool(const std::string& project)>& may, const Actor& actor);

  absl::StatusOr<v1::ListProjectsResponse> ListProjects();
  absl::StatusOr<v1::Project> SetProject(const v1::SetProjectRequest& request, const Actor& actor);

 private:
  Store& store_;
  Clock& clock_;
  JobIntake& intake_;
  JobManager& jobs_;
};

}  // namespace sft::server
