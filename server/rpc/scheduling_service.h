#pragma once

#include "server/core/job_manager.h"
#include "server/core/scheduling.h"
#include "sft/v1/scheduling_service.grpc.pb.h"

namespace sft::server {

// SchedulingService: validates, calls, maps the status.
class SchedulingServiceImpl final : public v1::SchedulingService::Service {
 public:
  SchedulingServiceImpl(Scheduling& scheduling, JobManager& jobs)
      : scheduling_(scheduling), jobs_(jobs) {}

  grpc::Status HoldJob(grpc::ServerContext* context, const v1::HoldJobRequest* request,
                       v1::Job* response) override;
  grpc::Status ReleaseJob(grpc::ServerContext* context, const v1::ReleaseJobRequest* request,
                          v1::Job* response) override;
  grpc::Status SubmitSweep(grpc::ServerContext* context, const v1::SubmitSweepRequest* request,
                           v1::SubmitSweepResponse* response) override;
  grpc::Status CancelSweep(grpc::ServerContext* context, const v1::CancelSweepRequest* request,
                           v1::CancelSweepResponse* response) override;
  grpc::Status ListProjects(grpc::ServerContext* context, const v1::ListProjectsRequest* request,
                            v1::ListProjectsResponse* response) override;
  grpc::Status SetProject(grpc::ServerContext* context, const v1::SetProjectRequest* request,
                          v1::Project* response) override;

 private:
  Scheduling& scheduling_;
  JobManager& jobs_;
};

}  // namespace sft::server
