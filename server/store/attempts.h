#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// Rows of attempts, their parts on nodes, and allocations. As jobs.h.

namespace sft::server::store {

// The attempt, its members and one live allocation for each slot: all or nothing. ALREADY_EXISTS
// when a slot is held.
absl::Status InsertAttempt(Database& db, const AttemptRecord& attempt,
                           const std::vector<MemberRecord>& members);

absl::StatusOr<AttemptRecord> GetAttempt(Database& db, const std::string& uid);
absl::StatusOr<std::optional<AttemptRecord>> AttemptOfJob(Database& db, const std::string& job_id,
                                                          int number);
// Newest first.
absl::StatusOr<std::vector<AttemptRecord>> AttemptsOfJob(Database& db, const std::string& job_id,
                                                         int limit);
// Attempts that are not over, oldest first.
absl::StatusOr<std::vector<AttemptRecord>> LiveAttempts(Database& db);

// By node rank.
absl::StatusOr<std::vector<MemberRecord>> MembersOf(Database& db, const std::string& attempt_uid);
// Members that a node has not forgotten: what its desired set is made of.
absl::StatusOr<std::vector<MemberRecord>> HeldMembers(Database& db, const std::string& node);

// Takes a legal edge of an attempt with its verdict and reason; as TakeEdge for jobs. A terminal
// state frees the slots, but for those of nodes that were given up: FreeSlots does that once such a
// node says that it has nothing of the attempt. `ended_us`: when a terminal state came about; 0:
// now.
absl::Status TakeAttemptEdge(Database& db, AttemptRecord& attempt, AttemptState to, int64_t now_us,
                             int64_t ended_us = 0);
absl::Status FreeSlots(Database& db, const std::string& attempt_uid, const std::string& node,
                       int64_t now_us);
absl::Status SetPace(Database& db, const std::string& uid, int64_t step, int64_t now_us);
// Stores stop_code, stop_reason and stop_us.
absl::Status RequestStop(Database& db, const AttemptRecord& attempt);
// Stores checkpoints_asked and checkpoint_request.
absl::Status AskForCheckpoint(Database& db, const AttemptRecord& attempt);
absl::Status SetCollecting(Database& db, const std::string& uid, int64_t step);
absl::Status SetAttemptVerdict(Database& db, const AttemptRecord& attempt);
absl::Status SetRendezvous(Database& db, const std::string& uid, const std::string& rendezvous);
absl::Status SetProgress(Database& db, const std::string& uid, const Progress& progress);
absl::Status UpdateMember(Database& db, const MemberRecord& member);

// Live allocations: (node, slot) → job id.
using Holders = std::map<std::pair<std::string, int>, std::string>;
absl::StatusOr<Holders> LiveHolders(Database& db);
absl::StatusOr<Holders> LiveHolders(Database& db, const std::string& node);

// A slot that is held, by which job and since when.
struct HeldBy {
  std::string node;
  int slot = 0;
  std::string job_id, project, owner;
  int64_t since_us = 0;
};
// By node and slot; one for each slot at most.
absl::StatusOr<std::vector<HeldBy>> SlotsHeld(Database& db);

// How far a rank's events and log are stored.
struct RankStream {
  int64_t events_offset = 0;
  bool log_ended = false;
};
absl::StatusOr<RankStream> GetRankStream(Database& db, const std::string& attempt_uid, int rank,
                                         const std::string& node);
absl::Status PutRankStream(Database& db, const std::string& attempt_uid, int rank,
                           const std::string& node, const RankStream& stream);

}  // namespace sft::server::store
