#pragma once

#include <span>
#include <string_view>

namespace sft::server {

// Stored in the database and equal to the numbers of sft.v1.Job.State: never renumber.
enum class JobState : int {
  kPending = 1,
  kPreparing = 2,
  kRunning = 3,
  kCancelling = 4,
  kSucceeded = 5,
  kFailed = 6,
  kCancelled = 7,
};

// States of one attempt (a gang on its nodes). Stored: never renumber.
enum class AttemptState : int {
  kPlaced = 1,     // slots are held, the nodes are being told
  kPreparing = 2,  // a node prepares model and data
  kRunning = 3,    // every node runs its ranks
  kStopping = 4,   // every node is told to end its ranks
  kSucceeded = 5,
  kFailed = 6,
  kCancelled = 7,
};

// One legal change of state.
template <typename State>
struct Edge {
  State from;
  State to;
  std::string_view when;
};

// The whole truth about which changes of state are legal; docs/job_states.md shows these tables.
std::span<const Edge<JobState>> JobEdges();
std::span<const Edge<AttemptState>> AttemptEdges();

bool IsLegal(JobState from, JobState to);
bool IsLegal(AttemptState from, AttemptState to);

bool IsTerminal(JobState state);
bool IsTerminal(AttemptState state);

// "PENDING"
std::string_view ToString(JobState state);
std::string_view ToString(AttemptState state);

}  // namespace sft::server
