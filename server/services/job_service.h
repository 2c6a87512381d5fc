#pragma once

#include <memory>

#include "server/door/methods.h"
#include "server/gangs/ingest.h"
#include "server/jobs/job_intake.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/profiling.h"
#include "server/jobs/serving.h"
#include "server/jobs/wait_explainer.h"
#include "server/stored/checkpoints.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// The error of a submit that stored nothing; OK where nothing was wrong.
absl::Status RefuseOutcome(const JobIntake::Outcome& outcome, const std::string& file_name);

// JobService: validates and calls. Its streams are in job_streams.cc.
class JobService final {
 public:
  JobService(JobIntake& intake, JobManager& jobs, Checkpoints& checkpoints, Ingest& ingest,
             Serving& serving, WaitExplainer& waits, Profiling& profiling)
      : intake_(intake),
        jobs_(jobs),
        checkpoints_(checkpoints),
        ingest_(ingest),
        serving_(serving),
        waits_(waits),
        profiling_(profiling) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::ResolveJobResponse> ResolveJob(CallContext& call,
                                                    const v1::ResolveJobRequest& request);
  absl::StatusOr<v1::Job> SubmitJob(CallContext& call, const v1::SubmitJobRequest& request);
  absl::StatusOr<v1::Job> GetJob(CallContext& call, const v1::GetJobRequest& request);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(CallContext& call,
                                                const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(CallContext& call, const v1::CancelJobRequest& request);
  absl::StatusOr<v1::CheckpointJobResponse> CheckpointJob(CallContext& call,
                                                          const v1::CheckpointJobRequest& request);
  absl::StatusOr<v1::Job> ResumeJob(CallContext& call, const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
      CallContext& call, const v1::ListCheckpointsRequest& request);
  absl::StatusOr<v1::ListEventsResponse> ListEvents(CallContext& call,
                                                    const v1::ListEventsRequest& request);
  absl::StatusOr<std::unique_ptr<Follower>> WatchJob(CallContext& call,
                                                     const v1::WatchJobRequest& request);
  absl::StatusOr<std::unique_ptr<Follower>> ReadMetrics(CallContext& call,
                                                        const v1::ReadMetricsRequest& request);
  absl::StatusOr<v1::Curve> GetCurve(CallContext& call, const v1::GetCurveRequest& request);
  absl::StatusOr<std::unique_ptr<Follower>> ReadLog(CallContext& call,
                                                    const v1::ReadLogRequest& request);
  absl::Status ReadTensorBoard(CallContext& call, const v1::ReadTensorBoardRequest& request,
                               Sink<v1::ReadTensorBoardResponse>& sink);
  absl::Status Generate(CallContext& call, const v1::GenerateRequest& request,
                        Sink<v1::GenerateResponse>& sink);
  absl::Status ProfileJob(CallContext& call, const v1::ProfileJobRequest& request,
                          Sink<v1::ProfileJobResponse>& sink);

 private:
  JobIntake& intake_;
  JobManager& jobs_;
  Checkpoints& checkpoints_;
  Ingest& ingest_;
  Serving& serving_;
  WaitExplainer& waits_;
  Profiling& profiling_;
};

}  // namespace sft::server
