#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/sched/snapshot.h"

// What happened between two decisions that moves those who wait.

namespace sft::server::sched {

// One of them.
struct Cause {
  enum class Kind {
    // About the line; `place` is where the job stands or stood in it.
    kSubmitted,
    kStartedAtOnce,  // submitted and placed by the same decision
    kReturned,       // it is in line again, as after a restart
    kJoined,         // it may start now: released, or what it waited for has come
    kTurn,           // went ahead of others
    kGone,           // ended without a start
    kBlocked,        // held, or over a limit
    // About running jobs; `by_us` says by how much.
    kPreempted,
    kLonger,
    kShorter,
    kKnown,        // when it ends was not known before
    kEndedSooner,  // than expected
    kEnded,        // sooner than its upper bound
    // About nodes; `text` names the node and what it lacks.
    kNodeLost,
    kNodeBack,
    // About projects.
    kLimits,
    kShares,
  };
  Kind kind = Kind::kSubmitted;
  int64_t round = 0;  // of the decision
  std::string type;   // of slots; empty: all
  std::string job, project;
  int place = 0;
  int64_t by_us = 0;
  std::string text;
};

// Whether it makes others wait longer, or less long; limits and shares may do both.
bool Delays(Cause::Kind kind);
bool Hastens(Cause::Kind kind);

// The smallest change of a time that is told: a minute, or this part of what is left of it.
inline constexpr int64_t kLeastMoveUs = 60'000'000;
inline constexpr double kLeastMovePart = 0.05;
// Whether a time has moved by as much.
bool HasMoved(int64_t before_us, int64_t after_us, int64_t now_us);

// Compares what nodes, running jobs and projects are with what they were.
class FleetWatch {
 public:
  // What has changed since the snapshot before; nothing for the first one.
  std::vector<Cause> Look(const Snapshot& snapshot);

 private:
  struct Run {
    std::string type, project;
    int64_t end_us = 0;  // as it was told last
    int64_t bound_us = 0;
  };
  struct Node {
    std::map<std::string, int> slots;  // that may be used, by type
  };
  struct Project {
    double share = 1;
    int max_gpus = 0, max_running = 0;
    bool operator==(const Project&) const = default;
  };

  void LookAtRuns(const Snapshot& snapshot, std::vector<Cause>& causes);
  void LookAtNodes(const Snapshot& snapshot, std::vector<Cause>& causes);
  void LookAtProjects(const Snapshot& snapshot, std::vector<Cause>& causes);

  bool first_ = true;
  std::unordered_map<std::string, Run> runs_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, Project> projects_;
};

// Causes of a change as a person says them, to a member of this project: jobs of other projects are
// counted alone.
std::string CauseText(const std::vector<const Cause*>& causes, std::string_view project);

}  // namespace sft::server::sched
