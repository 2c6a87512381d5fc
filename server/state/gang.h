#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/state/job_state.h"
#include "server/state/verdict.h"

// The life of a gang: what the reports of its nodes mean for the attempt. Pure.

namespace sft::server {

// What a node last reported of its part; numbers of sft.v1.AttemptStatus.State, stored.
enum class MemberState : int {
  kNone = 0,  // nothing yet
  kMissing = 1,
  kStaging = 2,
  kReady = 3,
  kPreparing = 4,
  kRunning = 5,
  kStopping = 6,
  kFinishing = 7,
  kDone = 8,
};

std::string_view ToString(MemberState state);

// The part of an attempt on one node.
struct Member {
  int node_rank = 0;
  std::string node;
  MemberState state = MemberState::kNone;
  // The node has had it: MISSING from now on means that its processes are gone.
  bool seen = false;
  Verdict verdict;
  std::string reason;
  bool stuck = false;
  bool lost = false;  // silent for longer than the job allows: given up
  // Steps of checkpoints of a gang over several nodes: the newest that is whole on this node, and
  // the newest that the server has of it or will never get.
  int64_t checkpoint_newest = 0;
  int64_t checkpoint_settled = 0;
};

// An attempt with what all its nodes say.
struct Gang {
  AttemptState state = AttemptState::kPlaced;
  bool cancel_requested = false;
  std::string cancel_reason;
  Verdict verdict;  // of the first failure; empty while there is none
  // Of the scheduler's word that it shall end, though nothing failed; empty: it may go on.
  Verdict stop;
  std::vector<Member> members;  // by node rank
};

// What to do next: an edge, a verdict, or both. The caller applies it and asks again until nothing
// is left to do.
struct GangStep {
  std::optional<AttemptState> next;
  std::optional<Verdict> verdict;
  std::string reason;

  bool empty() const { return !next.has_value() && !verdict.has_value(); }
};

// Idempotent: the step that was applied is not asked for again. The first failing node ends the
// gang; an attempt is over only when each of its nodes has nothing of it any more. One that was
// told to stop ends with that verdict, unless the job itself is at fault or was done.
GangStep DecideGang(const Gang& gang);

// The step whose checkpoint the nodes of a gang deliver next, after `current`: the newest that
// every node has whole, once none has anything left to deliver of the one before. Nodes hand over
// at their own pace and skip what is overtaken; without one word they would skip different steps
// and never complete any. 0: none yet.
int64_t CollectedStep(int64_t current, const std::vector<Member>& members);

}  // namespace sft::server
