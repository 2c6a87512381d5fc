#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/endpoint.h"

namespace sft::server {

// Command line of sft-server; each is described by `sft-server --help`.
struct Options {
  enum class Command { kServe, kInit, kRenew, kToken };
  Command command = Command::kServe;
  std::vector<std::string> names;  // of the server's certificate
  bool new_authority = false;      // init though there are users or nodes of an earlier one
  bool dev = false;
  std::string listen = "127.0.0.1:7070";
  std::string http;  // empty: loopback, the port after --listen's; "off": none
  bool require_token = false;
  std::string data_dir;
  std::string log_level = "info";
  int log_limit_mb = 256;       // of one rank's log; 0: none
  int job_log_limit_mb = 4096;  // of all logs of a job; 0: none
  int max_delivery_gb = 1000;   // of an attempt whose size cannot be told
  std::string restore;          // a backup's folder: makes --data-dir of it and ends
  std::string files_from;       // a data folder to take blobs, logs and metrics from then
  bool accept_copy = false;     // start on a copy of a data folder that was in use
  int thin_metrics_after = 30;  // days after a job's end; 0: never
  // Days after a job's end, or the last use, until something is removed; 0: kept for ever.
  int keep_logs = 0, keep_metrics = 0, keep_artifacts = 0, keep_datasets = 0, keep_backups = 0;
  std::string disk_low, disk_full;  // io::ParseDiskMark
  bool check = false;               // look whether a server with these options would run, and end
  bool json = false;                // with check
  // Durations ("15s"): how soon a silent node is SUSPECT, the first wait before a restart (doubled
  // up to five minutes), and what is added to a job's unreachable_after.
  std::string suspect_after = "15s";
  std::string restart_delay = "5s";
  std::string unreachable_margin = "60s";

  // Passed on to the worker of --dev.
  std::vector<std::string> models;
  std::string shared;
  std::string simulate_gpus;
  std::string torch;
  std::string worker_binary;
  int cpu_slots = -1;
};

// Where /metrics and /healthz are with this Options::http, which is not "off": unless told
// otherwise at the port after the gRPC one, on loopback, as they have neither TLS nor tokens.
absl::StatusOr<rpc::Endpoint> HttpEndpoint(const rpc::Endpoint& listen, const std::string& http);

// The options, or how the program shall end instead.
struct ParsedOptions {
  Options options;
  bool exit = false;  // end now, with exit_code: 0 after --help and --version, 2 after wrong usage
  int exit_code = 0;
};
ParsedOptions ParseOptions(int argc, char** argv);

}  // namespace sft::server
