#include "server/gangs/observation.h"

#include <algorithm>
#include <functional>
#include <map>

#include "server/core/convert.h"
#include "server/gangs/node_checks.h"
#include "server/store/attempts.h"
#include "server/store/nodes.h"
#include "server/store/progress.h"

namespace sft::server {
namespace {

// Whether the member changed.
bool Update(MemberRecord& member, const v1::AttemptStatus& status) {
  Member next = member.status;
  next.state = static_cast<MemberState>(status.state());
  next.seen = next.seen || next.state > MemberState::kMissing;
  next.reason = status.reason();
  next.stuck = status.stuck();
  next.checkpoint_newest = std::max(next.checkpoint_newest, status.checkpoint_newest());
  next.checkpoint_settled = std::max(next.checkpoint_settled, status.checkpoint_settled());
  if (status.has_verdict() && !status.verdict().code().empty()) {
    next.verdict = FromProto(status.verdict());
  }
  const Member& old = member.status;
  if (next.state == old.state && next.seen == old.seen && next.reason == old.reason &&
      next.stuck == old.stuck && next.verdict == old.verdict &&
      next.checkpoint_newest == old.checkpoint_newest &&
      next.checkpoint_settled == old.checkpoint_settled) {
    return false;
  }
  member.status = std::move(next);
  return true;
}

// Takes the ranks out of the news; the others stay as they are.
void MergeRanks(v1::Progress& news, v1::Progress& merged) {
  std::map<int, v1::RankProgress> ranks;
  for (const v1::RankProgress& rank : merged.ranks()) ranks[rank.rank()] = rank;
  for (const v1::RankProgress& rank : news.ranks()) ranks[rank.rank()] = rank;
  news.clear_ranks();
  merged.clear_ranks();
  for (const auto& [number, rank] : ranks) *merged.add_ranks() = rank;
}

// What the node says of its own ranks alone.
v1::Progress OfOwnRanks(v1::Progress progress, const MemberRecord& member) {
  const int end = member.first_rank + static_cast<int>(member.slots.size());
  auto& ranks = *progress.mutable_ranks();
  ranks.erase(std::remove_if(ranks.begin(), ranks.end(),
                             [&](const v1::RankProgress& rank) {
                               return rank.rank() < member.first_rank || rank.rank() >= end;
                             }),
              ranks.end());
  if (member.status.node_rank == 0) return progress;
  v1::Progress others;
  *others.mutable_ranks() = progress.ranks();
  return others;
}

// Progress of the gang is what rank 0's node says, but for what each says of its ranks; values it
// leaves out stay. Compared by bytes: a loss that is not a number equals nothing, and would be news
// in each report.
absl::Status TakeProgress(Database& db, AttemptRecord& attempt, v1::Progress news, bool& changed) {
  const v1::Progress known = ToProto(attempt.progress);
  v1::Progress merged = known;
  MergeRanks(news, merged);
  // A merge adds to what is repeated. A validation without answers says nothing of the last ones.
  auto& values = *merged.mutable_values();
  values.erase(std::remove_if(values.begin(), values.end(),
                              [&news](const v1::NamedValue& known) {
                                return std::ranges::any_of(news.values(),
                                                           [&known](const v1::NamedValue& value) {
                                                             return value.name() == known.name();
                                                           });
                              }),
               values.end());
  if (news.traffic_size() > 0) merged.clear_traffic();
  merged.MergeFrom(news);
  if (merged.step() > 0) merged.clear_phase();
  if (merged.SerializeAsString() == known.SerializeAsString()) return absl::OkStatus();
  changed = true;
  attempt.progress = FromProto(merged);
  return store::SetProgress(db, attempt.uid, attempt.progress);
}

// The status with a verdict that fits the attempt.
absl::StatusOr<v1::AttemptStatus> Fitting(Database& db, const MemberRecord& member,
                                          const AttemptRecord& attempt, v1::AttemptStatus status) {
  status.set_reason(BoundedText(status.reason()));
  if (!status.has_verdict()) return status;
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::MembersOf(db, attempt.uid));
  SFT_ASSIGN_OR_RETURN(const Dispatched part, DispatchedTo(member.status.node, attempt, members));
  *status.mutable_verdict() = Bounded(std::move(*status.mutable_verdict()), part);
  return status;
}

absl::Status TakeStatus(Database& db, MemberRecord& member, AttemptRecord& attempt,
                        const v1::AttemptStatus& said, bool& changed) {
  SFT_ASSIGN_OR_RETURN(const v1::AttemptStatus status, Fitting(db, member, attempt, said));
  changed = Update(member, status);
  if (changed) SFT_RETURN_IF_ERROR(store::UpdateMember(db, member));
  if (member.status.node_rank != 0) {
    bool shown = false;  // with what rank 0's node says next
    return TakeProgress(db, attempt, OfOwnRanks(status.progress(), member), shown);
  }
  if (attempt.rendezvous.empty() && !status.rendezvous().empty()) {
    attempt.rendezvous = status.rendezvous();
    changed = true;
    SFT_RETURN_IF_ERROR(store::SetRendezvous(db, attempt.uid, attempt.rendezvous));
  }
  if (!status.has_progress()) return absl::OkStatus();
  return TakeProgress(db, attempt, OfOwnRanks(status.progress(), member), changed);
}

const v1::AttemptStatus* FindStatus(const v1::Observed& observed, const AttemptRecord& attempt) {
  for (const v1::AttemptStatus& status : observed.attempts()) {
    if (status.attempt_uid() == attempt.uid && status.epoch() == attempt.epoch) return &status;
  }
  return nullptr;
}

// When the processes ended, by this server's clock; 0: the worker does not say.
int64_t EndOf(const v1::AttemptStatus& status, const ReportTime& time) {
  if (status.ended_us() <= 0 || !time.clock_offset) return 0;
  // Whatever it says, taking the offset off does not overflow; Sane puts it within what is known.
  constexpr int64_t kMost = int64_t{1} << 62;
  return std::min(status.ended_us(), kMost) - static_cast<int64_t>(*time.clock_offset * 1e6);
}

// What a report says of one attempt on the node.
absl::Status TakeOfMember(Database& db, MemberRecord& member, const v1::Observed& observed,
                          const RestartPace& pace, const ReportTime& time, ChangedJobs& changed,
                          std::vector<absl::Status>& refused) {
  const int64_t now_us = time.now_us;
  SFT_ASSIGN_OR_RETURN(AttemptRecord attempt, store::GetAttempt(db, member.attempt_uid));
  const v1::AttemptStatus* said = FindStatus(observed, attempt);
  if (IsTerminal(attempt.state)) {
    // FORGET was done once the node has nothing to say of it.
    if (said != nullptr && said->state() != v1::AttemptStatus::MISSING) return absl::OkStatus();
    member.forgotten = true;
    SFT_RETURN_IF_ERROR(store::UpdateMember(db, member));
    return member.status.lost ? store::FreeSlots(db, attempt.uid, member.status.node, now_us)
                              : absl::OkStatus();
  }
  // What a node that was given up says of the attempt is too late.
  if (said == nullptr || member.status.lost) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(CheckStatus(*said));
  v1::AttemptStatus status = *said;
  // Figures: where they cannot be true, the rest still counts, or the attempt could never end.
  if (absl::Status figures = CheckProgress(status.progress()); !figures.ok()) {
    refused.push_back(Annotate(figures, "attempt " + attempt.uid));
    status.clear_progress();
  }
  bool news = false;
  SFT_RETURN_IF_ERROR(TakeStatus(db, member, attempt, status, news));
  if (!news) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(AdvanceGang(db, attempt.uid, pace, now_us, changed, EndOf(status, time)));
  changed.insert(attempt.job_id);
  return absl::OkStatus();
}

// What cannot be taken of one attempt is undone, and said; what the store cannot do now ends the
// report, which is sent again.
absl::Status TakeAlone(Database& db, const std::string& attempt_uid,
                       std::vector<absl::Status>& refused,
                       const std::function<absl::Status()>& take) {
  SFT_RETURN_IF_ERROR(db.Run("SAVEPOINT report"));
  const absl::Status taken = take();
  const bool refuse = absl::IsFailedPrecondition(taken) || absl::IsInvalidArgument(taken) ||
                      absl::IsInternal(taken) || absl::IsNotFound(taken) ||
                      absl::IsAlreadyExists(taken);
  if (!taken.ok() && !refuse) return taken;
  if (refuse) {
    SFT_RETURN_IF_ERROR(db.Run("ROLLBACK TO report"));
    refused.push_back(Annotate(taken, "attempt " + attempt_uid));
  }
  return db.Run("RELEASE report");
}

}  // namespace

absl::Status TakeObservation(Database& db, const std::string& node, const v1::Observed& observed,
                             const RestartPace& pace, const ReportTime& time, ChangedJobs& changed,
                             std::vector<absl::Status>& refused) {
  SFT_ASSIGN_OR_RETURN(std::vector<MemberRecord> members, store::HeldMembers(db, node));
  for (MemberRecord& member : members) {
    SFT_RETURN_IF_ERROR(TakeAlone(db, member.attempt_uid, refused, [&] {
      return TakeOfMember(db, member, observed, pace, time, changed, refused);
    }));
  }
  return absl::OkStatus();
}

}  // namespace sft::server
