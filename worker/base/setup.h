#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/io/disk_space.h"
#include "worker/base/rank_user.h"

namespace sft::worker {

// What the attempts of a node need to know of it; constant once the daemon runs.
struct NodeSetup {
  std::string node;
  // attempts/<uid>, checkpoints/<job>, datasets/<sha256>, cache/, run/ are below it.
  std::string data_dir;
  // Folder that receives full models, and where they stay.
  std::string shared_dir;
  // The operator named it: all nodes see it, so that checkpoints are written there.
  bool has_shared = false;
  // Without it, checkpoints of up to so many bytes on this node go to the server.
  int64_t checkpoint_upload_limit = 4'000'000'000;
  // Folders that hold models, in the order they are looked into.
  std::vector<std::string> model_dirs;
  // Hugging Face hub caches, looked into after them.
  std::vector<std::string> hub_dirs;
  // A path that a job names must lie below one of these.
  std::vector<std::string> roots;
  // Whom ranks run as, and the worker where it works on their files; none: as the worker itself.
  std::optional<RankUser> rank_user;
  std::string rank_binary;
  std::string shim_binary;
  // Address at which ranks of other nodes reach this node.
  std::string address = "127.0.0.1";
  int cpus = 1;
  double grace_seconds = 5;
  // Of each `sft-rank prepare` (channel::RankLaunch).
  int64_t prepare_memory_bytes = 0;
  // How long ranks go on without the server, for jobs that do not say it.
  Nanos unreachable_after = std::chrono::minutes(15);
  // Of each process's log (channel::ShimLaunch).
  int64_t log_limit_bytes = 0;
  // Of the disk with data_dir; the server places nothing new below the second.
  io::DiskMarks disk_marks;

  // Where the kernel says what it did to GPUs and processes.
  std::string kernel_log = "/dev/kmsg";

  std::string AttemptDir(const std::string& uid) const { return data_dir + "/attempts/" + uid; }
  std::string BlobPath(const std::string& sha256) const { return data_dir + "/datasets/" + sha256; }
};

}  // namespace sft::worker
