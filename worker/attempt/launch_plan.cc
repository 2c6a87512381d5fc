#include "worker/attempt/launch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/hub/model_name.h"
#include "common/spec/grader.h"
#include "worker/node/cpus.h"
#include "worker/node/network.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

// The job's name for its model, with the commit where that is known: results say what they are for.
std::string NameOfModel(const std::string& model, const std::string& dir) {
  const auto name = hub::ParseModelName(model);
  const std::string commit = hub::CommitOfSnapshot(dir);
  return name && !commit.empty() ? name->id + "@" + commit : model;
}

using Environment = std::map<std::string, std::string>;

constexpr char kInterfaces[] = "NCCL_SOCKET_IFNAME";

Environment MakeEnvironment(const LaunchInput& input, const NodeSetup& setup,
                            const Inventory& inventory, int threads) {
  Environment env;
  env["OMP_NUM_THREADS"] = std::to_string(threads);
  env["MKL_NUM_THREADS"] = std::to_string(threads);
  if (!input.torch_lib_dir.empty()) env["LD_LIBRARY_PATH"] = input.torch_lib_dir;
  std::vector<std::string> uuids;
  const std::vector<v1::Slot> slots = inventory.Slots();
  for (const int slot : input.dispatch.slots()) {
    if (inventory.IsGpu(slot)) uuids.push_back(slots[slot].uuid());
  }
  // Empty hides all of them from a rank that computes on the CPU.
  env["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(uuids, ","));
  for (const auto& [name, value] : setup.network) env[name] = value;
  const bool alone = input.dispatch.slots_size() == input.dispatch.world_size();
  const spec::JobSpec::Compute& compute = input.job.compute;
  if (compute.nccl_debug != "off") env["NCCL_DEBUG"] = compute.nccl_debug;
  if (compute.cuda_launch_blocking) env["CUDA_LAUNCH_BLOCKING"] = "1";
  const std::string interface = alone ? "lo" : InterfaceOf(setup.address);
  if (!interface.empty()) {
    env["GLOO_SOCKET_IFNAME"] = interface;
    // Of a node of several, its operator may know better.
    if (alone || !setup.network.contains(kInterfaces)) env[kInterfaces] = "=" + interface;
  }
  if (!compute.network_interface.empty()) {
    env[kInterfaces] = ExactInterfaces(compute.network_interface);
  }
  return env;
}

}  // namespace

absl::Status CheckNetwork(const spec::JobSpec& job, int ranks_here, int world,
                          const NodeSetup& setup) {
  const std::string& asked = job.compute.network_interface;
  if (!asked.empty()) {
    return CheckInterfaces(ExactInterfaces(asked), InterfaceNames(), setup.node,
                           "compute.network_interface");
  }
  const auto own = setup.network.find(kInterfaces);
  if (ranks_here == world || own == setup.network.end()) return absl::OkStatus();
  const absl::Status fits = CheckInterfaces(own->second, InterfaceNames(), setup.node,
                                            "NCCL_SOCKET_IFNAME (sft-worker --network-env)");
  return fits.ok() ? fits : Internal(Message(fits));
}

std::string OutputDir(const std::string& attempt_uid, const std::string& job_id, bool full_model,
                      const NodeSetup& setup) {
  return full_model ? fmt::format("{}/{}/model", setup.shared_dir, job_id)
                    : setup.AttemptDir(attempt_uid) + "/output";
}

namespace {

// What launchers tell a process of a group (worker/rank/group_variables.h).
Environment GroupVariables(const channel::RankLaunch& launch, int local_rank) {
  Environment env{{"RANK", std::to_string(launch.first_rank + local_rank)},
                  {"LOCAL_RANK", std::to_string(local_rank)},
                  {"WORLD_SIZE", std::to_string(launch.world_size)}};
  const size_t colon = launch.rendezvous.rfind(':');
  if (colon == std::string::npos) return env;
  std::string host = launch.rendezvous.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  env["MASTER_ADDR"] = host;
  env["MASTER_PORT"] = launch.rendezvous.substr(colon + 1);
  return env;
}

}  // namespace

LaunchFiles PlanLaunch(const LaunchInput& input, const NodeSetup& setup,
                       const Inventory& inventory) {
  const v1::Dispatch& dispatch = input.dispatch;
  const std::string dir = setup.AttemptDir(input.attempt_uid);
  const int first_slot = dispatch.slots_size() > 0 ? dispatch.slots(0) : 0;
  LaunchFiles files;
  channel::RankLaunch& rank = files.rank;
  rank.attempt_uid = input.attempt_uid;
  rank.epoch = input.epoch;
  rank.job_json = dispatch.resolved_json();
  rank.world_size = dispatch.world_size();
  rank.first_rank = dispatch.first_rank();
  rank.local_ranks = dispatch.slots_size();
  rank.rendezvous = input.rendezvous;
  rank.device = inventory.IsGpu(first_slot) ? "cuda" : "cpu";
  rank.threads_per_rank = ThreadsOf({.cpus = setup.cpus,
                                     .given = setup.cpus_given,
                                     .on_gpu = inventory.IsGpu(first_slot),
                                     .machine_gpus = inventory.machine_gpus(),
                                     .slots = inventory.SlotsLike(first_slot)});
  rank.model_dir = input.staged.model_dir;
  rank.model_name = NameOfModel(input.job.job.model, input.staged.model_dir);
  rank.adapter_dir =
      input.staged.adapter_files.empty() ? input.staged.adapter_dir : dir + "/adapter";
  rank.train_file = input.staged.train_file;
  rank.val_file = input.staged.val_file;
  rank.train_name = input.staged.train_name;
  rank.val_name = input.staged.val_name;
  rank.train_stamp = input.staged.train_stamp;
  rank.val_stamp = input.staged.val_stamp;
  rank.more_train_files = input.staged.more_train_files;
  rank.cache_dir = setup.data_dir + "/cache";
  rank.attempt_dir = dir;
  rank.output_dir = OutputDir(input.attempt_uid, dispatch.job_id(),
                              input.job.exports() || input.job.full_finetune(), setup);
  if (input.job.serves()) rank.serve_socket = setup.ServeSockets(input.attempt_uid);
  rank.job_id = dispatch.job_id();
  rank.node = setup.node;
  if (input.job.evaluates()) {
    rank.grader_roots = setup.grader_roots;
    rank.grader_memory_mb = setup.grader_memory_mb;
  }
  if (spec::HasJudges(input.job.evaluate.grader)) {
    rank.judge_socket = setup.JudgeSocket(input.attempt_uid);
  }
  rank.checkpoint_dir = CheckpointDir(dispatch.job_id(), setup);
  rank.resume_dir = input.staged.resume_dir;
  rank.resume_step = dispatch.resume().step();
  rank.resume_changed = dispatch.resume().changed_ok();
  rank.resume_engine_alone = dispatch.resume().engine_alone();
  rank.prepare_memory_bytes = setup.prepare_memory_bytes;

  channel::ShimLaunch& shim = files.shim;
  shim.attempt_uid = input.attempt_uid;
  shim.epoch = input.epoch;
  shim.attempt_dir = dir;
  shim.socket_path = fmt::format("{}/run/{}.sock", setup.data_dir, input.attempt_uid);
  shim.grace_seconds = setup.grace_seconds;
  shim.log_limit_bytes = setup.log_limit_bytes;
  const Environment env = MakeEnvironment(input, setup, inventory, rank.threads_per_rank);
  for (const auto& [name, value] : env) {
    if (IsNetworkSetting(name)) rank.network_settings.push_back(name + "=" + value);
  }
  const std::string launch = dir + "/launch.json";
  Environment prepare_env = env;
  prepare_env["CUDA_VISIBLE_DEVICES"] = "";
  shim.prepare = {"prepare", -1, {setup.rank_binary, "prepare", "--launch", launch}, prepare_env};
  for (int i = 0; i < rank.local_ranks; ++i) {
    const int number = rank.first_rank + i;
    Environment rank_env = GroupVariables(rank, i);
    rank_env.insert(env.begin(), env.end());
    shim.ranks.push_back({fmt::format("rank-{}", number),
                          number,
                          {setup.rank_binary,
                           input.job.generates() ? "generate"
                           : input.job.exports() ? "export"
                                                 : "train",
                           "--launch", launch, "--rank", std::to_string(number)},
                          rank_env});
  }
  return files;
}

}  // namespace sft::worker
