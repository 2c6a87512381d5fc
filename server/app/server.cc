#include "server/app/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <functional>
#include <random>

#include "common/base/env.h"
#include "common/hub/http.h"
#include "common/io/file.h"
#include "common/io/tree.h"
#include "server/app/credentials.h"
#include "server/core/access.h"
#include "server/core/generation.h"
#include "server/http/metrics_page.h"
#include "server/jobs/job_intake.h"
#include "server/jobs/sweeps.h"
#include "server/jobs/wait_explainer.h"
#include "server/oidc/oidc.h"
#include "server/services/admin_service.h"
#include "server/services/auth_service.h"
#include "server/services/cluster_service.h"
#include "server/services/data_service.h"
#include "server/services/file_service.h"
#include "server/services/job_service.h"
#include "server/services/login_service.h"
#include "server/services/operator_service.h"
#include "server/services/scheduling_service.h"
#include "server/services/serving_service.h"
#include "server/services/storage_service.h"
#include "server/services/web_service.h"
#include "server/services/webhook_service.h"
#include "server/services/worker_service.h"
#include "server/state/names.h"
#include "server/stored/artifacts.h"
#include "server/stored/backup.h"
#include "server/stored/checkpoints.h"
#include "server/stored/housekeeping.h"
#include "server/stored/standby_copy.h"
#include "server/stored/uploads.h"
#include "server/webhooks/job_addresses.h"
#include "server/webhooks/webhook_sender.h"
#include "server/webhooks/webhooks.h"

namespace sft::server {
namespace {

hub::HttpOptions HttpOptionsOf(const std::string& ca_file) {
  return hub::HttpOptionsOf(ca_file,
                            [](const std::string& name) { return GetEnv(name).value_or(""); });
}

// Numbers from 0 to 1, so that servers do not try again at the same time.
std::function<double()> Chance() {
  return [numbers = std::minstd_rand(std::random_device()())]() mutable {
    return std::uniform_real_distribution<double>(0, 1)(numbers);
  };
}

// Look-ups for new webhooks and those of jobs have threads of their own: slow ones keep nothing
// from being sent.
struct WebhookGuards {
  AddressGuard sends, adds, jobs;
};

absl::StatusOr<WebhookGuards> MakeGuards(const std::vector<std::string>& allowed) {
  SFT_ASSIGN_OR_RETURN(AddressGuard sends, AddressGuard::Make(allowed));
  SFT_ASSIGN_OR_RETURN(AddressGuard adds, AddressGuard::Make(allowed));
  SFT_ASSIGN_OR_RETURN(AddressGuard jobs, AddressGuard::Make(allowed));
  return WebhookGuards{std::move(sends), std::move(adds), std::move(jobs)};
}

MailRules RulesOf(const Server::Settings& settings) {
  return {settings.mail.has_value(), settings.mail_to};
}

}  // namespace

// Members in the order of construction; destroyed in reverse.
struct Server::Parts {
  Parts(DataDirLock lock_held, std::unique_ptr<Store> opened_store,
        std::unique_ptr<BlobStore> opened_blobs, std::unique_ptr<BlobStore> opened_checkpoint_blobs,
        std::unique_ptr<Access> loaded_access, std::unique_ptr<Generation> loaded_generation,
        std::unique_ptr<Oidc> made_oidc, WebhookGuards guards, bool open, const Settings& settings,
        Clock& clock)
      : lock(std::move(lock_held)),
        store(std::move(opened_store)),
        access(std::move(loaded_access)),
        generation(std::move(loaded_generation)),
        oidc(std::move(made_oidc)),
        gate(*access, *store, clock, open),
        blobs(std::move(opened_blobs)),
        checkpoint_blobs(std::move(opened_checkpoint_blobs)),
        logs(settings.data_dir + "/logs", settings.log_limits),
        metrics(settings.data_dir + "/metrics"),
        tensorboard(settings.data_dir + "/tensorboard"),
        gpus(settings.data_dir + "/gpu-use"),
        disk(settings.data_dir, settings.disk_marks, clock),
        limits(*store, clock, disk),
        survey(*store, clock, settings.data_dir, disk, limits),
        checkpoints(*store, clock, *checkpoint_blobs, hub, [this] { loop.Wake(); }),
        removal(
            *store, clock, settings.data_dir, {*blobs, logs, metrics, tensorboard, checkpoints},
            hub, [this] { loop.Wake(); }, settings.ages, access.get()),
        webhook_secrets(settings.data_dir + "/webhooks"),
        job_addresses(*store, clock, webhook_secrets, std::move(guards.jobs)),
        housekeeping(*store, clock, metrics, tensorboard, settings.thin_metrics_after, &removal,
                     &disk, &gate.failed(), &gpus, [this] { return job_addresses.Tidy(); }),
        registry(
            settings.workers, *store, clock, hub, [this] { loop.Wake(); }, &gpus, generation.get()),
        relay(registry),
        jobs(
            *store, clock, hub, [this] { loop.Wake(); }, &outlooks, &job_addresses),
        hub_models(settings.hub, clock),
        planner(*store, registry, relay, &hub_models),
        copies(*store, registry, relay),
        deliveries(*store, planner.fleet(), disk, registry.refusals(), settings.max_delivery),
        serving(*store, relay),
        profiling(*store, relay),
        secrets(settings.data_dir + "/secrets"),
        judges(settings.judges, *store, serving, secrets, clock),
        intake(*store, *blobs, jobs, planner, &limits, &judges, RulesOf(settings), &job_addresses),
        ingest(*store, clock, logs, metrics, tensorboard, hub, &registry.refusals()),
        artifacts(*store, clock, *blobs, *checkpoint_blobs, relay, hub),
        backups(*store, clock, settings.data_dir),
        sweeps(*store, intake, jobs),
        projects(*store, clock, &hub_models, &secrets),
        webhook_transport(std::move(guards.sends), HttpOptionsOf(settings.webhook_ca)),
        mail(settings.mail.has_value() ? std::make_unique<SmtpTransport>(*settings.mail, clock)
                                       : nullptr),
        webhook_sender(*store, webhook_secrets, webhook_transport, clock, Chance(), mail.get()),
        webhooks(
            *store, clock, webhook_secrets, std::move(guards.adds),
            [this] { webhook_sender.Wake(); }, RulesOf(settings)),
        reconciler(*store, clock, registry, hub, settings.reconcile, &outlooks),
        waits(*store, registry, intake, clock),
        job_service(intake, jobs, checkpoints, ingest, serving, waits, profiling),
        worker_service(registry, ingest, artifacts, checkpoints, relay, *store, hub_models, judges,
                       copies),
        cluster_service(*store, registry, settings.dev, planner.fleet(), hub_models, copies, gpus,
                        clock, *generation, &disk),
        data_service(*blobs, *checkpoint_blobs, *store, clock, artifacts, &limits, &deliveries),
        admin_service(backups, *generation),
        auth_service(*access, *store, registry, gate.failed()),
        login_service(oidc.get(), *access),
        operator_service(*store, clock, registry, disk,
                         [this] {
                           hub.Bump(ChangeHub::kSomeNode);
                           loop.Wake();
                         }),
        scheduling_service(sweeps, projects, jobs, waits),
        serving_service(serving),
        storage_service(*store, survey, removal),
        named_files(*store, clock, removal),
        file_service(named_files),
        webhook_service(webhooks),
        web_sessions(clock),
        web_service(web_sessions, clock),
        door(gate),
        methods(AllMethods()),
        sessions(registry, methods.Find("WorkerService.Session")->rule),
        host(settings.listen.host) {
    access->WhenRightsChange(
        [this](const std::string& user) { hub.Bump(ChangeHub::UserKey(user)); });
    web_sessions.WhenLoggedOut([this](const std::string& token_id) {
      if (oidc != nullptr && oidc->renewal() != nullptr) oidc->renewal()->LogOut(token_id);
    });
    store->WhenFed([this] { hub.Bump(kFeedKey); });
  }

  Methods AllMethods() {
    Methods all;
    job_service.AddTo(all);
    worker_service.AddTo(all);
    cluster_service.AddTo(all);
    data_service.AddTo(all);
    admin_service.AddTo(all);
    auth_service.AddTo(all);
    login_service.AddTo(all);
    operator_service.AddTo(all);
    scheduling_service.AddTo(all);
    serving_service.AddTo(all);
    storage_service.AddTo(all);
    file_service.AddTo(all);
    webhook_service.AddTo(all);
    web_service.AddTo(all);
    return all;
  }

  DataDirLock lock;
  std::unique_ptr<Store> store;
  std::unique_ptr<Access> access;
  std::unique_ptr<Generation> generation;
  std::unique_ptr<Oidc> oidc;  // null: there is no company login
  Gate gate;
  std::unique_ptr<BlobStore> blobs;
  std::unique_ptr<BlobStore> checkpoint_blobs;
  LogStore logs;
  MetricLog metrics;
  TensorBoard tensorboard;
  GpuHistory gpus;
  ChangeHub hub;
  ReconcileLoop loop;
  DiskWatch disk;
  IntakeLimits limits;
  StorageSurvey survey;
  Checkpoints checkpoints;
  Removal removal;
  WebhookSecrets webhook_secrets;
  JobAddresses job_addresses;
  Housekeeping housekeeping;
  WorkerRegistry registry;
  FileRelay relay;
  Outlooks outlooks;
  JobManager jobs;
  HubModels hub_models;
  Planner planner;
  ModelCopies copies;
  DeliveryLimits deliveries;
  Serving serving;
  Profiling profiling;
  Secrets secrets;
  Judges judges;
  JobIntake intake;
  Ingest ingest;
  Artifacts artifacts;
  Backups backups;
  Sweeps sweeps;
  Projects projects;
  HttpWebhookTransport webhook_transport;
  const std::unique_ptr<SmtpTransport> mail;  // null: none is sent
  WebhookSender webhook_sender;
  Webhooks webhooks;
  Reconciler reconciler;
  WaitExplainer waits;
  JobService job_service;
  WorkerService worker_service;
  ClusterService cluster_service;
  DataService data_service;
  AdminService admin_service;
  AuthService auth_service;
  LoginService login_service;
  OperatorService operator_service;
  SchedulingService scheduling_service;
  ServingService serving_service;
  StorageService storage_service;
  NamedFiles named_files;
  FileService file_service;
  WebhookService webhook_service;
  WebSessions web_sessions;
  WebService web_service;
  Door door;
  const Methods methods;
  Sessions sessions;
  const std::string host;
  std::string http_host;
  HttpTimes http_times;
  std::unique_ptr<WebFront> http;
  std::unique_ptr<GrpcServer> grpc;
};

namespace {

// The error of a server that others can reach and that has no keys.
absl::Status NoKeys(const Server::Settings& settings, Store& store) {
  SFT_ASSIGN_OR_RETURN(const bool has_fleet, HasUsersOrNodes(store));
  if (has_fleet) return KeysMissing(settings.data_dir);
  return PermissionDenied(fmt::format(
      "--listen {}{}: what is not loopback alone is served with TLS and tokens; make them with "
      "`sft-server init --data-dir {} --name HOST`, then start the server again",
      settings.listen.ToString(), settings.require_token ? " --require-token" : "",
      settings.data_dir));
}

absl::Status NoLoginHere() {
  return InvalidArgument(
      "--oidc: this server asks nobody for a token, so there is nobody to log in; run `sft-server "
      "init` and start it with --require-token, or with another --listen");
}

// Names of everything that the server makes in a data folder; copies of a database before a
// migration have the schema's number in their names.
std::vector<std::string> OwnNames(const std::string& data_dir) {
  std::vector<std::string> names = {"tls",     "server.lock", "blobs",   "checkpoints", "logs",
                                    "metrics", "tensorboard", "backups", "gpu-use",     "webhooks",
                                    "standby", "took_over",   "logins"};
  for (std::string& name : io::ListDir(data_dir).value_or(std::vector<std::string>())) {
    if (name.starts_with("server.db")) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

Server::Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Settings& settings, Clock& clock) {
  SFT_ASSIGN_OR_RETURN(DataDirLock lock, DataDirLock::Acquire(settings.data_dir));
  if (IsStandby(settings.data_dir)) {
    return FailedPrecondition(fmt::format(
        "{0} is the folder of a standby: `sft-server standby` keeps it up to date, and `sft-server "
        "takeover --data-dir {0}` makes it the server's",
        settings.data_dir));
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> left,
                       io::CloseDataDir(settings.data_dir, OwnNames(settings.data_dir)));
  if (!left.empty()) spdlog::warn("{}", io::OpenToOthers(left));
  SFT_ASSIGN_OR_RETURN(
      std::unique_ptr<Store> store,
      Store::Open({.path = settings.data_dir + "/server.db", .accept_copy = settings.accept_copy}));
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> blobs,
                       BlobStore::Open(settings.data_dir + "/blobs"));
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> checkpoint_blobs,
                       BlobStore::Open(settings.data_dir + "/checkpoints"));
  const bool open = rpc::IsLoopback(settings.listen.host) && !settings.require_token;
  SFT_ASSIGN_OR_RETURN(const auto credentials, LoadCredentials(settings.data_dir, clock));
  if (!open && !credentials.has_value()) return NoKeys(settings, *store);
  std::optional<tls::Identity> authority;
  if (credentials.has_value()) authority = credentials->authority;
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Access> access, Access::Load(*store, clock, authority));
  SFT_ASSIGN_OR_RETURN(std::unique_ptr<Generation> generation,
                       Generation::Load(*store, std::move(authority)));
  std::unique_ptr<Oidc> oidc;
  if (settings.oidc.has_value()) {
    if (open) return NoLoginHere();
    SFT_ASSIGN_OR_RETURN(oidc, Oidc::Make(*settings.oidc, HttpOptionsOf(""), *access, clock,
                                          settings.data_dir + "/logins"));
  }
  SFT_ASSIGN_OR_RETURN(WebhookGuards guards, MakeGuards(settings.webhook_allow));
  std::unique_ptr<Server> server(new Server());
  server->parts_ =
      std::make_unique<Parts>(std::move(lock), std::move(store), std::move(blobs),
                              std::move(checkpoint_blobs), std::move(access), std::move(generation),
                              std::move(oidc), std::move(guards), open, settings, clock);
  Parts& parts = *server->parts_;
  SFT_ASSIGN_OR_RETURN(
      parts.grpc,
      GrpcServer::Start(
          settings.listen,
          {parts.methods, parts.door, parts.sessions, parts.hub, clock, settings.read_patience},
          credentials.has_value() ? credentials->server : tls::Identity(), settings.connections));
  if (settings.http != "off") {
    SFT_RETURN_IF_ERROR(server->StartHttp(settings, credentials, clock));
  }
  parts.loop.Start(parts.reconciler, parts.checkpoints);
  parts.housekeeping.Start();
  parts.webhook_sender.Start();
  if (parts.oidc != nullptr && parts.oidc->renewal() != nullptr) parts.oidc->renewal()->Start();
  return server;
}

absl::Status Server::StartHttp(const Settings& settings,
                               const std::optional<Credentials>& credentials, Clock& clock) {
  Parts& parts = *parts_;
  SFT_ASSIGN_OR_RETURN(const rpc::Endpoint endpoint, HttpEndpoint(settings.listen, settings.http));
  parts.http_host = endpoint.host;
  SFT_ASSIGN_OR_RETURN(WebFront::Options plan,
                       PlanWeb(settings.web, endpoint, parts.gate.open(), credentials));
  FigureSources sources = {
      *parts.store,
      parts.registry,
      &parts.disk,
      &parts.gate,
      [&parts] { return parts.blobs->damaged() + parts.checkpoint_blobs->damaged(); },
      &parts.loop.tick_seconds(),
      &parts.http_times,
      {}};
  if (credentials.has_value()) {
    SFT_ASSIGN_OR_RETURN(sources.certificates, ExpiryOf(*credentials));
  }
  plan.pages = Pages(sources);
  plan.times = &parts.http_times;
  SFT_ASSIGN_OR_RETURN(
      parts.http,
      WebFront::Start(endpoint, {parts.door, parts.methods, parts.hub, parts.web_sessions, clock},
                      plan));
  const std::string url = WebUrl(plan, settings.web, endpoint, parts.http->port());
  if (plan.web) parts.web_sessions.SetUrl(url);
  parts.serving_service.SetBaseUrl(url + "/v1");
  return absl::OkStatus();
}

Server::~Server() {
  if (parts_ == nullptr) return;
  parts_->hub.Shutdown();
  parts_->judges.Stop();
  if (parts_->grpc != nullptr) parts_->grpc->Stop();
  parts_->http.reset();
  if (parts_->oidc != nullptr && parts_->oidc->renewal() != nullptr)
    parts_->oidc->renewal()->Stop();
  parts_->webhook_sender.Stop();
  parts_->housekeeping.Stop();
  parts_->loop.Stop();
  parts_->store->WhenFed(nullptr);
}

std::string Server::address() const {
  return rpc::Endpoint{parts_->host, parts_->grpc->port()}.ToString();
}

std::string Server::http_address() const {
  if (parts_->http == nullptr) return "";
  return rpc::Endpoint{parts_->http_host, parts_->http->port()}.ToString();
}

std::string Server::web_url() const { return parts_->web_sessions.url(); }

const Methods& Server::methods() const { return parts_->methods; }

bool Server::open() const { return parts_->gate.open(); }

int64_t Server::generation() const { return parts_->generation->number(); }

absl::Status Server::replaced() const { return parts_->generation->status(); }

int Server::connected_workers() const { return parts_->registry.connected(); }

absl::StatusOr<std::vector<Server::LiveJob>> Server::LiveJobs(bool with_cancelling) {
  store::JobFilter filter;
  filter.limit = store::kMaxPage;
  filter.states = {JobState::kPending, JobState::kPreparing, JobState::kRunning};
  if (with_cancelling) filter.states.push_back(JobState::kCancelling);
  SFT_ASSIGN_OR_RETURN(const JobManager::Page page, parts_->jobs.List(filter));
  std::vector<LiveJob> live;
  for (const v1::Job& job : page.jobs) {
    SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(job.name()));
    live.push_back({ref.id, static_cast<JobState>(job.state())});
  }
  return live;
}

absl::Status Server::CancelLiveJobs(const std::string& reason) {
  // A listing has one page: cancelling these jobs makes room for the next ones.
  while (true) {
    SFT_ASSIGN_OR_RETURN(const std::vector<LiveJob> live, LiveJobs(/*with_cancelling=*/false));
    if (live.empty()) return absl::OkStatus();
    for (const LiveJob& job : live) {
      SFT_RETURN_IF_ERROR(parts_->jobs.Cancel(job.id, reason, false).status());
    }
  }
}

std::shared_ptr<grpc::Channel> Server::InProcessChannel() {
  return parts_->grpc->InProcessChannel();
}

}  // namespace sft::server
