#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/version.h"
#include "server/state/schedule.h"

// Input and output of a scheduling decision. Plain values: times are microseconds since the Unix
// epoch, durations microseconds.

namespace sft::server::sched {

// A slot as the scheduler sees it.
struct SlotView {
  int index = 0;
  std::string gpu_type;
  bool healthy = true;
  std::string job;  // the job that holds it; empty: free
};

// A node as the scheduler sees it.
struct NodeView {
  std::string name;
  // Connected and not SUSPECT: work may be placed on it.
  bool usable = true;
  std::string unusable_reason;  // "silent for 40 s"
  // Not usable yet but expected back, because the server has just started: promises of a start on
  // it stand.
  bool returning = false;
  // If not empty, why jobs keep failing on it. It is used only where nothing else could hold a job.
  std::string left_out;
  bool has_shared = false;   // sees the shared folder
  int protocol = kProtocol;  // spoken by its worker
  // Build of its sft-rank; empty for workers that do not report it: a build like any other.
  std::string rank_build;
  std::vector<SlotView> slots;
  std::vector<std::string> models;  // ids and paths of models that it can use
  bool downloads = false;           // it downloads models of the hub that it has not
  // Its place in the network (places.h): "block-a/rack-3/switch-2"; empty: not known.
  std::string place;
  // It leaves the fleet: its jobs are asked for a checkpoint then. 0: it stays.
  int64_t jobs_until_us = 0;
  // The least time before that in which a job reaches a checkpoint.
  int64_t least_stay_us = 0;
};

// Slots of one node.
struct Part {
  std::string node;
  std::vector<int> slots;
};

// Priority classes, from the lowest; the numbers of spec::Priority.
inline constexpr int kLow = 0, kNormal = 1, kHigh = 2, kUrgent = 3;

// A waiting job and its requirements.
struct PendingJob {
  std::string id;
  std::string gpu_type;
  int gpus_per_node = 1;
  int nodes = 1;
  // Model id in the nodes' model folders; empty: any node will do (a path is checked by the node).
  std::string model;
  // A node that downloads models may get it. A name without a revision is what nodes have, where
  // some have it.
  bool on_hub = false;
  // Nodes that can reach its checkpoint: these in this order (empty: any), or those that see the
  // shared folder.
  std::vector<std::string> only_nodes;
  bool needs_shared = false;
  // The lowest protocol that its workers must speak, and the key that needs it:
  // "checkpoint.save_strategy".
  int protocol = 1;
  std::string newer_keys;
  // The node blamed for its last failure; it is taken last.
  std::string avoid_node;

  std::string project;
  int priority = kNormal;
  int64_t submitted_us = 0;
  int64_t expected_us = 0;  // expected rest of its run; 0: not known
  int64_t bound_us = 0;     // upper bound of its run; 0: none
  bool exclusive = false;   // whole nodes
  // It goes on from a checkpoint elsewhere. Any other job has to end before its nodes leave.
  bool resumes = true;
  // Why it may not be placed whatever is free: a hold, a job it waits for. Empty: it may.
  std::string blocked;
  // Its sweep, and the most jobs of it that run at once (0: any number).
  std::string sweep;
  int sweep_limit = 0;
  // The promise of an earlier decision.
  Reservation promised;

  int gpus() const { return gpus_per_node * nodes; }
};

// A job that holds slots.
struct RunningJob {
  std::string id;
  std::string project;
  int priority = kNormal;
  std::vector<Part> parts;
  std::string gpu_type;
  int64_t started_us = 0;
  int64_t expected_end_us = 0;  // 0: not known
  int64_t bound_end_us = 0;     // it has ended by then; 0: there is no bound
  bool preemptible = true;
  bool stopping = false;  // it was told to end; bound_end_us says by when
  int64_t saved_us = 0;   // time of its last checkpoint; 0: none
  std::string sweep;
  bool exclusive = false;  // nothing else runs on its nodes

  int gpus() const;
};

// A project's share of the fleet. A project that is not listed has share 1 and no limits.
struct ProjectView {
  std::string name;
  double share = 1;
  double usage_us = 0;  // used GPU microseconds, decayed (order.h)
  int max_gpus = 0;     // GPUs in use at once; 0: any number
  int max_running = 0;  // running jobs
  std::string spent{};  // why none of its jobs starts, as its budget is used up; empty: they may
};

// Everything that a decision depends on.
struct Snapshot {
  std::vector<NodeView> nodes;
  std::vector<PendingJob> pending;  // in order of submission
  std::vector<RunningJob> running;
  std::vector<ProjectView> projects;
  int64_t now_us = 0;
};

// All slots of a gang, in node rank order.
struct Placement {
  std::string job;
  std::vector<Part> parts;
};

// A job that stays pending.
struct Waiting {
  std::string job;
  std::string reason;  // for a person; changes only when the cause does
  // Place in the queue for its slot type, from 1; 0: not in a queue.
  int place = 0;
  // Expected times, from all jobs ahead; 0: not known.
  int64_t start_us = 0, end_us = 0;
  Reservation promised;  // empty: no promise
  // Slots are all that it waits for: no hold, no other job, no limit.
  bool lacks_slots = false;
};

// A running job that shall write a checkpoint and end so that `by` can start.
struct Preemption {
  std::string job;
  std::string by;
};

// The result: every pending job is either placed or waits.
struct Decision {
  std::vector<Placement> placements;
  std::vector<Waiting> waiting;
  std::vector<Preemption> preemptions;
};

}  // namespace sft::server::sched
