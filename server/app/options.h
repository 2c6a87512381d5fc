#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/endpoint.h"

namespace sft::server {

// Command line of sft-server; `sft-server --help` describes each option.
struct Options {
  enum class Command { kServe, kInit, kRenew, kToken, kStandby, kTakeOver };
  Command command = Command::kServe;
  std::vector<std::string> names;  // names in the server's certificate
  bool new_authority = false;      // init even if there are users or nodes of an earlier authority
  bool dev = false;
  std::string listen = "127.0.0.1:7070";
  std::string http;  // empty: loopback, the port after --listen's; "off": none
  // For the web page: the folder of its files, the site's certificate and key, a proxy's names.
  std::string web_dir, http_tls_cert, http_tls_key;
  std::vector<std::string> http_names;
  bool require_token = false;
  std::string data_dir;
  std::string log_level = "info";
  int log_limit_mb = 256;       // per log of a rank; 0: no limit
  int job_log_limit_mb = 4096;  // all logs of a job together; 0: no limit
  int max_delivery_gb = 1000;   // for an attempt whose size cannot be computed
  std::string restore;          // folder of a backup: restore it into --data-dir and exit
  std::string files_from;       // data folder from which a restore takes blobs, logs and metrics
  // Of `standby`: the server to copy, how often, and the file with an admin's token for it; after
  // its takeover the process serves with all other options.
  std::string standby_of, every = "60s", token_file;
  int64_t above = 0;            // of `takeover`: the new generation is higher
  bool accept_copy = false;     // start on a copy of a data folder that was in use
  int thin_metrics_after = 30;  // days after a job's end; 0: never
  // Days after a job's end, or the last use, until data is removed; 0: kept for ever.
  int keep_logs = 0, keep_metrics = 0, keep_artifacts = 0, keep_datasets = 0, keep_backups = 0;
  int keep_nodes = 400;             // of nodes that have left: a year's report still has them
  std::string disk_low, disk_full;  // parsed by io::ParseDiskMark
  bool check = false;               // check whether a server with these options would run, and exit
  bool json = false;                // output of check as JSON
  // Durations ("15s"): silence before a node is SUSPECT, the first wait before a restart (doubled
  // up to five minutes), and the time added to a job's unreachable_after.
  std::string suspect_after = "15s";
  std::string restart_delay = "5s";
  std::string unreachable_margin = "60s";

  // How the server asks a model hub; also passed on to the worker of --dev.
  std::string hub, hub_token_file, hub_ca;

  // Judges that jobs may name, and who vouches for them.
  std::vector<std::string> judge_urls;
  std::string judge_ca;

  // Networks beyond the internet that webhooks may lead to, and who vouches for their receivers.
  std::vector<std::string> webhook_allow;
  std::string webhook_ca;

  // Who takes this server's mail, from which address it comes, with TLS or not ("off", "starttls";
  // empty: by the relay's address), and the domains that it may go to.
  std::string mail_relay, mail_from, mail_tls, mail_ca;
  std::vector<std::string> mail_to;

  std::string oidc;  // file of OidcConfig; empty: no company login

  // Passed on to the worker of --dev.
  std::string model_cache, model_cache_limit;
  std::vector<std::string> models;
  std::string shared;
  std::string simulate_gpus;
  std::string torch;
  std::string worker_binary;
  int cpu_slots = -1;
};

// The endpoint of all HTTP for an Options::http other than "off". By default the port after the
// gRPC one, on loopback.
absl::StatusOr<rpc::Endpoint> HttpEndpoint(const rpc::Endpoint& listen, const std::string& http);

// The parsed options, or how the program shall exit instead.
struct ParsedOptions {
  Options options;
  bool exit = false;  // exit now with exit_code: 0 after --help and --version, 2 after wrong usage
  int exit_code = 0;
};
ParsedOptions ParseOptions(int argc, char** argv);

}  // namespace sft::server
