#include "server/sched/wait_history.h"

#include <algorithm>
#include <limits>

namespace sft::server::sched {
namespace {

using Kind = Cause::Kind;

constexpr size_t kMostCauses = 512;
// Jobs of one decision that are said to have gone ahead of others: where projects are much alike,
// many do all the time.
constexpr size_t kMostTurns = 32;
// A job that was submitted so long before the last decision at least had been in line before.
constexpr int64_t kNewUs = 10'000'000;

// A time that moves with the clock, as the starts behind a run of unknown length do.
bool GoesAlong(int64_t before_us, int64_t after_us, int64_t elapsed_us) {
  if (before_us == 0 || after_us == 0 || elapsed_us <= 0) return false;
  const int64_t moved = after_us - before_us;
  return moved > 0 && std::abs(moved - elapsed_us) <= std::max<int64_t>(elapsed_us / 10, 100'000);
}

// A part of the place as of a time; one at least.
bool HasOtherPlace(int before, int after) {
  const int least = std::max(1, static_cast<int>(kLeastMovePart * before));
  return std::abs(after - before) >= least;
}

bool IsKnown(int64_t before_us, int64_t after_us) { return before_us > 0 && after_us > 0; }

}  // namespace

void WaitHistory::Note(Cause cause) {
  cause.round = round_;
  causes_.push_back(std::move(cause));
  if (causes_.size() > kMostCauses) causes_.pop_front();
}

void WaitHistory::NoteLine(const Snapshot& snapshot, const Decision& decision, int64_t before_us) {
  std::unordered_map<std::string_view, const PendingJob*> pending;
  for (const PendingJob& job : snapshot.pending) pending[job.id] = &job;
  for (auto& [id, job] : jobs_) job.seen = false;
  started_.clear();
  const auto note = [&](Kind kind, const std::string& id, const Job& job, int place) {
    if (!first_) {
      Note({.kind = kind, .type = job.type, .job = id, .project = job.project, .place = place});
    }
  };
  for (const Placement& placement : decision.placements) {
    const auto known = jobs_.find(placement.job);
    if (known != jobs_.end()) {
      known->second.seen = true;
      if (known->second.last.place > 0) {
        started_[known->second.type].push_back(known->second.last.place);
      }
    } else if (const auto found = pending.find(placement.job); found != pending.end()) {
      note(Kind::kStartedAtOnce, placement.job, {found->second->gpu_type, found->second->project},
           0);
    }
  }
  for (auto& [type, places] : started_) std::ranges::sort(places);
  std::vector<const Waiting*> entered;
  std::map<std::string_view, int> last_known;  // the last place of those who were there, by type
  for (const Waiting& waiting : decision.waiting) {
    const PendingJob& view = *pending.at(waiting.job);
    const auto [known, is_new] = jobs_.try_emplace(waiting.job);
    Job& job = known->second;
    job.seen = true;
    if (is_new) {
      job.type = view.gpu_type;
      job.project = view.project;
      job.told = {waiting.place, waiting.start_us,
                  view.promised.empty() ? waiting.promised.start_us : view.promised.start_us};
      job.round = round_;
      if (waiting.place > 0) entered.push_back(&waiting);
      continue;
    }
    if (waiting.place > 0) last_known[job.type] = waiting.place;
    if (job.last.place == 0 && waiting.place > 0) {
      note(Kind::kJoined, waiting.job, job, waiting.place);
    } else if (job.last.place > 0 && waiting.place == 0) {
      note(Kind::kBlocked, waiting.job, job, job.last.place);
    }
  }
  for (const Waiting* const waiting : entered) {
    const Job& job = jobs_.at(waiting->job);
    if (waiting->place > last_known[job.type]) continue;  // behind all, as most are
    const bool submitted = pending.at(waiting->job)->submitted_us >= before_us - kNewUs;
    note(submitted ? Kind::kSubmitted : Kind::kReturned, waiting->job, job, waiting->place);
  }
  std::erase_if(jobs_, [&](const auto& each) {
    if (each.second.seen) return false;
    if (each.second.last.place > 0) {
      note(Kind::kGone, each.first, each.second, each.second.last.place);
    }
    return true;
  });
  for (const Placement& placement : decision.placements) jobs_.erase(placement.job);
}

void WaitHistory::NoteTurns(const Decision& decision) {
  // The first place that one of those further back had before.
  std::map<std::string_view, int> first_behind;
  std::vector<const Waiting*> ahead;  // the last in line first
  for (auto waiting = decision.waiting.rbegin(); waiting != decision.waiting.rend(); ++waiting) {
    const Job& job = jobs_.at(waiting->job);
    if (waiting->place == 0 || job.last.place == 0) continue;
    int& behind = first_behind.try_emplace(job.type, std::numeric_limits<int>::max()).first->second;
    if (job.last.place > behind) ahead.push_back(&*waiting);
    behind = std::min(behind, job.last.place);
  }
  const size_t told = std::min(ahead.size(), kMostTurns);
  for (size_t i = 1; i <= told; ++i) {
    const Waiting& waiting = *ahead[ahead.size() - i];
    const Job& job = jobs_.at(waiting.job);
    Note({.kind = Kind::kTurn,
          .type = job.type,
          .job = waiting.job,
          .project = job.project,
          .place = waiting.place});
  }
}

void WaitHistory::NotePreemptions(const Snapshot& snapshot, const Decision& decision) {
  for (const Preemption& preemption : decision.preemptions) {
    const auto job = std::ranges::find(snapshot.running, preemption.job, &RunningJob::id);
    if (job == snapshot.running.end()) continue;
    Note(
        {.kind = Kind::kPreempted, .type = job->gpu_type, .job = job->id, .project = job->project});
  }
}

std::vector<const Cause*> WaitHistory::CausesOf(const std::string& id, const Job& job,
                                                const WaitPlace& now, bool later,
                                                bool sooner) const {
  std::vector<const Cause*> causes;
  for (const Cause& cause : causes_) {
    const bool fits = (later && Delays(cause.kind)) || (sooner && Hastens(cause.kind));
    const bool of_line = cause.kind <= Kind::kBlocked;
    if (!fits || cause.round <= job.round || cause.job == id) continue;
    if (!cause.type.empty() && cause.type != job.type) continue;
    if (of_line && cause.place >= std::max(now.place, job.told.place)) continue;
    if (cause.kind == Kind::kLimits && cause.project != job.project) continue;
    if (cause.kind == Kind::kShares && cause.project == job.project) continue;
    causes.push_back(&cause);
  }
  return causes;
}

void WaitHistory::MoveAlong(Job& job, const WaitPlace& now, int64_t elapsed_us) const {
  if (job.told.place > 0) {
    const auto started = started_.find(job.type);
    if (started != started_.end()) {
      const auto& places = started->second;
      const auto ahead = std::ranges::lower_bound(places, job.last.place) - places.begin();
      job.told.place = std::max(1, job.told.place - static_cast<int>(ahead));
    }
  }
  // Without news of those that run, a time that goes with the clock says nothing.
  const bool start = GoesAlong(job.last.start_us, now.start_us, elapsed_us);
  const bool promise = GoesAlong(job.last.promised_us, now.promised_us, elapsed_us);
  if ((!start && !promise) || !CausesOf("", job, now, /*later=*/true, /*sooner=*/false).empty()) {
    return;
  }
  if (start && job.told.start_us > 0) job.told.start_us += now.start_us - job.last.start_us;
  if (promise && job.told.promised_us > 0) {
    job.told.promised_us += now.promised_us - job.last.promised_us;
  }
}

WaitChange WaitHistory::Compare(const std::string& id, Job& job, const Waiting& waiting) const {
  const WaitPlace now{waiting.place, waiting.start_us, waiting.promised.start_us};
  const WaitPlace& told = job.told;
  WaitChange change{.job = id, .time_us = now_us_, .before = told, .after = now, .cause = ""};
  if ((now.place == 0) != (told.place == 0)) {
    change.cause = now.place == 0 ? waiting.reason : "it is in line again";
    return change;
  }
  if (now.place == 0) return change;
  const bool start = IsKnown(told.start_us, now.start_us);
  const bool promise = IsKnown(told.promised_us, now.promised_us);
  const bool lost = told.promised_us > 0 && now.promised_us == 0;
  const bool place_moved = HasOtherPlace(told.place, now.place);
  const bool start_moved = start && HasMoved(told.start_us, now.start_us, now_us_);
  const bool promise_moved = promise && HasMoved(told.promised_us, now.promised_us, now_us_);
  if (!place_moved && !start_moved && !promise_moved && !lost) {
    // What was not known before is no change of it.
    if (told.start_us == 0 || now.start_us == 0) job.told.start_us = now.start_us;
    if (told.promised_us == 0) job.told.promised_us = now.promised_us;
    return change;
  }
  const bool later = (place_moved && now.place > told.place) || lost ||
                     (start_moved && now.start_us > told.start_us) ||
                     (promise_moved && now.promised_us > told.promised_us);
  const bool sooner = (place_moved && now.place < told.place) ||
                      (start_moved && now.start_us < told.start_us) ||
                      (promise_moved && now.promised_us < told.promised_us);
  std::vector<const Cause*> causes = CausesOf(id, job, now, later, sooner);
  // What delays one may bring another forward, as the one behind it then fits before.
  if (causes.empty()) causes = CausesOf(id, job, now, /*later=*/true, /*sooner=*/true);
  if (causes.empty() && !later) {
    // Those ahead were quicker than expected: where jobs are short, that is so all the time.
    job.told = now;
    return change;
  }
  change.cause = CauseText(causes, job.project);
  return change;
}

std::vector<WaitChange> WaitHistory::Look(const Snapshot& snapshot, const Decision& decision) {
  std::vector<WaitChange> changes;
  if (decision.waiting.empty()) {
    if (!first_) *this = WaitHistory();
    return changes;
  }
  const int64_t before_us = first_ ? snapshot.now_us : now_us_;
  now_us_ = snapshot.now_us;
  ++round_;
  for (Cause& cause : fleet_.Look(snapshot)) Note(std::move(cause));
  NoteLine(snapshot, decision, before_us);
  NoteTurns(decision);
  NotePreemptions(snapshot, decision);
  for (const Waiting& waiting : decision.waiting) {
    Job& job = jobs_.at(waiting.job);
    const WaitPlace now{waiting.place, waiting.start_us, waiting.promised.start_us};
    if (job.round < round_) MoveAlong(job, now, now_us_ - before_us);
    const bool told_long_ago = job.stored_us == 0 || now_us_ - job.stored_us >= kApartUs;
    if (told_long_ago && changes.size() < kMostAtOnce) {
      WaitChange change = Compare(waiting.job, job, waiting);
      if (!change.cause.empty()) changes.push_back(std::move(change));
    }
    job.last = now;
  }
  first_ = false;
  return changes;
}

void WaitHistory::Stored(const std::vector<WaitChange>& changes) {
  for (const WaitChange& change : changes) {
    const auto known = jobs_.find(change.job);
    if (known == jobs_.end()) continue;
    known->second.told = change.after;
    known->second.round = round_;
    known->second.stored_us = change.time_us;
  }
}

}  // namespace sft::server::sched
