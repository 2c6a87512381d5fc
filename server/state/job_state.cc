#include "server/state/job_state.h"

#include <algorithm>

namespace sft::server {
namespace {

using J = JobState;
using A = AttemptState;

constexpr Edge<JobState> kJobEdges[] = {
    {J::kPending, J::kPreparing, "an attempt was placed: its slots are held"},
    {J::kPending, J::kCancelled, "cancelled before it was placed"},
    {J::kPending, J::kFailed, "it can never be placed again"},
    {J::kPreparing, J::kRunning, "every node runs its ranks"},
    {J::kPreparing, J::kFailed, "the attempt failed and every node has ended it"},
    {J::kPreparing, J::kCancelling, "cancel was asked for"},
    {J::kPreparing, J::kPending, "the attempt ended and the job is restarted, preempted or held"},
    {J::kRunning, J::kSucceeded, "every node has ended its part with success"},
    {J::kRunning, J::kFailed, "the attempt failed and every node has ended it"},
    {J::kRunning, J::kCancelling, "cancel was asked for"},
    {J::kRunning, J::kPending, "the attempt ended and the job is restarted, preempted or held"},
    {J::kCancelling, J::kCancelled, "every node has ended its part"},
};

constexpr Edge<AttemptState> kAttemptEdges[] = {
    {A::kPlaced, A::kPreparing, "a node reports PREPARING or later"},
    {A::kPlaced, A::kStopping, "a node reports a failure, or it was told to stop"},
    {A::kPreparing, A::kRunning, "every node reports RUNNING or later"},
    {A::kPreparing, A::kStopping, "a node reports a failure, or it was told to stop"},
    {A::kRunning, A::kStopping, "a node reports a failure, or it was told to stop"},
    {A::kRunning, A::kSucceeded, "every node reports DONE with success"},
    {A::kStopping, A::kFailed, "every node has ended its part"},
    {A::kStopping, A::kSucceeded, "every node had ended with success before it was told to stop"},
    {A::kStopping, A::kCancelled, "every node has ended its part after a cancel"},
};

template <typename State>
bool Has(std::span<const Edge<State>> edges, State from, State to) {
  return std::any_of(edges.begin(), edges.end(), [&](const Edge<State>& edge) {
    return edge.from == from && edge.to == to;
  });
}

}  // namespace

std::span<const Edge<JobState>> JobEdges() { return kJobEdges; }
std::span<const Edge<AttemptState>> AttemptEdges() { return kAttemptEdges; }

bool IsLegal(JobState from, JobState to) { return Has(JobEdges(), from, to); }
bool IsLegal(AttemptState from, AttemptState to) { return Has(AttemptEdges(), from, to); }

bool IsTerminal(JobState state) {
  return state == J::kSucceeded || state == J::kFailed || state == J::kCancelled;
}

bool IsTerminal(AttemptState state) {
  return state == A::kSucceeded || state == A::kFailed || state == A::kCancelled;
}

std::string_view ToString(JobState state) {
  switch (state) {
    case J::kPending: return "PENDING";
    case J::kPreparing: return "PREPARING";
    case J::kRunning: return "RUNNING";
    case J::kCancelling: return "CANCELLING";
    case J::kSucceeded: return "SUCCEEDED";
    case J::kFailed: return "FAILED";
    case J::kCancelled: return "CANCELLED";
  }
  return "UNKNOWN";
}

std::string_view ToString(AttemptState state) {
  switch (state) {
    case A::kPlaced: return "PLACED";
    case A::kPreparing: return "PREPARING";
    case A::kRunning: return "RUNNING";
    case A::kStopping: return "STOPPING";
    case A::kSucceeded: return "SUCCEEDED";
    case A::kFailed: return "FAILED";
    case A::kCancelled: return "CANCELLED";
  }
  return "UNKNOWN";
}

}  // namespace sft::server
