#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"

// Flight recorder of a rank: what it was doing last, readable from outside at any time, even after
// kill -9. A small file that the rank maps and stores into (<attempt dir>/rank-<r>.flight). Writer:
// the rank's training thread, a few stores per change. Reader: the worker daemon, which compares
// the ranks of its node. The writer uses no JSON and no system call, because it runs at every
// collective.
//
// Layout: one FlightPage of 64-bit words in the machine's byte order. Times are nanoseconds of the
// machine's monotonic clock, the same for all its processes.

namespace sft::channel {

enum class FlightPhase : uint64_t {
  kStarting = 0,
  kMeeting = 1,        // waits for the other ranks at the rendezvous
  kLoading = 2,        // model, data, plan
  kTraining = 3,       // in a step or between two steps
  kValidating = 4,     //
  kCheckpointing = 5,  // training is stopped for a checkpoint
  kDelivering = 6,     // writes and verifies the result
  kEnding = 7,
};
std::string_view ToString(FlightPhase phase);

enum class Collective : uint64_t {
  kAllReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kBroadcast = 4,
  kBarrier = 5,
  kMessage = 6,  // from one rank to another, at both ends
  kAllToAll = 7,
};
std::string_view ToString(Collective kind);

inline constexpr int kFlightOps = 64;
inline constexpr int kFlightSteps = 32;
inline constexpr int kFlightGroups = 16;
inline constexpr int kFlightNameBytes = 64;

// `Word` is std::atomic<uint64_t> for the writer and uint64_t in a reader's copy.
template <typename Word>
struct FlightPage {
  struct Op {
    Word group;     // index into groups
    Word sequence;  // within the group, from 1
    Word kind;
    Word bytes;  // of the whole tensor; the same on all ranks
    Word started_ns;
    Word finished_ns;  // 0: not finished
  };
  struct Step {
    Word step;
    Word own_ns;  // time of the step in which this rank did not wait for others
  };
  Word magic;
  Word version;
  Word changes;  // odd while the writer is in the middle of a change
  Word rank;
  Word world;
  Word pid;
  Word begun_ns;
  Word changed_ns;
  Word phase;
  Word step;  // under way or, between two steps, done; from 1
  Word steps_done;
  Word total_steps;
  Word waiting;  // number of the op that the rank's thread waits for; 0: it runs
  Word group_count;
  Word ops_started;  // over all groups; op n is ops[(n - 1) % kFlightOps]
  Word steps_measured;
  char groups[kFlightGroups][kFlightNameBytes];
  Op ops[kFlightOps];
  Step steps[kFlightSteps];
};
static_assert(sizeof(FlightPage<uint64_t>) == sizeof(FlightPage<std::atomic<uint64_t>>));
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The writer's side. One thread.
class FlightRecorder {
 public:
  // Creates the file with all its blocks, so that a full disk is an error here and not a signal
  // later. `clock` is borrowed.
  static absl::StatusOr<FlightRecorder> Create(const std::string& path, int rank, int world,
                                               Clock& clock);
  FlightRecorder(FlightRecorder&& other) noexcept;
  FlightRecorder& operator=(FlightRecorder&&) = delete;
  ~FlightRecorder();

  void SetPhase(FlightPhase phase);
  void SetTotalSteps(int64_t total);
  // Records the start of a step, counted from 1.
  void BeginStep(int64_t step);
  // Records the end of this rank's own work in the step: from here on ranks wait for each other.
  // `all_finished`: all collectives so far are finished too, for devices whose collectives are not
  // polled one by one.
  void EndOwnWork(bool all_finished);
  void EndStep();

  // The index of a group of ranks by its name ("world", "0,2"); names beyond kFlightGroups share
  // the last index.
  int Group(std::string_view name);
  // Records the start of a collective and returns its number.
  uint64_t Start(int group, Collective kind, int64_t bytes);
  // Records that the calling thread now waits for it.
  void Wait(uint64_t number);
  // Records the end of the wait; `finished`: the collective is known to be done.
  void EndWait(uint64_t number, bool finished);

 private:
  using Page = FlightPage<std::atomic<uint64_t>>;
  FlightRecorder(Page* page, Clock& clock) : page_(page), clock_(&clock) {}

  // Begin and end a change: readers that see it half made read again.
  uint64_t Open();
  void Close();

  Page* page_;
  Clock* clock_;
  std::array<uint64_t, kFlightGroups> sequences_{};
  uint64_t step_begun_ns_ = 0;
  uint64_t wait_begun_ns_ = 0;
  uint64_t waited_ns_ = 0;  // in the current step
};

// One collective in a reader's copy.
struct FlightOp {
  uint64_t number = 0;
  std::string group;
  uint64_t sequence = 0;
  Collective kind = Collective::kBarrier;
  int64_t bytes = 0;
  MonoTime started{};
  bool finished = false;

  // "all-reduce #17 (4096 bytes, group world)"
  std::string Describe() const;
};

// A rank's own part of a step.
struct FlightStep {
  int64_t step = 0;
  Nanos own{};
};

// A consistent copy for readers.
struct FlightRecord {
  int rank = 0;
  int world = 1;
  int64_t pid = 0;
  FlightPhase phase = FlightPhase::kStarting;
  MonoTime begun{};
  MonoTime changed{};
  int64_t step = 0;
  int64_t steps_done = 0;
  int64_t total_steps = 0;
  uint64_t waiting = 0;           // number of the op that the rank's thread waits for; 0: none
  std::vector<FlightOp> ops;      // the newest kFlightOps, oldest first
  std::vector<FlightStep> steps;  // the newest kFlightSteps, oldest first

  // The collective that it waits in, else the newest one; null when there was none.
  const FlightOp* LastOp() const;
  // True while a collective that it started is not known to be done.
  bool InCollective() const { return waiting != 0 || (!ops.empty() && !ops.back().finished); }
  // "step 12 of 40: waits in all-reduce #17 (4096 bytes, group world)"
  std::string Describe() const;
};

// NOT_FOUND when there is no file; INVALID_ARGUMENT when it is not a flight record.
absl::StatusOr<FlightRecord> ReadFlightRecord(const std::string& path);

// "<attempt dir>/rank-<rank>.flight"
std::string FlightPath(std::string_view attempt_dir, int rank);

}  // namespace sft::channel
