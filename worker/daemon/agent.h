#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/attempt/attempt.h"
#include "worker/base/io_thread.h"
#include "worker/transfer/checkpoint_folder.h"
#include "worker/transfer/judge_desk.h"

namespace sft::worker {

// Manages the node's attempts: turns the desired set into steps of each attempt, and reports the
// observed set. An attempt that the server wants and the node lacks is MISSING; one that the node
// has and the server does not want is stopped and deleted.
class Agent {
 public:
  struct Options {
    // Off in tests that call StepIo themselves.
    bool io_threads = true;
  };
  // The references are borrowed.
  Agent(Options options, const NodeSetup& setup, Stager& stager, Inventory& inventory,
        ServerApi& server, ShimHost& shims, Clock& clock,
        std::function<absl::StatusOr<std::string>()> torch_lib_dir);
  ~Agent();

  // Adopts the attempts that an earlier incarnation of the worker left; call once, before anything
  // else. A folder that cannot be parsed is an error: it may have live ranks.
  absl::Status Load();

  // Called from any thread.
  void OnDesired(const v1::Desired& desired);
  // Called when this worker is refused for good: ends what runs here without reporting it, and
  // ignores further messages of the server. The attempts' files stay on disk for its next
  // incarnation.
  void StopAll(const std::string& reason);
  // The server has heard this worker at `at` or later, because it answered a message sent then.
  void ServerHeard(MonoTime at);
  // That time; zero: never in this incarnation.
  MonoTime Heard() const;
  MonoTime Now() const { return services_.clock.Mono(); }
  // Why ranks cannot be started on this node (RankCheck); empty: they can.
  void SetRankProblem(const std::string& problem);
  std::string RankProblem() const;
  // Version and build of this node's sft-rank (RankCheck); empty: not known yet.
  void SetRankBuild(const std::string& build);
  std::string RankBuild() const;
  // Why this node leaves the fleet, for the server to see to it; the first reason stays. False when
  // it was leaving already.
  bool Leave(const std::string& why);
  // Empty: it does not.
  std::string Leaving() const;
  bool HasAttempts() const;
  void SetModels(std::vector<v1::Model> models);
  std::vector<v1::Model> Models() const;
  // The ids of models that attempts here use ("org/name").
  std::set<std::string> ModelsInUse() const;
  // Where Observe asks for downloads of models; call before there are other threads.
  void SetDownloads(std::function<std::vector<ModelStore::Download>()> downloads) {
    downloads_ = std::move(downloads);
  }
  // Data kept on this node for later jobs that is in use now.
  DataInUse InUse() const;
  // `models_since`: the number of the model list that the server has; updated to the current one.
  // The message includes the list only if it is newer.
  v1::Observed Observe(uint64_t& models_since) const;
  // Waits until a change after `seen` must be reported to the server, and updates `seen`; false
  // when `timeout` passed first.
  bool WaitForChange(uint64_t& seen, Nanos timeout);
  void NotifyChange();

  // One turn of the control thread; returns the time until the next one is due if nothing changes
  // before.
  Nanos Step();
  // Waits for that time or a change.
  void WaitForStep(Nanos timeout);
  // For tests: one piece of each attempt's long work, in this thread.
  void StepIo();

 private:
  struct Entry {
    std::unique_ptr<Attempt> attempt;
    std::unique_ptr<IoThread> io;
    std::unique_ptr<IoThread> checkpoint_io;
    std::unique_ptr<JudgeDesk> judges;  // null: its job asks none
  };

  void Apply(const v1::Desired& desired);
  void Accept(const v1::DesiredAttempt& desired);
  void Add(AttemptRecord record);
  void RemoveForgotten();
  void CleanCheckpoints(bool is_news);
  void CleanModels(const v1::Desired& desired);

  const Options options_;
  const NodeSetup& setup_;
  const AttemptServices services_;
  std::function<std::vector<ModelStore::Download>()> downloads_;

  mutable Mutex mutex_;
  CondVar changed_;
  // Only the control thread adds and removes entries.
  std::map<std::string, Entry> attempts_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> missing_ SFT_GUARDED_BY(mutex_);  // uid and epoch
  // The checkpoints that the server keeps, by its last message, and the jobs for which that was
  // applied. Used only by the thread that steps.
  v1::CheckpointSet kept_;
  LiveJobs cleaned_;
  std::optional<v1::Desired> desired_ SFT_GUARDED_BY(mutex_);  // not applied yet
  std::string refused_ SFT_GUARDED_BY(mutex_);  // StopAll's reason; empty while it was not called
  MonoTime heard_ SFT_GUARDED_BY(mutex_){};
  std::string rank_problem_ SFT_GUARDED_BY(mutex_);
  std::string rank_build_ SFT_GUARDED_BY(mutex_);
  std::string leaving_ SFT_GUARDED_BY(mutex_);
  std::vector<v1::Model> models_ SFT_GUARDED_BY(mutex_);
  uint64_t models_version_ SFT_GUARDED_BY(mutex_) = 0;
  uint64_t version_ SFT_GUARDED_BY(mutex_) = 1;
  bool step_wanted_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::worker
