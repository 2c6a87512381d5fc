#include "server/sched/what_if.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "server/sched/order.h"
#include "server/sched/profile.h"

namespace sft::server::sched {
namespace {

constexpr int64_t kMinuteUs = 60 * kSecondUs;
constexpr std::string_view kCpu = "CPU";
constexpr size_t kMaxTypes = 2, kMaxFewer = 3;
// Limits that are tried, the longest first.
constexpr int64_t kLimits[] = {24 * kHourUs, 12 * kHourUs, 8 * kHourUs,    4 * kHourUs,
                               2 * kHourUs,  kHourUs,      30 * kMinuteUs, 15 * kMinuteUs};

Change ShapeChange(std::string gpu_type, int nodes, int gpus_per_node) {
  Change change;
  change.kind = Change::Kind::kShape;
  change.gpu_type = std::move(gpu_type);
  change.nodes = nodes;
  change.gpus_per_node = gpus_per_node;
  return change;
}

// Other types of GPUs that have room for the job now, those with the most of it first.
std::vector<Change> OtherTypes(const Snapshot& snapshot, const PendingJob& job) {
  if (job.gpu_type == kCpu) return {};
  std::map<std::string_view, int> roomy;  // nodes with room, by type
  for (const NodeView& node : snapshot.nodes) {
    if (!node.usable) continue;
    std::map<std::string_view, int> free;
    for (const SlotView& slot : node.slots) free[slot.gpu_type] += slot.healthy && slot.job.empty();
    for (const auto& [type, count] : free) roomy[type] += count >= job.gpus_per_node;
  }
  std::vector<std::pair<int, std::string_view>> types;
  for (const auto& [type, nodes] : roomy) {
    if (type != kCpu && type != job.gpu_type && nodes >= job.nodes)
      types.emplace_back(-nodes, type);
  }
  std::sort(types.begin(), types.end());
  std::vector<Change> changes;
  for (size_t i = 0; i < std::min(types.size(), kMaxTypes); ++i) {
    changes.push_back(ShapeChange(std::string(types[i].second), job.nodes, job.gpus_per_node));
  }
  return changes;
}

// The same type: half of the GPUs, a quarter and so on, on fewer nodes while there are several.
std::vector<Change> FewerGpus(const PendingJob& job) {
  std::vector<Change> changes;
  int nodes = job.nodes, per_node = job.gpus_per_node;
  while (changes.size() < kMaxFewer) {
    if (nodes > 1) {
      nodes /= 2;
    } else if (per_node > 1) {
      per_node /= 2;
    } else {
      break;
    }
    changes.push_back(ShapeChange(job.gpu_type, nodes, per_node));
  }
  return changes;
}

class WhatIfSearch {
 public:
  WhatIfSearch(const Snapshot& snapshot, const Question& question)
      : snapshot_(snapshot), question_(question), job_(question.job) {
    std::erase_if(snapshot_.pending, [&](const PendingJob& each) { return each.id == job_.id; });
    to_beat_ = StartOf(question.expected);
  }

  std::vector<WhatIf> Run() {
    if (question_.released.has_value()) Release();
    if (question_.replaceable && job_.blocked.empty()) {
      for (const Change& change : OtherTypes(snapshot_, job_)) Reshape(change, to_beat_);
      if (job_.gpus_per_node % 2 == 0) {
        Reshape(ShapeChange(job_.gpu_type, job_.nodes * 2, job_.gpus_per_node / 2), to_beat_);
      }
      int64_t to_beat = to_beat_;
      for (const Change& change : FewerGpus(job_)) to_beat = Reshape(change, to_beat);
      LimitTime();
      Raise();
    }
    std::stable_sort(found_.begin(), found_.end(), [&](const WhatIf& a, const WhatIf& b) {
      return StartOf(a.outlook) < StartOf(b.outlook);
    });
    if (found_.size() > kMaxWhatIfs) found_.resize(kMaxWhatIfs);
    return std::move(found_);
  }

 private:
  // kForever: not known. A job that waits although it is expected to start now is kept by the upper
  // bounds of others, or has none itself: then its promise alone counts.
  int64_t StartOf(const Outlook& outlook) const {
    if (outlook.now) return snapshot_.now_us;
    const int64_t promised = outlook.promised_us > 0 ? outlook.promised_us : kForever;
    return outlook.start_us > snapshot_.now_us ? std::min(outlook.start_us, promised) : promised;
  }

  // The last of the queue, beside all others.
  Outlook At(const PendingJob& job) {
    snapshot_.pending.push_back(job);
    const Outlook outlook = OutlookOf(snapshot_, Decide(snapshot_), job);
    snapshot_.pending.pop_back();
    return outlook;
  }

  PendingJob Anew(PendingJob job) const {
    job.id = job_.id;
    job.submitted_us = snapshot_.now_us;
    job.promised = {};
    return job;
  }

  // Notes a change that is worth it, and gives the start that is then to beat.
  int64_t Note(const Change& change, const Outlook& outlook, int64_t to_beat) {
    const int64_t start = StartOf(outlook);
    if (start > to_beat - kMinuteUs) return to_beat;
    found_.push_back({change, outlook});
    return start;
  }

  void Release() {
    // It keeps its place: by its submit, as all of its project's jobs.
    const auto behind =
        std::find_if(snapshot_.pending.begin(), snapshot_.pending.end(),
                     [&](const PendingJob& each) { return each.submitted_us > job_.submitted_us; });
    const auto place = snapshot_.pending.insert(behind, *question_.released);
    const Outlook outlook = OutlookOf(snapshot_, Decide(snapshot_), *question_.released);
    snapshot_.pending.erase(place);
    if (outlook.now || outlook.place > 0) found_.push_back({Change(), outlook});
  }

  int64_t Reshape(const Change& change, int64_t to_beat) {
    const std::optional<PendingJob> job = question_.reshape(change);
    return job.has_value() ? Note(change, At(Anew(*job)), to_beat) : to_beat;
  }

  // The longest limit with which it fills a gap.
  void LimitTime() {
    PendingJob limited = Anew(job_);
    std::vector<int64_t> limits;
    for (const int64_t limit : kLimits) {
      const bool shorter = job_.bound_us == 0 || limit + question_.ending_us < job_.bound_us;
      if (shorter && limit * 10 >= job_.expected_us * 11) limits.push_back(limit);
    }
    // A shorter job fits wherever a longer one does.
    Outlook best;
    const auto fits = std::partition_point(limits.begin(), limits.end(), [&](int64_t limit) {
      limited.bound_us = limit + question_.ending_us;
      limited.expected_us = std::min(job_.expected_us, limit);
      const Outlook outlook = At(limited);
      if (outlook.now) best = outlook;
      return !outlook.now;
    });
    if (fits == limits.end()) return;
    Change change;
    change.kind = Change::Kind::kTimeLimit;
    change.limit_us = *fits;
    Note(change, best, to_beat_);
  }

  // The lowest class with the earliest start.
  void Raise() {
    Change best;
    best.kind = Change::Kind::kPriority;
    Outlook outlook;
    int64_t start = kForever;
    for (int priority = job_.priority + 1; priority <= question_.max_priority; ++priority) {
      PendingJob raised = Anew(job_);
      raised.priority = priority;
      const Outlook at = At(raised);
      if (StartOf(at) >= start) continue;
      best.priority = priority;
      outlook = at;
      start = StartOf(at);
    }
    Note(best, outlook, to_beat_);
  }

  Snapshot snapshot_;  // without the job
  const Question& question_;
  const PendingJob& job_;
  int64_t to_beat_ = kForever;
  std::vector<WhatIf> found_;
};

}  // namespace

Ahead AheadOf(const Snapshot& snapshot, const Decision& decision, const PendingJob& job) {
  std::map<std::string_view, const PendingJob*> pending;
  for (const PendingJob& each : snapshot.pending) pending[each.id] = &each;
  int place = 0;
  for (const Waiting& waiting : decision.waiting) {
    if (waiting.job == job.id) place = waiting.place;
  }
  Ahead ahead;
  if (place == 0) return ahead;
  for (const Waiting& waiting : decision.waiting) {
    const PendingJob& other = *pending.at(waiting.job);
    if (waiting.place == 0 || other.gpu_type != job.gpu_type) continue;
    ++ahead.line;
    if (waiting.place >= place) continue;
    ++(other.project == job.project ? ahead.own : ahead.others);
    ahead.unknown += other.expected_us == 0;
    ahead.gpu_us += static_cast<double>(other.gpus()) *
                    static_cast<double>(other.expected_us > 0 ? other.expected_us : kUnknownRunUs);
  }
  return ahead;
}

std::vector<WhatIf> FindWhatIfs(const Snapshot& snapshot, const Question& question) {
  if (question.expected.now) return {};
  return WhatIfSearch(snapshot, question).Run();
}

}  // namespace sft::server::sched
