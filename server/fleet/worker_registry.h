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
#include "server/core/change_hub.h"
#include "server/fleet/node_claim.h"
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
  // Ends the stream.
  virtual void Close(const absl::Status& why) = 0;
};

// Who is connected, when each node was last heard, and what it said last. The database has what
// must survive; this has what is true only while a stream lives. Thread-safe.
class WorkerRegistry {
 public:
  struct Options {
    Nanos heartbeat = std::chrono::seconds(5);
    // Silence after which a node is SUSPECT: nothing on it is killed, its jobs wait.
    Nanos suspect_after = std::chrono::seconds(15);
    RestartPace pace;
    sched::ScoreRules score;
  };
  // `wake` asks for a reconcile tick soon; called from any thread.
  WorkerRegistry(Options options, Store& store, Clock& clock, ChangeHub& hub,
                 std::function<void()> wake);

  // Takes in a Register: stores the node, its slots, models and variants. A second stream of the
  // same node replaces the first if it is of the same worker, started again perhaps, or the first
  // is silent; otherwise ALREADY_EXISTS: two workers of one name would end each other's jobs. A
  // life that another one has replaced is refused for good (node_claim.h), and who is refused is
  // told of to the worker that stays, its jobs and operators. FAILED_PRECONDITION for a protocol
  // that is not served. The caller then sends the Welcome.
  absl::Status Connect(const v1::Register& message, std::shared_ptr<WorkerLink> link);
  // Ignored when the node has another link by now.
  void Disconnect(const std::string& node, const WorkerLink* link);
  // Takes in an Observed; ABORTED when the node has another link by now.
  absl::Status Observe(const std::string& node, const WorkerLink* link,
                       const v1::Observed& observed);
  // Its two parts. What shall be stored of a report beside its attempts, and whether what shall be
  // may change by it.
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

  // Whether a call comes from the worker that is registered as the node now; UNAVAILABLE otherwise.
  absl::Status CheckIncarnation(const std::string& node, const std::string& incarnation) const;

  // Ends a node's stream, if it has one; it may dial again.
  void Close(const std::string& node, const absl::Status& why);
  // Sends to a node's stream; false when it is not connected.
  bool Send(const std::string& node, const v1::ServerMessage& message);
  // Sends the desired set unless it is what the stream got last.
  void SendDesired(const std::string& node, const v1::Desired& desired);

  struct Live {
    bool connected = false;
    bool silent = true;    // longer than suspect_after
    Nanos silent_for{0};   // without the time in which this server was down or stopped
    WallTime last_seen{};  // zero: not since the server started
    std::map<int, std::pair<int64_t, int32_t>> use;  // slot → memory used, utilisation
    v1::Observed observed;                           // last
    v1::NodeDisk disk;                               // level 0: it does not say
    std::optional<double> clock_offset;  // of the worker's clock from this one's, seconds
    std::string rival;                   // another worker that was refused lately; empty: none
    std::string rank_problem;            // why no rank starts there; empty: they do
  };
  // Nothing for a node that was not heard of since the server started.
  Live Get(const std::string& node) const;
  // To be called about once a second by the thread that ticks. A longer gap is one in which this
  // process was stopped: the nodes' silence does not count it.
  void Beat();
  v1::Welcome MakeWelcome(const absl::Status& accepted) const;
  const Options& options() const { return options_; }
  // Wall time, for what is stored.
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }
  int connected() const;
  // Of all that nodes say, on their streams or in calls.
  NodeRefusals& refusals() { return refusals_; }
  const NodeRefusals& refusals() const { return refusals_; }
  // Changes whenever a node falls silent or is heard of again.
  uint64_t SilenceKey() const;

 private:
  struct Entry {
    std::shared_ptr<WorkerLink> link;
    Claim claim;
    std::string rival;       // the last that was refused, as text,
    std::string rival_life;  // its incarnation,
    MonoTime rival_seen{};   // and when
    MonoTime last_heard{};   // Awake()
    WallTime last_seen{};
    std::string last_desired;     // serialized
    bool wants_attempts = false;  // it has some
    bool desired_sent = false;
    v1::Observed observed;
    v1::NodeDisk disk;
    std::optional<double> clock_offset;
    WallTime clock_offset_at{};  // by this server's clock
    std::string rank_problem;
    std::string models;    // serialized, as heard last
    std::string slots;     // serialized without use, as heard last
    std::string use;       // serialized with it: mostly the same again, and then `slots` is, too
    bool good_use = true;  // it can be true
    // Slots and models that were heard and are not in the database yet: models come when they
    // change, not with each report.
    v1::Observed unstored;
    bool behind = false;  // the last report could not be stored
    // It reported no attempt, the database has none for it, and none was sent to it since: another
    // such report changes nothing, and the store is not asked. Most reports of a large fleet.
    bool idle = false;
  };
  // Monotonic time without the gaps that Beat has seen.
  MonoTime Awake() const SFT_REQUIRES(mutex_);
  absl::Status CheckRegister(const v1::Register& message) const;
  v1::Register Believable(const v1::Register& message);
  // Whether no other worker holds the name, and none took this one's place.
  absl::Status CheckSole(const v1::Register& message);
  absl::Status StoreNode(const v1::Register& message);
  // Whether the row is still of this life.
  absl::Status CheckStored(const v1::Register& message);
  absl::Status TakeIn(const v1::Register& message, std::shared_ptr<WorkerLink> link);
  // Tells who stays of one that was refused.
  void TellOfRival(const v1::Register& refused);
  News TakeIn(Entry& entry, const v1::Observed& observed) SFT_REQUIRES(mutex_);
  // A report that lay about on its way, as while this process was stopped, makes the worker's clock
  // look behind: the largest offset of the last minutes is the one that is nearest to the truth.
  void TakeOffset(Entry& entry, int64_t its_us) SFT_REQUIRES(mutex_);

  // Constant after construction.
  const Options options_;
  Store& store_;
  Clock& clock_;
  ChangeHub& hub_;
  const std::function<void()> wake_;
  NodeRefusals refusals_;
  const MonoTime started_;

  mutable Mutex mutex_;
  MonoTime last_beat_ SFT_GUARDED_BY(mutex_);
  Nanos asleep_ SFT_GUARDED_BY(mutex_){0};
  std::map<std::string, Entry> entries_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
