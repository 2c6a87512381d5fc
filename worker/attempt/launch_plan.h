#pragma once

#include <string>

#include "common/spec/job_spec.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/attempt/staging.h"
#include "worker/base/setup.h"
#include "worker/channel/launch.h"
#include "worker/gpus/inventory.h"

namespace sft::worker {

// The two files that start an attempt, launch.json and shim.json.
struct LaunchFiles {
  channel::RankLaunch rank;
  channel::ShimLaunch shim;
};

// What one attempt's processes are started with. Pure, but for the interface that `address` is on.
struct LaunchInput {
  std::string attempt_uid;
  int64_t epoch = 0;
  const v1::Dispatch& dispatch;
  const spec::JobSpec& job;
  const StagedJob& staged;
  std::string rendezvous;
  std::string torch_lib_dir;  // as LocateTorch; empty: ranks find LibTorch themselves
};
LaunchFiles PlanLaunch(const LaunchInput& input, const NodeSetup& setup,
                       const Inventory& inventory);

// Where the artifact of the job is written: a full model into the shared folder, where it stays.
std::string OutputDir(const std::string& attempt_uid, const std::string& job_id, bool full_model,
                      const NodeSetup& setup);

// Whether this node has the network interface that the job wants (INVALID_ARGUMENT: the job's
// fault) or, for a gang of several nodes, that its operator wants (INTERNAL). `world`: ranks of the
// gang.
absl::Status CheckNetwork(const spec::JobSpec& job, int ranks_here, int world,
                          const NodeSetup& setup);

}  // namespace sft::worker
