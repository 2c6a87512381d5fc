#include "server/store/attempts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "server/store/budgets.h"
#include "server/store/progress.h"
#include "server/store/states.h"
#include "server/store/tallies.h"
#include "server/store/tenancy.h"

namespace sft::server::store {
namespace {

#define SFT_ATTEMPT_COLUMNS                                                                 \
  "uid, job_id, number, epoch, state, reason, rendezvous, verdict, progress, created_us, "  \
  "ended_us, "                                                                              \
  "resume_uid, resume_step, checkpoints_asked, checkpoint_request, collecting, stop_code, " \
  "stop_reason, stop_us, paced_step, paced_us"
#define SFT_MEMBER_COLUMNS                                                                 \
  "attempt_uid, node_rank, node, first_rank, slots, state, seen, reason, verdict, stuck, " \
  "forgotten, lost, protocol, checkpoint_newest, checkpoint_settled"

AttemptRecord ReadAttempt(const Statement& row) {
  AttemptRecord attempt;
  attempt.uid = row.Text(0);
  attempt.job_id = row.Text(1);
  attempt.number = static_cast<int>(row.Int(2));
  attempt.epoch = row.Int(3);
  attempt.state = static_cast<AttemptState>(row.Int(4));
  attempt.reason = row.Text(5);
  attempt.rendezvous = row.Text(6);
  attempt.verdict = VerdictFromJson(row.Text(7));
  attempt.progress = ParseProgress(row.Text(8));
  attempt.created_us = row.Int(9);
  attempt.ended_us = row.Int(10);
  attempt.resume_uid = row.Text(11);
  attempt.resume_step = row.Int(12);
  attempt.checkpoints_asked = row.Int(13);
  attempt.checkpoint_request = row.Text(14);
  attempt.collecting = row.Int(15);
  attempt.stop_code = row.Text(16);
  attempt.stop_reason = row.Text(17);
  attempt.stop_us = row.Int(18);
  attempt.paced_step = row.Int(19);
  attempt.paced_us = row.Int(20);
  return attempt;
}

// Frees an attempt's slots, whose job and beginning `release` returns, and counts their time for
// the project, and what they cost for its budget.
absl::Status Release(Database& db, Statement& release, int64_t now_us) {
  int64_t held_us = 0;
  std::string job_id;
  std::vector<int64_t> begins_us;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, release.Step());
    if (!row) break;
    job_id = release.Text(0);
    held_us += std::max<int64_t>(now_us - release.Int(1), 0);
    begins_us.push_back(release.Int(1));
  }
  if (job_id.empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::string project, ProjectOfJob(db, job_id));
  SFT_RETURN_IF_ERROR(ChargeBudget(db, project, job_id, begins_us, now_us));
  return AddTally(db, {Tally::kGpuSeconds, project, "", static_cast<double>(held_us) / 1e6});
}

// "0,1,2"
std::vector<int> ParseSlots(const std::string& text) {
  std::vector<int> slots;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int slot = 0;
    at = std::from_chars(at, end, slot).ptr + 1;
    slots.push_back(slot);
  }
  return slots;
}

absl::StatusOr<std::vector<MemberRecord>> ReadMembers(Statement& row) {
  std::vector<MemberRecord> members;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool more, row.Step());
    if (!more) return members;
    MemberRecord& member = members.emplace_back();
    member.attempt_uid = row.Text(0);
    member.status.node_rank = static_cast<int>(row.Int(1));
    member.status.node = row.Text(2);
    member.first_rank = static_cast<int>(row.Int(3));
    member.slots = ParseSlots(row.Text(4));
    member.status.state = static_cast<MemberState>(row.Int(5));
    member.status.seen = row.Bool(6);
    member.status.reason = row.Text(7);
    member.status.verdict = VerdictFromJson(row.Text(8));
    member.status.stuck = row.Bool(9);
    member.forgotten = row.Bool(10);
    member.status.lost = row.Bool(11);
    member.protocol = static_cast<int>(row.Int(12));
    member.status.checkpoint_newest = row.Int(13);
    member.status.checkpoint_settled = row.Int(14);
  }
}

absl::Status InsertMember(Database& db, const AttemptRecord& attempt, const MemberRecord& member) {
  SFT_ASSIGN_OR_RETURN(Statement insert,
                       db.Prepare("INSERT INTO attempt_nodes (attempt_uid, node_rank, node, "
                                  "first_rank, slots, protocol) VALUES (?, ?, ?, ?, ?, ?)"));
  insert.Bind(attempt.uid).Bind(member.status.node_rank).Bind(member.status.node);
  insert.Bind(member.first_rank).Bind(fmt::format("{}", fmt::join(member.slots, ",")));
  insert.Bind(member.protocol);
  SFT_RETURN_IF_ERROR(insert.Run());
  for (const int slot : member.slots) {
    SFT_ASSIGN_OR_RETURN(Statement allocate,
                         db.Prepare("INSERT INTO allocations (node, slot, job_id, attempt_uid, "
                                    "created_us) VALUES (?, ?, ?, ?, ?)"));
    allocate.Bind(member.status.node).Bind(slot).Bind(attempt.job_id).Bind(attempt.uid);
    SFT_RETURN_IF_ERROR(allocate.Bind(attempt.created_us).Run());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InsertAttempt(Database& db, const AttemptRecord& attempt,
                           const std::vector<MemberRecord>& members) {
  {
    SFT_ASSIGN_OR_RETURN(
        Statement insert,
        db.Prepare("INSERT INTO attempts (uid, job_id, number, epoch, state, reason, "
                   "created_us, resume_uid, resume_step) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"));
    insert.Bind(attempt.uid).Bind(attempt.job_id).Bind(attempt.number).Bind(attempt.epoch);
    insert.Bind(static_cast<int>(attempt.state)).Bind(attempt.reason).Bind(attempt.created_us);
    insert.Bind(attempt.resume_uid).Bind(attempt.resume_step);
    SFT_RETURN_IF_ERROR(insert.Run());
  }
  for (const MemberRecord& member : members) {
    SFT_RETURN_IF_ERROR(InsertMember(db, attempt, member));
  }
  return absl::OkStatus();
}

absl::StatusOr<AttemptRecord> GetAttempt(Database& db, const std::string& uid) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_ATTEMPT_COLUMNS " FROM attempts WHERE uid = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(uid).Step());
  if (!row) return NotFound(fmt::format("no attempt \"{}\"", uid));
  return ReadAttempt(get);
}

absl::StatusOr<std::optional<AttemptRecord>> AttemptOfJob(Database& db, const std::string& job_id,
                                                          int number) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT " SFT_ATTEMPT_COLUMNS
                                                 " FROM attempts WHERE job_id = ? AND number = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(job_id).Bind(number).Step());
  if (!row) return std::optional<AttemptRecord>();
  return std::optional<AttemptRecord>(ReadAttempt(get));
}

absl::StatusOr<std::vector<AttemptRecord>> AttemptsOfJob(Database& db, const std::string& job_id,
                                                         int limit) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_ATTEMPT_COLUMNS
                                  " FROM attempts WHERE job_id = ? ORDER BY number DESC LIMIT ?"));
  list.Bind(job_id).Bind(limit);
  std::vector<AttemptRecord> attempts;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return attempts;
    attempts.push_back(ReadAttempt(list));
  }
}

absl::StatusOr<std::vector<AttemptRecord>> LiveAttempts(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare("SELECT " SFT_ATTEMPT_COLUMNS
                                                  " FROM attempts WHERE state " SFT_IS_LIVE
                                                  " ORDER BY created_us, uid"));
  std::vector<AttemptRecord> attempts;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return attempts;
    attempts.push_back(ReadAttempt(list));
  }
}

absl::StatusOr<std::vector<MemberRecord>> MembersOf(Database& db, const std::string& attempt_uid) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_MEMBER_COLUMNS
                                  " FROM attempt_nodes WHERE attempt_uid = ? ORDER BY node_rank"));
  return ReadMembers(list.Bind(attempt_uid));
}

absl::StatusOr<std::vector<MemberRecord>> HeldMembers(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare("SELECT " SFT_MEMBER_COLUMNS
                                                  " FROM attempt_nodes WHERE node = ? AND "
                                                  "forgotten = 0 ORDER BY attempt_uid LIMIT 1000"));
  return ReadMembers(list.Bind(node));
}

absl::Status TakeAttemptEdge(Database& db, AttemptRecord& attempt, AttemptState to, int64_t now_us,
                             int64_t ended_us) {
  if (!IsLegal(attempt.state, to)) {
    return FailedPrecondition(fmt::format("attempt {}: {} to {} is not a legal change of state",
                                          attempt.uid, ToString(attempt.state), ToString(to)));
  }
  if (IsTerminal(to)) attempt.ended_us = ended_us == 0 ? now_us : ended_us;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement update,
        db.Prepare("UPDATE attempts SET state = ?, reason = ?, verdict = ?, ended_us = "
                   "? WHERE uid = ? AND state = ?"));
    update.Bind(static_cast<int>(to)).Bind(attempt.reason).Bind(ToJson(attempt.verdict));
    update.Bind(attempt.ended_us).Bind(attempt.uid).Bind(static_cast<int>(attempt.state));
    SFT_RETURN_IF_ERROR(update.Run());
    if (db.changes() != 1) {
      return FailedPrecondition(
          fmt::format("attempt {} is not {} any more", attempt.uid, ToString(attempt.state)));
    }
  }
  attempt.state = to;
  if (!IsTerminal(to)) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(
      Statement release,
      db.Prepare("UPDATE allocations SET freed_us = ? WHERE attempt_uid = ? AND freed_us IS NULL "
                 "AND node NOT IN (SELECT node FROM attempt_nodes WHERE attempt_uid = ? AND "
                 "lost = 1 AND forgotten = 0) RETURNING job_id, created_us"));
  return Release(db, release.Bind(now_us).Bind(attempt.uid).Bind(attempt.uid), now_us);
}

absl::Status FreeSlots(Database& db, const std::string& attempt_uid, const std::string& node,
                       int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(Statement release,
                       db.Prepare("UPDATE allocations SET freed_us = ? WHERE attempt_uid = ? AND "
                                  "node = ? AND freed_us IS NULL RETURNING job_id, created_us"));
  return Release(db, release.Bind(now_us).Bind(attempt_uid).Bind(node), now_us);
}

absl::Status RequestStop(Database& db, const AttemptRecord& attempt) {
  SFT_ASSIGN_OR_RETURN(Statement update, db.Prepare("UPDATE attempts SET stop_code = ?, "
                                                    "stop_reason = ?, stop_us = ? WHERE uid = ?"));
  update.Bind(attempt.stop_code).Bind(attempt.stop_reason).Bind(attempt.stop_us);
  return update.Bind(attempt.uid).Run();
}

absl::Status SetPace(Database& db, const std::string& uid, int64_t step, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE attempts SET paced_step = ?, paced_us = ? WHERE uid = ?"));
  return update.Bind(step).Bind(now_us).Bind(uid).Run();
}

absl::Status AskForCheckpoint(Database& db, const AttemptRecord& attempt) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE attempts SET checkpoints_asked = ?, checkpoint_request "
                                  "= ? WHERE uid = ?"));
  update.Bind(attempt.checkpoints_asked).Bind(attempt.checkpoint_request);
  return update.Bind(attempt.uid).Run();
}

absl::Status SetCollecting(Database& db, const std::string& uid, int64_t step) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE attempts SET collecting = ? WHERE uid = ?"));
  return update.Bind(step).Bind(uid).Run();
}

absl::Status SetAttemptVerdict(Database& db, const AttemptRecord& attempt) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE attempts SET verdict = ?, reason = ? WHERE uid = ?"));
  return update.Bind(ToJson(attempt.verdict)).Bind(attempt.reason).Bind(attempt.uid).Run();
}

absl::Status SetRendezvous(Database& db, const std::string& uid, const std::string& rendezvous) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE attempts SET rendezvous = ? WHERE uid = ?"));
  return update.Bind(rendezvous).Bind(uid).Run();
}

absl::Status SetProgress(Database& db, const std::string& uid, const Progress& progress) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE attempts SET progress = ? WHERE uid = ?"));
  return update.BindBlob(ProgressColumn(progress)).Bind(uid).Run();
}

absl::Status UpdateMember(Database& db, const MemberRecord& member) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE attempt_nodes SET state = ?, seen = ?, reason = ?, verdict = "
                 "?, stuck = ?, forgotten = ?, lost = ?, checkpoint_newest = ?, "
                 "checkpoint_settled = ? WHERE attempt_uid = ? AND node_rank = ?"));
  const Member& status = member.status;
  update.Bind(static_cast<int>(status.state)).Bind(status.seen).Bind(status.reason);
  update.Bind(ToJson(status.verdict)).Bind(status.stuck).Bind(member.forgotten);
  update.Bind(status.lost).Bind(status.checkpoint_newest).Bind(status.checkpoint_settled);
  return update.Bind(member.attempt_uid).Bind(status.node_rank).Run();
}

namespace {

absl::StatusOr<Holders> ReadHolders(Statement& list) {
  Holders holders;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return holders;
    holders[{list.Text(0), static_cast<int>(list.Int(1))}] = list.Text(2);
  }
}

}  // namespace

absl::StatusOr<Holders> LiveHolders(Database& db) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT node, slot, job_id FROM allocations WHERE freed_us IS NULL"));
  return ReadHolders(list);
}

absl::StatusOr<std::vector<HeldBy>> SlotsHeld(Database& db) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT a.node, a.slot, a.job_id, j.project, j.owner, a.created_us FROM "
                 "allocations a JOIN jobs j ON j.id = a.job_id WHERE a.freed_us IS NULL ORDER BY "
                 "a.node, a.slot"));
  std::vector<HeldBy> held;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return held;
    held.push_back({list.Text(0), static_cast<int>(list.Int(1)), list.Text(2), list.Text(3),
                    list.Text(4), list.Int(5)});
  }
}

absl::StatusOr<Holders> LiveHolders(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT node, slot, job_id FROM allocations WHERE freed_us IS "
                                  "NULL AND node = ?"));
  return ReadHolders(list.Bind(node));
}

absl::StatusOr<RankStream> GetRankStream(Database& db, const std::string& attempt_uid, int rank,
                                         const std::string& node) {
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare("SELECT events_offset, log_ended FROM rank_streams WHERE attempt_uid "
                 "= ? AND rank = ? AND node = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(attempt_uid).Bind(rank).Bind(node).Step());
  if (!row) return RankStream{};
  return RankStream{get.Int(0), get.Bool(1)};
}

absl::Status PutRankStream(Database& db, const std::string& attempt_uid, int rank,
                           const std::string& node, const RankStream& stream) {
  SFT_ASSIGN_OR_RETURN(
      Statement put,
      db.Prepare(
          "INSERT INTO rank_streams (attempt_uid, rank, node, events_offset, log_ended) VALUES "
          "(?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET events_offset = excluded.events_offset, "
          "log_ended = excluded.log_ended"));
  put.Bind(attempt_uid).Bind(rank).Bind(node).Bind(stream.events_offset).Bind(stream.log_ended);
  return put.Run();
}

}  // namespace sft::server::store
