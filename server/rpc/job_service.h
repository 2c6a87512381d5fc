#pragma once

#include "server/core/change_hub.h"
#include "server/core/checkpoints.h"
#include "server/core/ingest.h"
#include "server/core/job_intake.h"
#include "server/core/job_manager.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::server {

// The error of a submit that stored nothing; OK where nothing was wrong.
grpc::Status RefuseOutcome(const JobIntake::Outcome& outcome, const std::string& file_name);

// JobService: validates, calls, maps the status. Streams (job_streams.cc) hold a thread each and
// are bounded by ChangeHub.
class JobServiceImpl final : public v1::JobService::Service {
 public:
  JobServiceImpl(JobIntake& intake, JobManager& jobs, Checkpoints& checkpoints, Ingest& ingest,
                 ChangeHub& hub)
      : intake_(intake), jobs_(jobs), checkpoints_(checkpoints), ingest_(ingest), hub_(hub) {}

  grpc::Status ResolveJob(grpc::ServerContext* context, const v1::ResolveJobRequest* request,
                          v1::ResolveJobResponse* response) override;
  grpc::Status SubmitJob(grpc::ServerContext* context, const v1::SubmitJobRequest* request,
                         v1::Job* response) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::Job* response) override;
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::Job* response) override;
  grpc::Status CheckpointJob(grpc::ServerContext* context, const v1::CheckpointJobRequest* request,
                             v1::CheckpointJobResponse* response) override;
  grpc::Status ResumeJob(grpc::ServerContext* context, const v1::ResumeJobRequest* request,
                         v1::Job* response) override;
  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override;
  grpc::Status ListEvents(grpc::ServerContext* context, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::Job>* writer) override;
  grpc::Status ReadMetrics(grpc::ServerContext* context, const v1::ReadMetricsRequest* request,
                           grpc::ServerWriter<v1::ReadMetricsResponse>* writer) override;
  grpc::Status ReadLog(grpc::ServerContext* context, const v1::ReadLogRequest* request,
                       grpc::ServerWriter<v1::ReadLogResponse>* writer) override;
  grpc::Status ReadTensorBoard(grpc::ServerContext* context,
                               const v1::ReadTensorBoardRequest* request,
                               grpc::ServerWriter<v1::ReadTensorBoardResponse>* writer) override;

 private:
  JobIntake& intake_;
  JobManager& jobs_;
  Checkpoints& checkpoints_;
  Ingest& ingest_;
  ChangeHub& hub_;
};

}  // namespace sft::server
