#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::worker {

// Command line of sft-worker; `sft-worker --help` describes each option.
struct Options {
  std::string server = "127.0.0.1:7070";
  std::string data_dir;
  std::string node;
  std::string join_token_file;
  std::string address = "127.0.0.1";
  std::string place;
  std::string network_env;  // file
  std::vector<std::string> models;
  std::vector<std::string> data_roots;
  std::vector<std::string> grader_roots;
  double grader_memory_gb = 8;
  std::string shared;
  double checkpoint_upload_limit_gb = 4;
  std::string simulate_gpus;
  std::string gpus;               // parsed by GpuSelection
  int cpus = 0;                   // 0: as many as this process may use
  int cpu_slots = -1;             // -1: none, or with --dev one per core
  bool ephemeral = false;         // the node is lent (lease.h)
  std::string leave_at;           // empty: as Slurm says
  std::string leave_lead = "5m";  // parsed by ParseDuration
  std::string leave_idle;         // likewise; empty: never
  bool dev = false;
  std::string torch;
  std::string rank_binary;
  std::string shim_binary;
  std::vector<std::string> rank_env;
  std::string rank_user;  // parsed by ChooseRankUser
  double grace_seconds = 5;
  int log_limit_mb = 256;
  double prepare_memory_gb = 0;
  std::string disk_low, disk_full;  // parsed by io::ParseDiskMark
  std::string log_level = "info";
  std::string model_cache;        // empty: no model is downloaded
  std::string model_cache_limit;  // parsed by io::ParseDiskMark
  std::string hub;                // empty: HF_ENDPOINT, or Hugging Face
  std::string hub_token_file, hub_ca;
  std::string pull;    // download this model, and exit
  bool check = false;  // check whether a worker with these options would run, and exit
  bool json = false;   // output of check as JSON
};

// The exit code when the program shall exit now: 0 after --help and --version, 2 after wrong usage.
struct ParsedOptions {
  Options options;
  bool exit = false;
  int exit_code = 0;
};
ParsedOptions ParseOptions(int argc, char** argv);

}  // namespace sft::worker
