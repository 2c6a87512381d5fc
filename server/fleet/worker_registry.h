#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/blob/gpu_history.h"
#include "server/core/change_hub.h"
#include "server/core/generation.h"
#include "server/fleet/node_claim.h"
#include "server/fleet/node_lease.h"
#include "server/gangs/node_refusals.h"
#include "server/sched/node_score.h"
#include "server/store/store.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// The server's end of one worker's stream. Send may be called from any thread, never blocks, and is
// ignored once the stream has ended.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual void Send(const v1::ServerMessage& message) = 0;
  // Ends the stream with this status.
  virtual void Close(const absl::Status& why) = 0;
};

// Registry of connected workers: which nodes are connected, when each was last heard, and its last
// report. The database holds what must survive; this holds what is true only while a stream lives.
// Thread-safe.
class WorkerRegistry {
 public:
  struct Options {
    Nanos heartbeat = std::chrono::seconds(5);
    // Silence after which a node is SUSPECT: nothing on it is killed, and its jobs wait.
    Nanos suspect_after = std::chrono::seconds(15);
    RestartPace pace;
    sched::ScoreRules score;
  };
  // `wake` requests a reconcile tick; called from any thread. `gpus`, if given, takes what nodes
  // say of the use of their GPUs; `generation`, if given, is told to workers and held against
  // theirs.
  WorkerRegistry(Options options, Store& store, Clock& clock, ChangeHub& hub,
                 std::function<void()> wake, GpuHistory* gpus = nullptr,
                 Generation* generation = nullptr);

  // Handles a Register: stores the node, its slots, models and variants. A second stream of the
  // same node replaces the first if it comes from the same worker (possibly restarted) or the first
  // is silent; otherwise ALREADY_EXISTS, because two workers of one name would end each other's
  // jobs. An incarnation that was replaced is refused permanently (node_claim.h). The remaining
  // worker, its jobs and operators are told about a refused one. FAILED_PRECONDITION for a protocol
  // that is not served, and from a worker that a newer generation of this server has. The caller
  // then sends the Welcome.
  absl::Status Connect(const v1::Register& message, std::shared_ptr<WorkerLink> link);
  // Ignored when the node has another link by now.
  void Disconnect(const std::string& node, const WorkerLink* link);
  // Handles an Observed; ABORTED when the node has another link by now.
  absl::Status Observe(const std::string& node, const WorkerLink* link,
                       const v1::Observed& observed);
  // The two halves of Observe: Hear returns what must be stored of a report beside its attempts,
  // and whether the desired set may change by it.
  struct News {
    v1::Observed unstored;
    std::optional<double> clock_offset;
    bool wakes = false;
    bool idle = false;  // there is nothing to store
    std::vector<absl::Status> refused;
  };
  // Never waits for the store. With News::idle nothing is left to do.
  absl::StatusOr<News> Hear(const std::string& node, const WorkerLink* link,
                            const v1::Observed& observed);
  absl::Status Keep(const std::string& node, const WorkerLink* link, const v1::Observed& observed,
                    const News& news);

  // OK when a call comes from the worker now registered as the node; UNAVAILABLE otherwise.
  absl::Status CheckIncarnation(const std::string& node, const std::string& incarnation) const;

  // Ends a node's stream, if it has one; the node may dial again.
  void Close(const std::string& node, const absl::Status& why);
  // Forgets a node that has left the fleet, and tells its worker to end.
  void Dismiss(const std::string& node);
  bool IsConnected(const std::string& node) const;
  // Sends to a node's stream; false when it is not connected.
  bool Send(const std::string& node, const v1::ServerMessage& message);
  // Sends the desired set unless it equals the last one sent on the stream.
  void SendDesired(const std::string& node, const v1::Desired& desired);

  struct Live {
    bool connected = false;
    bool silent = true;    // longer than suspect_after
    Nanos silent_for{0};   // not counting time in which this server was down or suspended
    WallTime last_seen{};  // zero: never since the server started
    std::map<int, std::pair<int64_t, int32_t>> use;  // slot → memory in use, utilisation
    v1::Observed observed;                           // the last report
    v1::NodeDisk disk;                               // level 0: not reported
    std::optional<double> clock_offset;              // the worker's clock minus this one's, seconds
    std::string rival;         // text about another worker that was refused lately; empty: none
    std::string rank_problem;  // why no rank can start there; empty: they can
    std::string rank_build;    // version and build of its sft-rank; empty: not known
    std::optional<NodeLease> lease;
    std::string leaving;  // why it leaves the fleet now; empty: it does not
  };
  // Downloads of models on connected nodes, as they were last reported, by node.
  std::vector<std::pair<std::string, v1::ModelDownload>> Downloads() const;
  // Default values for a node that was not heard since the server started.
  Live Get(const std::string& node) const;
  // Called about once a second by the thread that ticks. A longer gap means that this process was
  // suspended: it does not count as silence of the nodes.
  void Beat();
  v1::Welcome MakeWelcome(const absl::Status& accepted) const;
  const Options& options() const { return options_; }
  // Wall time, for storing.
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }
  int connected() const;
  // Refusals in everything nodes send, on streams or in calls.
  NodeRefusals& refusals() { return refusals_; }
  const NodeRefusals& refusals() const { return refusals_; }
  // A number that changes whenever a node falls silent or is heard again.
  uint64_t SilenceKey() const;

 private:
  struct Entry {
    std::shared_ptr<WorkerLink> link;
    Claim claim;
    std::string rival;       // text about the last worker that was refused,
    std::string rival_life;  // its incarnation,
    MonoTime rival_seen{};   // and when it was refused
    MonoTime last_heard{};   // by Awake()
    WallTime last_seen{};
    std::string last_desired;     // serialized
    bool wants_attempts = false;  // the last desired set was not empty
    bool desired_sent = false;
    v1::Observed observed;
    v1::NodeDisk disk;
    std::optional<double> clock_offset;
    WallTime clock_offset_at{};  // when it was measured, by this server's clock
    std::string rank_problem, rank_build;
    std::optional<NodeLease> lease;
    std::string models;  // serialized, from the last report
    std::string slots;   // serialized without use, from the last report
    std::string use;  // serialized with use; usually unchanged, and then `slots` is unchanged too
    bool good_use = true;  // the reported use is plausible
    // Slots and models that were reported and are not in the database yet: models are reported when
    // they change, not each time.
    v1::Observed unstored;
    bool behind = false;  // the last report could not be stored
    // The node reported no attempt, the database has none for it, and none was sent to it since:
    // another such report changes nothing, and the store is not asked. True for most reports of a
    // large fleet.
    bool idle = false;
  };
  // Monotonic time without the gaps that Beat has seen.
  MonoTime Awake() const SFT_REQUIRES(mutex_);
  absl::Status CheckRegister(const v1::Register& message) const;
  v1::Register WithoutImplausible(const v1::Register& message);
  // OK when no other worker holds the name, and none replaced this one.
  absl::Status CheckSole(const v1::Register& message);
  absl::Status StoreNode(const v1::Register& message);
  // OK when the row still belongs to this incarnation.
  absl::Status CheckStored(const v1::Register& message);
  absl::Status TakeIn(const v1::Register& message, std::shared_ptr<WorkerLink> link);
  // Tells the remaining worker about one that was refused.
  void TellOfRival(const v1::Register& refused);
  News TakeIn(Entry& entry, const v1::Observed& observed) SFT_REQUIRES(mutex_);
  // A report that was delayed, for example while this process was suspended, makes the worker's
  // clock look slow: the largest offset of the last minutes is closest to the truth.
  void TakeOffset(Entry& entry, int64_t its_us) SFT_REQUIRES(mutex_);

  // Constant after construction.
  const Options options_;
  Store& store_;
  Clock& clock_;
  ChangeHub& hub_;
  const std::function<void()> wake_;
  GpuHistory* const gpus_;
  Generation* const generation_;
  NodeRefusals refusals_;
  const MonoTime started_;

  mutable Mutex mutex_;
  MonoTime last_beat_ SFT_GUARDED_BY(mutex_);
  Nanos asleep_ SFT_GUARDED_BY(mutex_){0};
  std::map<std::string, Entry> entries_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
