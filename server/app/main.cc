// sft-server: reads the options, starts the server (and with --dev its worker), waits for a signal.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "common/base/duration.h"
#include "common/base/env.h"
#include "common/base/version.h"
#include "common/hub/hub.h"
#include "common/hub/hub_access.h"
#include "common/io/file.h"
#include "common/obs/log.h"
#include "common/obs/open_file_limit.h"
#include "common/obs/service_manager.h"
#include "server/app/check.h"
#include "server/app/credentials.h"
#include "server/app/dev_worker.h"
#include "server/app/options.h"
#include "server/app/server.h"
#include "server/app/standby.h"
#include "server/state/names.h"
#include "server/stored/restore.h"

namespace sft::server {
namespace {

constexpr std::chrono::seconds kWorkerPatience{20};
constexpr std::chrono::seconds kCancelPatience{20};
constexpr std::chrono::milliseconds kPoll{100};

// Waits for SIGINT or SIGTERM for a while; 0 when none has come. They are blocked in every thread.
int WaitForSignal(std::chrono::milliseconds timeout) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  const timespec time{timeout.count() / 1000, (timeout.count() % 1000) * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &time);
  return signal > 0 ? signal : 0;
}

void BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);  // tells a standby to take over
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

// True when a signal requested the end meanwhile.
absl::StatusOr<bool> WaitForWorker(const Server& server, DevWorker& worker, Clock& clock) {
  const MonoTime deadline = clock.Mono() + kWorkerPatience;
  while (server.connected_workers() == 0) {
    if (WaitForSignal(kPoll) != 0) return true;
    SFT_RETURN_IF_ERROR(worker.Watch());
    if (clock.Mono() > deadline) {
      spdlog::warn("the worker has not registered within {} s; jobs wait until it does",
                   kWorkerPatience.count());
      return false;
    }
  }
  return false;
}

// "job-x RUNNING, job-y PENDING and 3 more"
std::string Some(const std::vector<Server::LiveJob>& jobs) {
  constexpr size_t kShown = 10;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(jobs.size(), kShown); ++i) {
    shown.push_back(fmt::format("{} {}", jobs[i].id, ToString(jobs[i].state)));
  }
  const std::string text = fmt::format("{}", fmt::join(shown, ", "));
  return shown.size() == jobs.size()
             ? text
             : fmt::format("{} and {} more", text, jobs.size() - shown.size());
}

// With data that is about to be deleted, jobs are cancelled; with data that stays, ranks go on and
// the next server of this data folder finds them.
void SayGoodbye(Server& server, bool temporary, Clock& clock) {
  absl::StatusOr<std::vector<Server::LiveJob>> live = server.LiveJobs();
  if (!live.ok() || live->empty()) return;
  if (!temporary) {
    fmt::print(stderr,
               "jobs go on without the server until it is started again with this "
               "--data-dir: {}\n",
               Some(*live));
    return;
  }
  fmt::print(stderr, "the data folder is temporary: cancelling {}\n", Some(*live));
  const absl::Status cancelled = server.CancelLiveJobs("the server is stopping");
  if (!cancelled.ok()) spdlog::error("{}", Message(cancelled));
  const MonoTime deadline = clock.Mono() + kCancelPatience;
  while (live.ok() && !live->empty() && clock.Mono() < deadline) {
    clock.Sleep(kPoll);
    live = server.LiveJobs();
  }
  if (live.ok() && !live->empty()) {
    fmt::print(stderr, "still running: {}\n", Some(*live));
  }
}

absl::StatusOr<HubModels::Options> HubOptionsOf(const Options& options,
                                                const std::string& data_dir) {
  absl::StatusOr<hub::HubAccess> access =
      hub::HubAccessOf(options.hub, options.hub_token_file, options.hub_ca,
                       [](const std::string& name) { return GetEnv(name).value_or(""); });
  if (!access.ok()) {
    if (!options.hub.empty() || !options.hub_token_file.empty()) return access.status();
    // What the environment says for other programs keeps no server from starting.
    spdlog::warn("no model hub is asked: {}", Message(access.status()));
    access = hub::HubAccess{.endpoint = hub::kDefaultEndpoint, .offline = true};
  }
  return HubModels::Options{access->endpoint, access->token, access->ca_file, access->offline,
                            data_dir + "/hub-tokens"};
}

absl::Status Run(const Options& options, const std::string& data_dir, bool temporary) {
  Clock& clock = Clock::Real();
  SFT_ASSIGN_OR_RETURN(const rpc::Endpoint listen,
                       rpc::ParseEndpoint(options.listen, /*allow_port_zero=*/true));
  Server::Settings settings;
  settings.data_dir = data_dir;
  settings.listen = listen;
  settings.http = options.http;
  settings.web = {options.dev || !options.http.empty(), options.web_dir, options.http_tls_cert,
                  options.http_tls_key, options.http_names};
  settings.require_token = options.require_token;
  settings.accept_copy = options.accept_copy;
  settings.dev = options.dev;
  settings.log_limits.log_bytes = int64_t{options.log_limit_mb} << 20;
  settings.log_limits.job_bytes = int64_t{options.job_log_limit_mb} << 20;
  settings.max_delivery = int64_t{options.max_delivery_gb} * 1'000'000'000;
  settings.thin_metrics_after = std::chrono::hours(24) * options.thin_metrics_after;
  const auto days = [](int count) { return Nanos(std::chrono::hours(24) * count); };
  settings.ages = {days(options.keep_logs),      days(options.keep_metrics),
                   days(options.keep_artifacts), days(options.keep_datasets),
                   days(options.keep_backups),   days(options.keep_nodes)};
  SFT_ASSIGN_OR_RETURN(settings.disk_marks,
                       io::ParseDiskMarks(options.disk_low, options.disk_full));
  SFT_ASSIGN_OR_RETURN(settings.hub, HubOptionsOf(options, data_dir));
  settings.judges = {options.judge_urls, options.judge_ca};
  settings.webhook_allow = options.webhook_allow;
  settings.webhook_ca = options.webhook_ca;
  if (!options.mail_relay.empty()) {
    SFT_ASSIGN_OR_RETURN(settings.mail, ParseMailRelay(options.mail_relay, options.mail_from,
                                                       options.mail_tls, options.mail_ca));
    settings.mail_to = options.mail_to;
  }
  if (!options.oidc.empty()) {
    SFT_ASSIGN_OR_RETURN(settings.oidc, ReadOidcConfig(options.oidc));
  }
  settings.workers.suspect_after = ParseDuration(options.suspect_after).value();
  settings.workers.pace.first_delay_us =
      std::chrono::microseconds(ParseDuration(options.restart_delay).value()).count();
  settings.reconcile.unreachable_margin = ParseDuration(options.unreachable_margin).value();
  SFT_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Start(settings, clock));
  DevWorker worker(options, data_dir, server->address(), clock);
  const Successor successor(options, server->generation(), server->address());
  bool ending = false;
  if (options.dev) {
    SFT_RETURN_IF_ERROR(worker.Start());
    SFT_ASSIGN_OR_RETURN(ending, WaitForWorker(*server, worker, clock));
  }
  const std::string http = server->http_address(), page = server->web_url();
  fmt::print("sft-server {} listening on {} ({}, data {}{}{})\n", kVersion, server->address(),
             server->open() ? "no TLS: this machine only" : "TLS and tokens", data_dir,
             http.empty() ? "" : ", http ", http);
  if (!page.empty()) fmt::print("web page: {}\n", page);
  std::fflush(stdout);
  obs::TellServiceManager("READY=1");
  absl::Status watched;
  while (!ending && watched.ok() && WaitForSignal(std::chrono::seconds(1)) == 0) {
    if (options.dev) watched = worker.Watch();
    if (watched.ok()) watched = server->replaced();
  }
  obs::TellServiceManager("STOPPING=1");
  fmt::print(stderr, "sft-server stops\n");
  // The jobs of a server that was replaced go on with the other.
  if (server->replaced().ok()) SayGoodbye(*server, temporary, clock);
  if (options.dev) worker.Stop();
  return watched;
}

// Runs a command that does its work and exits.
absl::StatusOr<std::string> RunCommand(const Options& options) {
  Clock& clock = Clock::Real();
  switch (options.command) {
    case Options::Command::kInit:
      return Initialise(options.data_dir, options.names, clock, options.new_authority);
    case Options::Command::kRenew:
      return RenewServer(options.data_dir, options.names, clock);
    case Options::Command::kTakeOver:
      return TakeOver(options, clock);
    default:
      return NewAdminToken(options.data_dir, clock);
  }
}

int Fail(const absl::Status& status) {
  fmt::print(stderr, "sft-server: {}\n", Message(status));
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

int Main(int argc, char** argv) {
  const ParsedOptions parsed = ParseOptions(argc, argv);
  if (parsed.exit) return parsed.exit_code;
  const Options& options = parsed.options;
  umask(077);  // stored data is for this user only
  if (options.check) return RunCheck(options);
  const bool standby = options.command == Options::Command::kStandby;
  if (options.command != Options::Command::kServe && !standby) {
    const absl::StatusOr<std::string> told = RunCommand(options);
    if (!told.ok()) return Fail(told.status());
    fmt::print("{}", *told);
    return 0;
  }
  absl::Status status = obs::InitLogging({"sft-server", options.log_level});
  obs::RaiseOpenFileLimit();
  BlockSignals();
  const bool temporary = options.data_dir.empty();
  std::string data_dir = options.data_dir;
  if (status.ok() && temporary) {
    absl::StatusOr<std::string> made = io::MakeTempDir("sft-server-");
    status = made.status();
    if (made.ok()) data_dir = *made;
  }
  if (status.ok() && !options.restore.empty()) {
    const auto told = RestoreBackup(options.restore, data_dir, options.files_from, Clock::Real());
    if (told.ok()) fmt::print("{}", *told);
    status = told.status();
  } else if (status.ok()) {
    const absl::StatusOr<bool> serves = standby ? RunStandby(options, Clock::Real()) : true;
    status = serves.status();
    if (serves.ok() && *serves) status = Run(options, data_dir, temporary);
  }
  if (temporary && !data_dir.empty()) {
    const absl::Status removed = io::RemoveAll(data_dir);
    if (!removed.ok()) spdlog::warn("{}", Message(removed));
  }
  return status.ok() ? 0 : Fail(status);
}

}  // namespace
}  // namespace sft::server

int main(int argc, char** argv) { return sft::server::Main(argc, argv); }
