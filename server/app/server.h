#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/io/disk_space.h"
#include "common/rpc/endpoint.h"
#include "server/app/options.h"
#include "server/app/reconcile_loop.h"
#include "server/app/web.h"
#include "server/blob/log_store.h"
#include "server/database/data_dir_lock.h"
#include "server/fleet/delivery_limits.h"
#include "server/fleet/hub_models.h"
#include "server/jobs/judges.h"
#include "server/oidc/oidc_config.h"
#include "server/rpc/grpc_server.h"
#include "server/state/job_state.h"
#include "server/stored/removal.h"
#include "server/webhooks/mail_relay.h"

namespace sft::server {

// The whole server of one data folder: the only place that knows and connects every part.
//
//   <data dir>/server.lock  server.db  blobs/  checkpoints/  logs/  metrics/  tensorboard/ gpu-use/
//   tls/ (of `sft-server init`)  worker/ (of --dev)
class Server {
 public:
  struct Settings {
    std::string data_dir;
    rpc::Endpoint listen;
    std::string http;  // as Options::http
    WebSettings web;
    bool dev = false;
    bool require_token = false;
    bool accept_copy = false;  // see Options::accept_copy
    LogLimits log_limits = {};
    Nanos read_patience = GrpcMethods::kReadPatience;
    Nanos thin_metrics_after{0};  // after a job's end; 0: never
    Removal::Ages ages = {};
    io::DiskMarks disk_marks = {};
    GrpcServer::Connections connections = {};
    int64_t max_delivery = DeliveryLimits::kUnknownBytes;
    HubModels::Options hub;
    Judges::Options judges;
    std::vector<std::string> webhook_allow;  // as Options::webhook_allow
    std::string webhook_ca;
    std::optional<MailRelay> mail;     // absent: no mail is sent
    std::vector<std::string> mail_to;  // as Options::mail_to
    std::optional<OidcConfig> oidc;    // absent: no company login
    WorkerRegistry::Options workers;
    Reconciler::Options reconcile;
  };
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Settings& settings, Clock& clock);
  // Stops calls, then the reconciler, then the store.
  ~Server();
  Server(const Server&) = delete;

  // The address that it really listens on.
  std::string address() const;
  std::string http_address() const;  // empty: off
  std::string web_url() const;       // of the web page; empty: off
  // All methods that callers can use.
  const Methods& methods() const;
  // True without TLS and tokens; the server is then reachable from this machine only.
  bool open() const;
  // Which of the servers that have had the fleet's data it is, and FAILED_PRECONDITION once another
  // has its place: the process is to end then (Generation).
  int64_t generation() const;
  absl::Status replaced() const;
  int connected_workers() const;
  struct LiveJob {
    std::string id;
    JobState state;
  };
  // Jobs that have not ended, newest first. Some hundreds at most.
  absl::StatusOr<std::vector<LiveJob>> LiveJobs(bool with_cancelling = true);
  // Cancels every job that has not ended.
  absl::Status CancelLiveJobs(const std::string& reason);
  std::shared_ptr<grpc::Channel> InProcessChannel();

 private:
  struct Parts;
  Server();
  absl::Status StartHttp(const Settings& settings, const std::optional<Credentials>& credentials,
                         Clock& clock);
  std::unique_ptr<Parts> parts_;
};

}  // namespace sft::server
