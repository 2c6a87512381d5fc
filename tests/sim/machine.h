#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "tests/sim/chance.h"
#include "tests/sim/event_queue.h"
#include "worker/attempt/shim_client.h"
#include "worker/channel/event.h"
#include "worker/gpus/gpu_probe.h"

namespace sft::sim {

// What the ranks of a job do, whatever attempt they are of.
struct Script {
  std::string lineage;  // the job that was submitted; of a resumed one the first
  int64_t steps = 10;
  Nanos step{std::chrono::seconds(2)};
  int64_t user_error_at = 0;  // the step at which its data is wrong; 0: never
  int64_t checkpoint_every = 4;
};

// The ranks of one attempt over all machines: they train together or not at all.
struct Gang {
  std::set<int> running;  // ranks that are alive and past their start
  int64_t step = 0;
  int hung = 0;  // that never go on
  bool broken = false;
};

// What the machines of a simulation share.
struct Cluster {
  std::map<std::string, Script> scripts;               // by job
  std::map<std::string, std::shared_ptr<Gang>> gangs;  // by attempt
  // Bytes that each rank has written to its log: "attempt/rank-0", "attempt/node/prepare".
  std::map<std::string, std::string> logs;
  std::set<std::string> lost_logs;  // of them those that were, in part, on a disk that is gone
  std::vector<std::string> faults;  // of the ranks' own making; none are expected
};

// The room on a machine's disk, for all of its processes.
class NodeDisk {
 public:
  // So many more writes find room.
  void Fill(int writes) { left_ = writes; }
  void Empty() { left_ = kEndless; }
  // Something was removed that gives room for so many writes.
  void GiveBack(int writes) {
    if (left_ != kEndless) left_ += writes;
  }
  // Before each write.
  absl::Status Take() {
    if (left_ == 0) return ResourceExhausted("no space left on the simulated disk");
    if (left_ != kEndless) --left_;
    return absl::OkStatus();
  }

 private:
  static constexpr int kEndless = -1;
  int left_ = kEndless;
};

// A machine with GPUs: shims and ranks on it, as processes that live, write files and die. The
// worker daemon there is another thing: it comes and goes without them.
class Machine : public worker::ShimHost {
 public:
  Machine(EventQueue& events, Chance& chance, Cluster& cluster, std::string name, int gpus);

  absl::Status Start(const std::string& shim_json) override;
  absl::StatusOr<channel::Answer> Ask(const std::string& socket_path,
                                      const channel::Command& command) override;
  bool Alive(const channel::ShimStatus& status) override;
  std::vector<worker::GpuReading> Gpus() const;
  int gpus() const { return gpus_; }
  // Other GPUs and an empty disk are put in; while no process is there.
  void Refit(int gpus) {
    gpus_ = gpus;
    ++refits_;
    cluster_.lost_logs.merge(log_names_);
    log_names_.clear();
  }
  NodeDisk& disk() { return disk_; }

  // An attempt with processes that hold GPUs.
  struct Live {
    std::string attempt;
    std::string job;
    int64_t epoch = 0;
    std::vector<int> gpus;
  };
  std::vector<Live> LiveAttempts() const;
  // Another one whenever LiveAttempts may be another.
  int64_t version() const { return version_; }

  // Faults. Each picks one of what there is; false: there was nothing to hit.
  bool KillRank();
  bool HangRank();  // until it is killed: it hears no SIGTERM
  void KillHung();
  bool KillShim();   // its ranks die with it
  bool StickRank();  // cannot be killed until Unstick
  void Unstick();
  void Reboot();  // all processes are gone

 private:
  struct Rank {
    int number = 0;
    std::vector<int> gpus;
    bool alive = false, hung = false, stuck = false;
    size_t index = 0;  // in the status
  };
  struct Shim {
    channel::ShimLaunch launch;
    channel::RankLaunch ranks_launch;
    channel::ShimStatus status;
    std::vector<Rank> ranks;
    std::shared_ptr<Gang> gang;
    std::map<std::string, io::AppendFile> files;  // that its processes hold open, by name
    Nanos fence_at{0}, kill_at{0}, joined_at{0}, give_up_at{0};
    int64_t step = 0;  // that this node's ranks have written
    int ended = 0;
    bool dead = false, checkpoint_asked = false;
    bool status_unwritten = false;  // for want of room: it tries again
    bool spare = false;             // holds room for the last status

    // The process is there.
    bool Runs() const { return !dead && (status.state != "exited" || status_unwritten); }
  };
  using ShimPtr = std::shared_ptr<Shim>;

  void Later(const ShimPtr& shim, Nanos delay, void (Machine::*what)(Shim&));
  void EndPrepare(Shim& shim);
  void Step(Shim& shim);
  void WriteStep(Shim& shim, int64_t step);
  void Succeed(Shim& shim);
  void Watch(Shim& shim);
  void Stop(Shim& shim, const std::string& cause, const std::string& reason);
  void EndAll(Shim& shim);
  void EndRank(Shim& shim, Rank& rank, int exit_code, int signal);
  void Settle(Shim& shim);
  void Die(Shim& shim);
  void WriteStatus(Shim& shim);
  bool Append(Shim& shim, const std::string& name, const std::string& bytes);
  bool Log(Shim& shim, const std::string& process, const std::string& line);
  bool Event(Shim& shim, const std::string& process, channel::EventBody body);
  void DiskFull(Shim& shim, Rank& rank);
  bool Checkpoint(Shim& shim, int64_t step, const std::string& reason);
  bool WriteShards(const Shim& shim, const std::string& dir, int64_t step);
  int64_t FirstStep(const Shim& shim);
  std::vector<std::pair<Shim*, Rank*>> LiveRanks();

  EventQueue& events_;
  Chance& chance_;
  Cluster& cluster_;
  const std::string name_;
  int gpus_;
  int refits_ = 0;
  NodeDisk disk_;
  int64_t next_pid_ = 5'000'000, version_ = 0;  // larger than any process of the real machine has
  std::set<std::string> log_names_;             // in Cluster::logs, since the disk was new
  std::map<std::string, ShimPtr> shims_;        // by attempt; the dead ones too
};

}  // namespace sft::sim
