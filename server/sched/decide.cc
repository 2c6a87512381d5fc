#include "server/sched/decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string_view>

#include "server/sched/explain.h"
#include "server/sched/fleet.h"
#include "server/sched/forecast.h"
#include "server/sched/order.h"
#include "server/sched/preempt.h"
#include "server/sched/quota.h"

namespace sft::server::sched {
namespace {

class Pass {
 public:
  Pass(const Snapshot& snapshot, const Rules& rules)
      : snapshot_(snapshot),
        rules_(rules),
        now_(snapshot.now_us),
        fleet_(snapshot),
        quota_(snapshot),
        usage_(snapshot),
        jobs_(snapshot.pending.size()) {}

  Decision Run() {
    HoldRunning();
    line_ = MakeLine(snapshot_);
    for (size_t begin = 0; begin < line_.size();) {
      size_t end = begin;
      while (end < line_.size() && line_[end].level == line_[begin].level) ++end;
      KeepPromises(begin, end);
      for (size_t i = begin; i < end; ++i) Consider(line_[i].index);
      begin = end;
    }
    Backfill();
    ExplainWaiting();
    return std::move(decision_);
  }

 private:
  // The decision's state about a pending job.
  struct State {
    const Shape* shape = nullptr;
    Fleet::Fit booked;  // taken in fleet_; start kForever: none
    bool placed = false;
    bool limited = false;
    std::string reason;  // set for a job outside the queue
  };

  static bool IsAmong(const std::vector<int>& bins, int bin) {
    return std::find(bins.begin(), bins.end(), bin) != bins.end();
  }

  // True when a place cannot be used before one of its nodes is back.
  static bool AwaitsNodes(const Shape& shape, const Fleet::Fit& fit) {
    return std::any_of(fit.bins.begin(), fit.bins.end(),
                       [&](int bin) { return IsAmong(shape.returning, bin); });
  }

  static int64_t DurationOf(const PendingJob& job) {
    return job.bound_us > 0 ? job.bound_us : kForever;
  }

  void HoldRunning() {
    std::map<std::string_view, const RunningJob*> by_id;
    for (const RunningJob& job : snapshot_.running) by_id[job.id] = &job;
    // Jobs that hold slots of each bin, with their healthy slots there.
    for (const NodeView& node : snapshot_.nodes) {
      std::map<std::pair<std::string_view, std::string_view>, int> held;
      for (const SlotView& slot : node.slots) {
        if (!slot.job.empty() && slot.healthy) ++held[{slot.job, slot.gpu_type}];
      }
      for (const auto& [key, count] : held) {
        const int bin = fleet_.BinOf(node.name, fleet_.TypeOf(key.second));
        const auto found = by_id.find(key.first);
        const RunningJob* job = found == by_id.end() ? nullptr : found->second;
        fleet_.Hold(bin, count, job != nullptr && job->exclusive, EndOf(job));
        if (job != nullptr) on_bin_[bin].push_back(job);
      }
    }
  }

  // The time until which a running job counts as holding its slots.
  int64_t EndOf(const RunningJob* job) const {
    if (job == nullptr) return now_ + kUnknownRunUs;
    if (job->bound_end_us == 0) return now_ + kUnknownRunUs;
    return job->bound_end_us > now_ ? job->bound_end_us : now_ + kOverdueUs;
  }

  // Reserves the promises of a level's jobs before any of its jobs is considered.
  void KeepPromises(size_t begin, size_t end) {
    std::vector<size_t> promised;
    for (size_t i = begin; i < end; ++i) {
      const PendingJob& job = snapshot_.pending[line_[i].index];
      jobs_[line_[i].index].shape = &fleet_.ShapeOf(job);
      if (!job.promised.empty()) promised.push_back(line_[i].index);
    }
    std::stable_sort(promised.begin(), promised.end(), [&](size_t a, size_t b) {
      return snapshot_.pending[a].promised.start_us < snapshot_.pending[b].promised.start_us;
    });
    for (const size_t index : promised) {
      const PendingJob& job = snapshot_.pending[index];
      const Shape& shape = *jobs_[index].shape;
      Fleet::Fit fit{std::max(job.promised.start_us, now_), PromisedBins(job, shape)};
      const bool whole = static_cast<int>(fit.bins.size()) == shape.nodes;
      if (!whole || !fleet_.FitsAt(shape, fit.bins, fit.start, DurationOf(job))) continue;
      Book(index, std::move(fit));
    }
  }

  // Those of a promise that can still hold the job. While some of its nodes are away, most of the
  // others may run another sft-rank: the promised ones need only run one among themselves.
  std::vector<int> PromisedBins(const PendingJob& job, const Shape& shape) const {
    std::vector<int> bins;
    const std::string* build = nullptr;
    for (const std::string& node : job.promised.nodes) {
      const int bin = fleet_.BinOf(node, shape.type);
      if (IsAmong(shape.returning, bin)) {
        bins.push_back(bin);
      } else if (IsAmong(shape.any_build, bin)) {
        const std::string& own = fleet_.bin(bin).node->rank_build;
        if (build == nullptr) build = &own;
        if (shape.nodes == 1 || own == *build) bins.push_back(bin);
      }
    }
    return bins;
  }

  void Book(size_t index, Fleet::Fit fit) {
    State& state = jobs_[index];
    fleet_.Take(*state.shape, fit.bins, fit.start, DurationOf(snapshot_.pending[index]));
    state.booked = std::move(fit);
    ++promised_[state.shape->type];
  }

  void Unbook(size_t index) {
    State& state = jobs_[index];
    if (state.booked.bins.empty()) return;
    fleet_.Give(*state.shape, state.booked.bins, state.booked.start,
                DurationOf(snapshot_.pending[index]));
    state.booked = {};
    --promised_[state.shape->type];
  }

  bool IsLimited(size_t index) {
    State& state = jobs_[index];
    state.reason = quota_.Refusal(snapshot_.pending[index]);
    return state.limited = !state.reason.empty();
  }

  void Consider(size_t index) {
    const PendingJob& job = snapshot_.pending[index];
    State& state = jobs_[index];
    if (IsLimited(index)) return Unbook(index);
    const bool awaits_nodes = AwaitsNodes(*state.shape, state.booked);
    if (!state.shape->possible()) {
      if (awaits_nodes) return;
      Unbook(index);
      state.reason = WhyNoRoom(snapshot_, job, fleet_, *state.shape);
      return;
    }
    const Fleet::Fit standing = state.booked;
    const int type = state.shape->type;
    const bool promises = !standing.bins.empty() || promised_[type] < rules_.max_promised;
    if (!promises && reserved_[type] >= rules_.max_reserved) return candidates_.push_back(index);
    Unbook(index);
    const int64_t duration = DurationOf(job);
    Fleet::Fit fit = fleet_.Earliest(*state.shape, duration, job.avoid_node);
    if (awaits_nodes) {
      if (fit.start > now_ && fit.start >= standing.start) return Book(index, standing);
    } else if (!standing.bins.empty() && fit.start >= standing.start) {
      fit = standing;  // the new place is no earlier
    }
    if (fit.bins.empty()) return candidates_.push_back(index);
    if (fit.start <= now_) return Place(index, fit);
    if (!promises) {
      fleet_.Take(*state.shape, fit.bins, fit.start, duration);
      ++reserved_[type];
      return;
    }
    if (MayPreempt(job, fit) && Preempt(index)) return;
    Book(index, std::move(fit));
  }

  bool MayPreempt(const PendingJob& job, const Fleet::Fit& fit) const {
    return job.priority > kLow && fit.start - now_ > kPatienceUs &&
           preemptors_ < rules_.max_preemptors;
  }

  bool Preempt(size_t index) {
    const PendingJob& job = snapshot_.pending[index];
    const Shape& shape = *jobs_[index].shape;
    const bool any = std::any_of(
        snapshot_.running.begin(), snapshot_.running.end(), [&](const RunningJob& running) {
          return running.priority < job.priority && running.preemptible && !running.stopping;
        });
    if (!any) return false;
    ++preemptors_;  // counted even if nothing is found, because searching takes time
    const Room room = MakeRoom(job, shape, fleet_, on_bin_, now_);
    if (room.victims.empty()) return false;
    // The victims end soon instead of at their bound. Promises made before this job must still fit.
    const auto shorten = [&](int sign) {
      for (const RunningJob* victim : room.victims) {
        for (const Part& part : victim->parts) {
          const int bin = fleet_.BinOf(part.node, fleet_.TypeOf(victim->gpu_type));
          if (bin >= 0) {
            fleet_.Shorten(bin, sign * static_cast<int>(part.slots.size()), victim->exclusive,
                           now_ + kStopUs, EndOf(victim));
          }
        }
      }
    };
    shorten(1);
    if (!fleet_.FitsAt(shape, room.bins, now_ + kStopUs, DurationOf(job))) {
      shorten(-1);
      return false;
    }
    for (const RunningJob* victim : room.victims) {
      decision_.preemptions.push_back({victim->id, job.id});
    }
    for (auto& [bin, jobs] : on_bin_) {
      std::erase_if(jobs, [&](const RunningJob* each) {
        return std::find(room.victims.begin(), room.victims.end(), each) != room.victims.end();
      });
    }
    Book(index, {now_ + kStopUs, room.bins});
    return true;
  }

  void Place(size_t index, const Fleet::Fit& fit) {
    const PendingJob& job = snapshot_.pending[index];
    State& state = jobs_[index];
    fleet_.Take(*state.shape, fit.bins, now_, DurationOf(job));
    Placement placement{job.id, {}};
    for (const int bin : fit.bins) {
      placement.parts.push_back(
          {fleet_.bin(bin).node->name, fleet_.Claim(*state.shape, bin, job.id)});
    }
    decision_.placements.push_back(std::move(placement));
    quota_.Add(job);
    usage_.Charge(job);
    state.placed = true;
  }

  // Backfill: starts jobs without a promise where they delay none. The shortest job of the project
  // with the least usage goes first; otherwise a project with more short jobs would take what the
  // fair share gives to another.
  void Backfill() {
    std::stable_sort(candidates_.begin(), candidates_.end(), [&](size_t a, size_t b) {
      return DurationOf(snapshot_.pending[a]) < DurationOf(snapshot_.pending[b]);
    });
    std::map<std::string_view, std::deque<size_t>> by_project;
    for (const size_t index : candidates_) {
      by_project[snapshot_.pending[index].project].push_back(index);
    }
    while (!by_project.empty()) {
      const auto next = std::min_element(
          by_project.begin(), by_project.end(),
          [&](const auto& a, const auto& b) { return usage_.Of(a.first) < usage_.Of(b.first); });
      while (!next->second.empty()) {
        const size_t index = next->second.front();
        next->second.pop_front();
        if (Fill(index)) break;
      }
      if (next->second.empty()) by_project.erase(next);
    }
  }

  bool Fill(size_t index) {
    const PendingJob& job = snapshot_.pending[index];
    State& state = jobs_[index];
    const int64_t duration = DurationOf(job);
    const auto shortest = unfit_.find(state.shape);
    if (shortest != unfit_.end() && duration >= shortest->second) return false;
    if (IsLimited(index)) return false;
    const Fleet::Fit fit = fleet_.Now(*state.shape, duration, job.avoid_node);
    if (fit.bins.empty()) {
      unfit_[state.shape] = duration;
      return false;
    }
    Place(index, fit);
    return true;
  }

  // Sets each waiting job's reason and expected start.
  void ExplainWaiting() {
    std::vector<size_t> order;
    for (const Standing& standing : line_) {
      if (jobs_[standing.index].placed || jobs_[standing.index].reason.empty()) {
        order.push_back(standing.index);
      }
    }
    std::vector<Forecast::Entry> entries;
    std::vector<Forecast::Expected> expected(jobs_.size());
    for (const size_t index : order) {
      entries.push_back(
          {&snapshot_.pending[index], jobs_[index].placed, jobs_[index].booked.start});
    }
    const Forecast forecast(snapshot_, decision_.placements, decision_.preemptions, entries,
                            rules_.max_foretold);
    for (size_t i = 0; i < order.size(); ++i) expected[order[i]] = forecast.of(i);
    std::map<int, int> places;  // by slot type
    std::vector<bool> told(snapshot_.pending.size());
    for (const Standing& standing : line_) {
      State& state = jobs_[standing.index];
      told[standing.index] = true;
      if (state.placed) continue;
      const PendingJob& job = snapshot_.pending[standing.index];
      Waiting& waiting = decision_.waiting.emplace_back();
      waiting.job = job.id;
      waiting.reason = std::move(state.reason);
      waiting.lacks_slots = !state.limited;
      if (!waiting.reason.empty()) continue;
      waiting.place = ++places[state.shape->type];
      waiting.reason =
          waiting.place == 1 ? WhyNoRoom(snapshot_, job, fleet_, *state.shape) : InLine(job);
      waiting.start_us = expected[standing.index].start_us;
      waiting.end_us = expected[standing.index].end_us;
      for (const int bin : state.booked.bins) {
        waiting.promised.nodes.push_back(fleet_.bin(bin).node->name);
      }
      if (!state.booked.bins.empty()) waiting.promised.start_us = state.booked.start;
    }
    for (size_t i = 0; i < told.size(); ++i) {
      if (told[i]) continue;
      Waiting& waiting = decision_.waiting.emplace_back();
      waiting.job = snapshot_.pending[i].id;
      waiting.reason = snapshot_.pending[i].blocked;
    }
  }

  const Snapshot& snapshot_;
  const Rules& rules_;
  const int64_t now_;
  Fleet fleet_;
  Quota quota_;
  Usage usage_;
  std::vector<State> jobs_;  // by index in Snapshot::pending
  std::vector<Standing> line_;
  std::vector<size_t> candidates_;
  // What did not fit will not fit for longer either: nothing is given back during backfill.
  std::map<const Shape*, int64_t> unfit_;
  std::map<int, int> promised_, reserved_;  // by slot type
  JobsByBin on_bin_;
  int preemptors_ = 0;
  Decision decision_;
};

}  // namespace

Decision Decide(const Snapshot& snapshot, const Rules& rules) {
  return Pass(snapshot, rules).Run();
}

Outlook OutlookOf(const Snapshot& snapshot, const Decision& decision, const PendingJob& job) {
  for (const Placement& placement : decision.placements) {
    if (placement.job != job.id) continue;
    std::vector<std::string> nodes;
    for (const Part& part : placement.parts) nodes.push_back(part.node);
    return {.text = fmt::format("could start now on {}", Some(nodes)),
            .now = true,
            .start_us = snapshot.now_us,
            .end_us = job.expected_us > 0 ? snapshot.now_us + job.expected_us : 0};
  }
  for (const Waiting& waiting : decision.waiting) {
    if (waiting.job != job.id) continue;
    return {.text = waiting.reason,
            .place = waiting.place,
            .start_us = waiting.start_us,
            .end_us = waiting.end_us,
            .promised_us = waiting.promised.start_us};
  }
  return {};
}

Outlook Preview(const Snapshot& snapshot, const PendingJob& job) {
  Snapshot with_job = snapshot;
  with_job.pending.push_back(job);
  return OutlookOf(with_job, Decide(with_job), job);
}

}  // namespace sft::server::sched
