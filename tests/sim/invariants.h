#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/state/job_state.h"
#include "server/store/store.h"
#include "tests/sim/machine.h"

namespace sft::sim {

// What must hold, whatever breaks.
enum class Invariant {
  kOneAttemptPerGpu = 1,   // a GPU belongs to one live attempt, and that attempt holds it
  kOneLiveAttemptPerJob,   // of a job's attempts one at most lives; the newest alone may
  kGangIsWhole,            // an attempt has all its parts and slots, or none
  kSubmitsSurvive,         // what was acknowledged is there; one request id is one job
  kTerminalIsFinal,        // a final state never changes
  kJobsMoveOrSayWhy,       // a job that waits says for what; none waits for ever
  kLogsAreWhole,           // acknowledged bytes of a log are there, in order
  kBudgetsShrink,          // attempts and epochs only go up; retries left only down
  kNothingIsHeldInTheEnd,  // at rest nothing is allocated, nothing lives
};
inline constexpr int kInvariants = 9;
std::string_view ToString(Invariant invariant);

// One that did not hold.
struct Violation {
  Invariant invariant;
  std::string what;
};

using Machines = std::map<std::string, Machine*, std::less<>>;  // by node

// Looks at the truth (the database, the machines) after each event. Keeps what it saw before.
class Checker {
 public:
  void Acknowledged(const std::string& request_id, const std::string& job);

  // Every event; reads the database when something was committed, or in another `life` of the
  // server, and looks at what is held when that or a machine's processes changed. `able`: the
  // server can write down what it finds. Empty: all held.
  std::vector<Violation> Check(server::Store& store, int64_t life, const Machines& machines,
                               Nanos now, bool able);
  // Alone, without the database: while the server is down.
  std::vector<Violation> CheckMachines(const Machines& machines) const;
  // When everything has been quiet and whole for long enough.
  std::vector<Violation> CheckRest(server::Store& store, const Machines& machines);

  // Changes of state of jobs, from their events.
  static std::set<std::pair<server::JobState, server::JobState>> Edges(server::Store& store);
  // Whether every job was in a final state when the database was read.
  bool AllFinal() const;

 private:
  struct Job {
    server::JobState state;
    int64_t attempt = 0, nodes = 0, gpus_per_node = 0;
    std::string reason, request_id;
    int64_t attempts = 0, live = 0;  // of its attempts
    Nanos silent_since{-1};          // PENDING without a reason
  };
  absl::Status Load(server::Database& db);
  void CheckJobs(const std::map<std::string, Job>& before, Nanos now, bool able);
  void CheckRemoved(Nanos now, bool able);
  void CheckHeld(const Machines& machines);
  void Violate(Invariant invariant, std::string what) {
    found_.push_back({invariant, std::move(what)});
  }

  std::map<std::string, std::string> acknowledged_;  // request id → job
  std::map<std::string, Job> jobs_;
  // Of attempts that are not over: slots by node, and the job.
  struct Attempt {
    std::string job;
    int64_t number = 0, epoch = 0, members = 0;
    std::set<std::pair<std::string, int>> slots;
    std::string removed_node;  // has a part of it that was not given up; empty: none
  };
  std::map<std::string, Attempt> attempts_;
  std::map<std::string, Nanos> removed_since_;  // attempts with a part on a removed node
  std::pair<int64_t, int64_t> seen_{-1, -1};    // life and commits at the last reading
  int64_t machines_seen_ = -1;                  // the sum of their versions
  Nanos read_at_{0};
  int held_over_ = 0;  // slots of attempts that are over, on nodes that were given up
  std::map<std::string, int64_t> epochs_;  // the highest of each job
  std::vector<Violation> found_;
};

}  // namespace sft::sim
