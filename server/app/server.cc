#include "server/app/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/core/artifacts.h"
#include "server/core/backup.h"
#include "server/core/checkpoints.h"
#include "server/core/housekeeping.h"
#include "server/core/job_intake.h"
#include "server/core/uploads.h"
#include "server/http/metrics_page.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/cluster_service.h"
#include "server/rpc/data_service.h"
#include "server/rpc/job_service.h"
#include "server/rpc/worker_service.h"
#include "server/state/names.h"

namespace sft::server {

// In the order in which they are made; the last made goes first.
struct Server::Parts {
  Parts(DataDirLock lock_held, std::unique_ptr<Store> opened_store,
        std::unique_ptr<BlobStore> opened_blobs, std::unique_ptr<BlobStore> opened_checkpoint_blobs,
        const Settings& settings, Clock& clock)
      : lock(std::move(lock_held)),
        store(std::move(opened_store)),
        blobs(std::move(opened_blobs)),
        checkpoint_blobs(std::move(opened_checkpoint_blobs)),
        logs(settings.data_dir + "/logs", settings.log_limits),
        metrics(settings.data_dir + "/metrics"),
        tensorboard(settings.data_dir + "/tensorboard"),
        housekeeping(*store, clock, metrics, tensorboard, settings.thin_metrics_after),
        registry(settings.workers, *store, clock, hub, [this] { loop.Wake(); }),
        relay(registry),
        jobs(*store, clock, hub, [this] { loop.Wake(); }),
        planner(*store, registry, relay),
        intake(*store, *blobs, jobs, planner),
        ingest(*store, clock, logs, metrics, tensorboard, hub),
        artifacts(*store, clock, *blobs, *checkpoint_blobs, relay, hub),
        checkpoints(*store, clock, *checkpoint_blobs, hub, [this] { loop.Wake(); }),
        backups(*store, clock, settings.data_dir),
        reconciler(*store, clock, registry, hub, settings.reconcile),
        job_service(intake, jobs, checkpoints, ingest, hub),
        worker_service(registry, ingest, artifacts, checkpoints, relay),
        cluster_service(*store, registry, settings.dev),
        data_service(*blobs, *checkpoint_blobs, *store, clock, artifacts),
        admin_service(backups),
        host(settings.listen.host) {}

  DataDirLock lock;
  std::unique_ptr<Store> store;
  std::unique_ptr<BlobStore> blobs;
  std::unique_ptr<BlobStore> checkpoint_blobs;
  LogStore logs;
  MetricLog metrics;
  TensorBoard tensorboard;
  Housekeeping housekeeping;
  ChangeHub hub;
  ReconcileLoop loop;
  WorkerRegistry registry;
  FileRelay relay;
  JobManager jobs;
  Planner planner;
  JobIntake intake;
  Ingest ingest;
  Artifacts artifacts;
  Checkpoints checkpoints;
  Backups backups;
  Reconciler reconciler;
  JobServiceImpl job_service;
  WorkerServiceImpl worker_service;
  ClusterServiceImpl cluster_service;
  DataServiceImpl data_service;
  AdminServiceImpl admin_service;
  const std::string host;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<GrpcServer> grpc;
};

namespace {

// The port after the gRPC one, unless told otherwise.
absl::StatusOr<rpc::Endpoint> HttpEndpoint(const Server::Settings& settings) {
  if (!settings.http.empty()) return rpc::ParseEndpoint(settings.http, /*allow_port_zero=*/true);
  rpc::Endpoint endpoint = settings.listen;
  if (endpoint.port > 0) ++endpoint.port;
  return endpoint;
}

}  // namespace

Server::Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Settings& settings, Clock& clock) {
  SFT_ASSIGN_OR_RETURN(DataDirLock lock, DataDirLock::Acquire(settings.data_dir));
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Store> store,
                       Store::Open({settings.data_dir + "/server.db"}));
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> blobs,
                       BlobStore::Open(settings.data_dir + "/blobs"));
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> checkpoint_blobs,
                       BlobStore::Open(settings.data_dir + "/checkpoints"));
  std::unique_ptr<Server> server(new Server());
  server->parts_ = std::make_unique<Parts>(std::move(lock), std::move(store), std::move(blobs),
                                           std::move(checkpoint_blobs), settings, clock);
  Parts& parts = *server->parts_;
  SFT_ASSIGN_OR_RETURN(
      parts.grpc, GrpcServer::Start(settings.listen, {&parts.job_service, &parts.worker_service,
                                                      &parts.cluster_service, &parts.data_service,
                                                      &parts.admin_service}));
  if (settings.http != "off") {
    SFT_ASSIGN_OR_RETURN(const rpc::Endpoint endpoint, HttpEndpoint(settings));
    SFT_ASSIGN_OR_RETURN(parts.http, HttpServer::Start(endpoint, [&parts](const std::string& path) {
                           return ServePage(path, *parts.store, parts.registry);
                         }));
  }
  parts.loop.Start(parts.reconciler, parts.checkpoints);
  parts.housekeeping.Start();
  return server;
}

Server::~Server() {
  if (parts_ == nullptr) return;
  parts_->hub.Shutdown();
  if (parts_->grpc != nullptr) parts_->grpc->Stop();
  parts_->http.reset();
  parts_->housekeeping.Stop();
  parts_->loop.Stop();
}

std::string Server::address() const {
  return rpc::Endpoint{parts_->host, parts_->grpc->port()}.ToString();
}

std::string Server::http_address() const {
  if (parts_->http == nullptr) return "";
  return rpc::Endpoint{parts_->host, parts_->http->port()}.ToString();
}

int Server::connected_workers() const { return parts_->registry.connected(); }

absl::StatusOr<std::vector<std::string>> Server::LiveJobs(bool with_cancelling) {
  store::JobFilter filter;
  filter.limit = store::kMaxPage;
  filter.states = {JobState::kPending, JobState::kPreparing, JobState::kRunning};
  if (with_cancelling) filter.states.push_back(JobState::kCancelling);
  SFT_ASSIGN_OR_RETURN(const JobManager::Page page, parts_->jobs.List(filter));
  std::vector<std::string> live;
  for (const v1::Job& job : page.jobs) {
    SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(job.name()));
    live.push_back(fmt::format("{} {}", ref.id, ToString(static_cast<JobState>(job.state()))));
  }
  return live;
}

absl::Status Server::CancelLiveJobs(const std::string& reason) {
  // A listing has one page: what is cancelled makes room for the next.
  while (true) {
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> live, LiveJobs(/*with_cancelling=*/false));
    if (live.empty()) return absl::OkStatus();
    for (const std::string& job : live) {
      const std::string id = job.substr(0, job.find(' '));
      SFT_RETURN_IF_ERROR(parts_->jobs.Cancel(id, reason, false).status());
    }
  }
}

std::shared_ptr<grpc::Channel> Server::InProcessChannel() {
  return parts_->grpc->InProcessChannel();
}

}  // namespace sft::server
