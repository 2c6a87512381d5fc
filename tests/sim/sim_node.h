#pragma once

#include <memory>
#include <set>
#include <string>

#include "tests/sim/machine.h"
#include "tests/sim/sim_server.h"
#include "worker/base/setup.h"
#include "worker/daemon/agent.h"
#include "worker/gpus/inventory.h"

namespace sft::sim {

// A machine and its worker daemon: the real agent over simulated shims, a simulated way to the
// server, and the node's own folder. The daemon may be killed and started again; the machine may be
// rebooted.
class SimNode : public worker::ServerApi {
 public:
  struct Options {
    std::string name;
    int gpus = 2;
    std::string dir;         // data folder
    std::string model_dir;   // holds the one model
    std::string files_dir;   // holds what jobs name
    std::string shared_dir;  // empty: none
    bool uploads = true;     // checkpoints, where there is no shared folder
  };
  SimNode(EventQueue& events, Chance& chance, Cluster& cluster, SimServer& server, Options options);
  ~SimNode() override;

  const std::string& name() const { return options_.name; }
  Machine& machine() { return machine_; }
  MachineClock& clock() { return clock_; }
  bool running() const { return agent_ != nullptr; }
  // Starts of the daemon so far.
  int boots() const { return boots_; }

  void Boot();
  void Kill();
  // The disk that held them was replaced; while the daemon is down.
  void LoseCheckpoints();
  // Another machine gets this node's name: other GPUs, an empty data folder; while the machine is
  // off.
  void Refit(int gpus);
  // No bytes pass between this node and the server until Reconnect.
  void Cut() { cut_ = true; }
  void Reconnect();
  bool is_cut() const { return cut_; }
  // One in n calls is done but not answered; 0: none.
  void LoseAnswers(int one_in) { lose_answers_ = one_in; }
  // Messages take this long; it is 1 to 30 ms else.
  void SlowDown(Nanos delay) { delay_ = delay; }

 private:
  class Link;

  // ServerApi: what the agent calls.
  absl::StatusOr<int64_t> AppendLog(const v1::AppendLogRequest& request) override;
  absl::StatusOr<int64_t> AppendEvents(const v1::AppendEventsRequest& request) override;
  absl::Status UploadArtifact(const worker::BlobFile& file, const worker::StopCheck& stop) override;
  absl::Status Download(const std::string& sha256, int64_t offset,
                        const std::function<absl::Status(std::string_view)>& sink,
                        const worker::StopCheck& stop) override;
  absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest& request) override;
  absl::Status CommitArtifact(const v1::CommitArtifactRequest& request) override;
  absl::StatusOr<std::string> HubToken(const v1::GetHubTokenRequest&) override { return ""; }
  absl::StatusOr<std::unique_ptr<ModelFile>> FetchModelFile(const v1::FetchModelFileRequest&,
                                                            const worker::StopCheck&) override {
    return absl::NotFoundError("no other node has it");
  }
  absl::StatusOr<v1::AskJudgeResponse> AskJudge(const v1::AskJudgeRequest&,
                                                const worker::StopCheck&) override {
    return absl::UnimplementedError("no judges");
  }
  absl::Status SendFile(const v1::FetchFile&, const std::string&, const std::string&) override;
  absl::Status SendLines(const std::string&, const NextLine&) override {
    return absl::UnimplementedError("jobs of kind serve are not simulated");
  }

  SimServer::Process* Reach();
  template <typename Result>
  Result Answer(Result result);
  Nanos Delay();
  void Later(Nanos delay, std::function<void()> action);
  void Connect();
  void Break();
  void WatchLink();
  using Handle = std::function<void(SimServer::Process&, const std::shared_ptr<Link>&)>;
  void ToServer(Handle handle);
  void Deliver(const std::shared_ptr<Link>& link, const Handle& handle);
  void RefreshLater();
  void StepAgent();
  void Report();
  void TakeAnswer(int64_t sequence);
  v1::Register MakeRegister();

  EventQueue& events_;
  Chance& chance_;
  SimServer& server_;
  const Options options_;
  MachineClock clock_;
  Machine machine_;
  worker::NodeSetup setup_;
  int64_t life_ = 0;
  int boots_ = 0;
  int machines_ = 0;  // that have had the name before
  bool cut_ = false;
  int lose_answers_ = 0;
  Nanos delay_{0};
  std::unique_ptr<worker::Stager> stager_;
  std::unique_ptr<worker::Inventory> inventory_;
  std::unique_ptr<worker::Agent> agent_;
  std::shared_ptr<Link> link_;
  Nanos arrives_{0}, reported_at_{0}, cut_since_{0};  // of messages to the server: the last one
  bool step_soon_ = false;
  uint64_t seen_ = 0, models_since_ = 0;
  int64_t sequence_ = 0;
  std::map<int64_t, MonoTime> unanswered_;  // reports on their way, and when they were sent
};

}  // namespace sft::sim
