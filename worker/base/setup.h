#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/io/disk_space.h"
#include "worker/base/rank_user.h"

namespace sft::worker {

// The node's configuration as its attempts need it; constant once the daemon runs.
struct NodeSetup {
  std::string node;
  // Holds attempts/<uid>, checkpoints/<job>, datasets/<sha256>, cache/ and run/.
  std::string data_dir;
  // Folder to which full models are written and where they stay.
  std::string shared_dir;
  // The operator named shared_dir: all nodes see it, so checkpoints are written there.
  bool has_shared = false;
  // Without it, checkpoints with up to this many bytes on this node are uploaded to the server.
  int64_t checkpoint_upload_limit = 4'000'000'000;
  // Folders that hold models, in search order.
  std::vector<std::string> model_dirs;
  // Hugging Face hub caches, searched after them.
  std::vector<std::string> hub_dirs;
  // A path that a job names must lie below one of these.
  std::vector<std::string> roots;
  // Programs with which jobs grade answers must lie below one of these; empty: there are none.
  std::vector<std::string> grader_roots;
  int64_t grader_memory_mb = 0;  // that each of them may have at most; 0: what its job gives it
  // The user of ranks, and of the worker where it works on their files; none: the worker's own.
  std::optional<RankUser> rank_user;
  std::string rank_binary;
  std::string shim_binary;
  // Address at which ranks of other nodes reach this node.
  std::string address = "127.0.0.1";
  // Its place in the network, from the widest part: "block-a/rack-3"; empty: not said.
  std::string place;
  // Variables of NCCL and UCX for ranks here, those of the worker's environment among them.
  std::map<std::string, std::string> network;
  int cpus = 1;             // that may be used here
  bool cpus_given = false;  // --cpus said so: they are this worker's alone
  double grace_seconds = 5;
  // Memory limit of each `sft-rank prepare` (channel::RankLaunch).
  int64_t prepare_memory_bytes = 0;
  // Size limit of each process's log (channel::ShimLaunch).
  int64_t log_limit_bytes = 0;
  // Thresholds of the disk with data_dir; below the second one the server places nothing new here.
  io::DiskMarks disk_marks;

  // The kernel log, with messages about GPUs and killed processes.
  std::string kernel_log = "/dev/kmsg";

  std::string AttemptDir(const std::string& uid) const { return data_dir + "/attempts/" + uid; }
  // Where the processes of an attempt that serves are asked: each has a socket whose path is this
  // with its place on the node behind it.
  std::string ServeSockets(const std::string& uid) const {
    return data_dir + "/run/" + uid + ".serve";
  }
  // Where the ranks of an attempt ask for what judges think (judge_desk.h).
  std::string JudgeSocket(const std::string& uid) const {
    return data_dir + "/run/" + uid + ".judge";
  }
  std::string BlobPath(const std::string& sha256) const { return data_dir + "/datasets/" + sha256; }
};

}  // namespace sft::worker
