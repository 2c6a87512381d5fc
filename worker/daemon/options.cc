#include "worker/daemon/options.h"

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/base/version.h"
#include "common/io/disk_space.h"
#include "worker/daemon/hub_options.h"
#include "worker/node/node_facts.h"

namespace sft::worker {

namespace {

constexpr double kMostUploadGb = 1e6;

void AddDisk(CLI::App& app, Options& options) {
  const CLI::Validator disk_mark(
      [](std::string& text) { return std::string(Message(io::ParseDiskMark(text).status())); }, "");
  options.disk_low = io::kDefaultLowMark;
  options.disk_full = io::kDefaultFullMark;
  app.add_option("--disk-low", options.disk_low,
                 "Warn the operator when less of the data folder's disk is free: a share, a size, "
                 "or the smaller of both")
      ->capture_default_str()
      ->check(disk_mark);
  app.add_option("--disk-full", options.disk_full, "Accept no new job when less is free")
      ->capture_default_str()
      ->check(disk_mark);
}

void AddNetwork(CLI::App& app, Options& options) {
  app.add_option("--address", options.address,
                 "Address at which ranks of other nodes reach this one")
      ->capture_default_str();
  const CLI::Validator place(
      [](std::string& text) { return std::string(Message(CheckPlace(text))); }, "");
  app.add_option("--place", options.place,
                 "Place of this node in the network, from its widest part to its narrowest, for "
                 "example block-a/rack-3/switch-2: gangs are placed close together")
      ->check(place);
  app.add_option("--network-env", options.network_env,
                 "File with variables of NCCL and UCX for ranks on this node, NAME=VALUE on each "
                 "line, for example NCCL_IB_HCA==mlx5_0,mlx5_1");
}

void AddHub(CLI::App& app, Options& options) {
  const CLI::Validator size(
      [](std::string& text) { return std::string(Message(ParseCacheLimit(text).status())); }, "");
  app.add_option("--model-cache", options.model_cache,
                 "Download models that jobs name by their hub id into this folder, a Hugging Face "
                 "hub cache; without it none is downloaded");
  app.add_option(
         "--model-cache-limit", options.model_cache_limit,
         "Most bytes of that folder, for example 2TB: models that were not used for longest "
         "are removed for others [as many as the disk has]")
      ->check(size);
  app.add_option("--hub", options.hub,
                 "Address of the model hub [HF_ENDPOINT, or https://huggingface.co]");
  app.add_option("--hub-token-file", options.hub_token_file,
                 "File with the token for the hub, for jobs whose project has none [HF_TOKEN]");
  app.add_option("--hub-ca", options.hub_ca,
                 "PEM file with the authorities that vouch for the hub [SSL_CERT_FILE, or the "
                 "system's]");
  CLI::App* pull = app.add_subcommand(
      "pull", "Download a model into --model-cache as a worker with these options would, and exit");
  pull->fallthrough();
  pull->add_option("MODEL", options.pull, "org/name or org/name@revision")->required();
}

void AddCheck(CLI::App& app, Options& options) {
  app.footer("Example:\n  sft-worker check --data-dir /var/lib/sft-worker --server 127.0.0.1:7070");
  CLI::App* check = app.add_subcommand(
      "check",
      "Check GPUs, NVLink, driver, NCCL, torch, disk, clock, server, shared folder and models as a "
      "worker with these options would use them, report problems, and exit");
  check->fallthrough();
  check->add_flag("--json", options.json, "Print JSON, for programs (docs/operations.md)");
  check->callback([&options] { options.check = true; });
}

void AddLease(CLI::App& app, Options& options) {
  app.add_flag(
      "--ephemeral", options.ephemeral,
      "This node is lent, as an allocation of Slurm is (docs/slurm.md): before its end, on "
      "SIGTERM, SIGUSR1 or SIGUSR2 jobs write a checkpoint and go on elsewhere, then the "
      "node leaves the fleet and the worker ends");
  app.add_option(
      "--leave-at", options.leave_at,
      "With --ephemeral: when the allocation ends, as squeue -o %e prints it, in UTC with "
      "a Z, or in seconds since 1970 [SLURM_JOB_END_TIME, else not known]");
  app.add_option(
         "--leave-lead", options.leave_lead,
         "With --ephemeral: so long before that end jobs are asked for their checkpoints; no "
         "job is placed here that has not as long again to begin")
      ->capture_default_str();
  app.add_option(
      "--leave-idle", options.leave_idle,
      "With --ephemeral: leave when there was no job for so long, for example 10m [never]");
}

}  // namespace

ParsedOptions ParseOptions(int argc, char** argv) {
  ParsedOptions parsed;
  Options& options = parsed.options;
  CLI::App app("The daemon of a node: runs the ranks that the server places on it.", "sft-worker");
  app.set_version_flag("--version", std::string("sft-worker ") + kVersion);
  app.add_option(
         "--server", options.server,
         "Address of sft-server, HOST:PORT; several with commas, where a standby may take its "
         "place: the one that serves is used")
      ->capture_default_str();
  app.add_option("--data-dir", options.data_dir, "Folder for attempts, data sets and caches")
      ->required();
  app.add_option("--node", options.node, "Name of this node [the host's name]");
  app.add_option("--join-token-file", options.join_token_file,
                 "File with a join token (sftctl admin token create --join): needed once, for a "
                 "server on another machine; afterwards the node has a certificate");
  AddNetwork(app, options);
  app.add_option("--models", options.models, "Folder with models; may be given several times");
  app.add_option("--data-root", options.data_roots,
                 "Jobs may name files below this folder; may be given several times");
  app.add_option("--grader-root", options.grader_roots,
                 "Jobs of kind evaluate may grade answers with programs below this folder "
                 "(docs/evaluate.md says how they are confined); may be given several times "
                 "[none: they may not]");
  app.add_option("--grader-memory-gb", options.grader_memory_gb,
                 "Most GB of memory that a job may give each process of such a program; 0: any")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--shared", options.shared,
                 "Folder that all nodes see: receives full models and checkpoints "
                 "[DATA-DIR/shared, for full models only]");
  CLI::Option* const upload_limit = app.add_option(
      "--checkpoint-upload-limit", options.checkpoint_upload_limit_gb,
      "Without --shared, checkpoints of up to this many GB on this node are uploaded to the "
      "server, so that a job can continue elsewhere; larger ones tie it to this node, so with "
      "--ephemeral all are uploaded if this is not given");
  upload_limit->capture_default_str()->check(CLI::Range(0.0, kMostUploadGb));
  CLI::Option* const gpus = app.add_option(
      "--gpus", options.gpus,
      "Offer only these GPUs: numbers as in nvidia-smi, ranges or UUIDs, for example 0,2,4-7, or "
      "none [CUDA_VISIBLE_DEVICES; if that is not set, all]");
  app.add_option("--simulate-gpus", options.simulate_gpus,
                 "Simulate GPUs, TYPE:COUNT, for example H100:8; their ranks run on the CPU")
      ->excludes(gpus);
  app.add_option("--cpu-slots", options.cpu_slots,
                 "Number of CPU slots to offer [0; with --dev one per core]")
      ->check(CLI::Range(0, 1024));
  app.add_option("--cpus", options.cpus,
                 "CPUs for this worker's ranks, which share them [0: the CPUs that the worker may "
                 "use; a rank on a GPU gets that GPU's share among all GPUs of the machine]")
      ->check(CLI::Range(0, 4096));
  app.add_flag("--dev", options.dev,
               "For development: every path is allowed, and CPU slots are offered");
  app.add_option("--torch", options.torch,
                 "Folder of Python's torch 2.11, if ranks do not find it");
  app.add_option("--rank-binary", options.rank_binary,
                 "Program of a rank [sft-rank beside this one]");
  app.add_option("--shim-binary", options.shim_binary,
                 "Parent of the ranks [sft-shim beside this one]");
  app.add_option("--rank-env", options.rank_env,
                 "Pass this variable of the worker's environment on to ranks; may be given several "
                 "times (docs/operations.md lists those passed on anyway)");
  app.add_option("--rank-user", options.rank_user,
                 "User that ranks run as, for a worker that runs as root [sft-rank, if the machine "
                 "has it; with --dev root]; root: ranks run as root");
  app.add_option("--grace", options.grace_seconds, "Seconds from SIGTERM to SIGKILL")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option(
         "--log-limit-mb", options.log_limit_mb,
         "MiB kept here of the newest part of each rank's log, besides its first MiB; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--prepare-memory-gb", options.prepare_memory_gb,
                 "GB of memory for preparing a job's data; 0: 4 GiB plus 256 times the size of the "
                 "data, at most half of this node's memory")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  AddDisk(app, options);
  AddHub(app, options);
  AddLease(app, options);
  app.add_option("--log-level", options.log_level, "debug, info, warn or error")
      ->capture_default_str();
  AddCheck(app, options);
  try {
    app.parse(argc, argv);
    if (options.ephemeral && upload_limit->count() == 0) {
      options.checkpoint_upload_limit_gb = kMostUploadGb;
    }
  } catch (const CLI::ParseError& error) {  // the library's way of saying "done"
    parsed.exit = true;
    parsed.exit_code = app.exit(error) == 0 ? 0 : 2;
  }
  return parsed;
}

}  // namespace sft::worker
