#pragma once

#include <string>

#include "server/jobs/job_intake.h"
#include "server/jobs/job_manager.h"
#include "server/store/store.h"
#include "sft/v1/scheduling_service.pb.h"

namespace sft::server {

// Sweeps: many jobs from one job file. Thread-safe.
class Sweeps {
 public:
  // Jobs of one sweep.
  static constexpr int64_t kMaxSweep = 1000;
  // Of the job file, once for each job: so much of it is stored.
  static constexpr int64_t kMaxSweepBytes = 64 << 20;

  Sweeps(Store& store, JobIntake& intake, JobManager& jobs)
      : store_(store), intake_(intake), jobs_(jobs) {}

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

 private:
  Store& store_;
  JobIntake& intake_;
  JobManager& jobs_;
};

}  // namespace sft::server
