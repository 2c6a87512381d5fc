#pragma once

#include "server/core/change_hub.h"
#include "server/door/methods.h"
#include "server/gangs/ingest.h"
#include "server/jobs/job_intake.h"
#include "server/jobs/job_manager.h"
#include "server/stored/checkpoints.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// The error of a submit that stored nothing; OK where nothing was wrong.
absl::Status RefuseOutcome(const JobIntake::Outcome& outcome, const std::string& file_name);

// JobService: validates and calls. Streams (job_streams.cc) hold a thread each and
// are bounded by ChangeHub.
class JobService final {
 public:
  JobService(JobIntake& intake, JobManager& jobs, Checkpoints& checkpoints, Ingest& ingest,
             ChangeHub& hub)
      : intake_(intake), jobs_(jobs), checkpoints_(checkpoints), ingest_(ingest), hub_(hub) {}

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
  absl::Status WatchJob(CallContext& call, const v1::WatchJobRequest& request, Sink<v1::Job>& sink);
  absl::Status ReadMetrics(CallContext& call, const v1::ReadMetricsRequest& request,
                           Sink<v1::ReadMetricsResponse>& sink);
  absl::Status ReadLog(CallContext& call, const v1::ReadLogRequest& request,
                       Sink<v1::ReadLogResponse>& sink);
  absl::Status ReadTensorBoard(CallContext& call, const v1::ReadTensorBoardRequest& request,
                               Sink<v1::ReadTensorBoardResponse>& sink);

 private:
  JobIntake& intake_;
  JobManager& jobs_;
  Checkpoints& checkpoints_;
  Ingest& ingest_;
  ChangeHub& hub_;
};

}  // namespace sft::server
