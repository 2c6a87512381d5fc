#include "tests/unit/server/sched/month.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <queue>
#include <random>
#include <set>

#include "server/sched/order.h"
#include "server/sched/preempt.h"

namespace sft::server::sched {
namespace {

constexpr int kGpus = 8;  // per node
constexpr double kHour = 3600, kDay = 86400;
// Seconds to stop with a checkpoint, and seconds of work that the job repeats afterwards.
constexpr double kStopSeconds = 40, kResumeSeconds = 120;
constexpr int64_t kEpochUs = int64_t{1'700'000'000} * 1'000'000;

int64_t Micros(double seconds) { return kEpochUs + static_cast<int64_t>(seconds * 1e6); }
double Seconds(int64_t micros) { return static_cast<double>(micros - kEpochUs) / 1e6; }

// Random numbers that are the same on every machine, unlike the library's distributions.
class Chance {
 public:
  explicit Chance(uint64_t seed) : words_(seed) {}
  double Part() { return static_cast<double>(words_() >> 11) / 9007199254740992.0; }
  double Between(double least, double most) { return least + (most - least) * Part(); }
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Part()));
    return radius * std::cos(2 * std::numbers::pi * Part());
  }

 private:
  std::mt19937_64 words_;
};

// GPUs of a job: most ask for one, a few for many nodes, as in traces of shared clusters.
std::pair<int, int> Size(Chance& chance) {
  struct Kind {
    double part;
    int nodes, gpus;
  };
  constexpr Kind kKinds[] = {{0.52, 1, 1}, {0.12, 1, 2}, {0.10, 1, 4},  {0.16, 1, 8},
                             {0.05, 2, 8}, {0.03, 4, 8}, {0.015, 8, 8}, {0.005, 16, 8}};
  double at = chance.Part();
  for (const Kind& kind : kKinds) {
    if (at < kind.part) return {kind.nodes, kind.gpus};
    at -= kind.part;
  }
  return {1, 1};
}

}  // namespace

Trace MakeTrace(const TraceOptions& options) {
  Chance chance(options.seed);
  Trace trace{options, {}};
  double work = 0;
  for (int i = 0; i < options.jobs; ++i) {
    TraceJob job;
    // More jobs by day than by night.
    do {
      job.submitted = chance.Between(0, options.length_days * kDay);
    } while (chance.Part() > 0.6 + 0.4 * std::sin(2 * std::numbers::pi * job.submitted / kDay));
    std::tie(job.nodes, job.gpus_per_node) = Size(chance);
    job.nodes = std::min(job.nodes, options.most_nodes);
    job.planned = std::clamp(std::exp(1.6 * chance.Normal()), 0.01, options.longest);
    work += job.planned * job.gpus();
    const double kind = chance.Part();
    if (options.classes && kind < 0.10) job.priority = kLow;
    if (options.classes && kind > 0.95) job.priority = kHigh;
    trace.jobs.push_back(job);
  }
  std::sort(trace.jobs.begin(), trace.jobs.end(),
            [](const TraceJob& a, const TraceJob& b) { return a.submitted < b.submitted; });
  const double seconds = options.load * options.nodes * kGpus * options.length_days * kDay / work;
  double of_a = 0, of_b = 0;
  for (TraceJob& job : trace.jobs) {
    job.planned *= seconds;
    job.run = job.planned * chance.Between(1 - options.error, 1 + options.error);
    job.bound = job.planned * options.bound;
    const bool a = of_a * (1 - options.part_of_a) <= of_b * options.part_of_a;
    job.project = a ? "a" : "b";
    (a ? of_a : of_b) += job.run * job.gpus();
  }
  return trace;
}

namespace {

void Sum(const Trace& trace, Outcome& outcome) {
  double sum = 0;
  for (const Fate& fate : outcome.fates) {
    sum += fate.waited;
    outcome.longest_wait = std::max(outcome.longest_wait, fate.waited);
  }
  outcome.mean_wait = sum / static_cast<double>(trace.jobs.size());
}

class Simulation {
 public:
  Simulation(const Trace& trace, const Rules& rules) : trace_(trace), rules_(rules) {
    for (int n = 0; n < trace.options.nodes; ++n) {
      NodeView& node = snapshot_.nodes.emplace_back();
      node.name = fmt::format("node-{:04}", n);
      for (int slot = 0; slot < kGpus; ++slot) node.slots.push_back({slot, "H100", true, ""});
      by_name_[node.name] = static_cast<size_t>(n);
    }
    for (const char* name : {"a", "b"}) snapshot_.projects.push_back({name, 1, 0, 0, 0});
    outcome_.fates.resize(trace.jobs.size());
    outcome_.last_submit = trace.jobs.back().submitted;
    left_.resize(trace.jobs.size());
    for (size_t i = 0; i < left_.size(); ++i) left_[i] = trace.jobs[i].run;
  }

  Outcome Run() {
    size_t next = 0;
    while (next < trace_.jobs.size() || !live_.empty() || !snapshot_.pending.empty()) {
      double now = next < trace_.jobs.size() ? trace_.jobs[next].submitted : 1e18;
      if (!ends_.empty()) now = std::min(now, ends_.top().first);
      if (now >= 1e18) break;  // some job waits for ever
      Account(now);
      while (next < trace_.jobs.size() && trace_.jobs[next].submitted <= now) Submit(next++);
      while (!ends_.empty() && ends_.top().first <= now) {
        const auto [time, index] = ends_.top();
        ends_.pop();
        const auto found = live_.find(index);
        if (found != live_.end() && found->second.end == time) End(index, now);
      }
      Decide(now);
    }
    Sum(trace_, outcome_);
    return std::move(outcome_);
  }

 private:
  struct Live {
    std::vector<Part> parts;
    double start = 0, end = 0;
    bool stopping = false;
  };

  static std::string Name(size_t index) { return fmt::format("job-{:05}", index); }
  static size_t Index(const std::string& name) { return std::stoul(name.substr(4)); }

  // Adds the GPU hours since the last event to the totals and the projects' decayed usage.
  void Account(double now) {
    const double to = std::min(now, outcome_.last_submit);
    std::map<std::string, double> in_use;
    for (const RunningJob& job : snapshot_.running) in_use[job.project] += job.gpus();
    for (ProjectView& project : snapshot_.projects) {
      project.usage_us = Decayed(project.usage_us, Micros(at_), Micros(now)) +
                         in_use[project.name] * (now - at_) * 1e6;
    }
    if (to > at_) {
      for (const auto& [project, gpus] : in_use) {
        outcome_.gpu_hours += gpus * (to - at_) / kHour;
        outcome_.gpu_hours_of[project] += gpus * (to - at_) / kHour;
      }
    }
    at_ = now;
  }

  void Submit(size_t index) {
    Queue(index, trace_.jobs[index].submitted, trace_.jobs[index].planned,
          trace_.jobs[index].bound);
  }

  void Queue(size_t index, double since, double expected, double bound) {
    const TraceJob& job = trace_.jobs[index];
    PendingJob pending;
    pending.id = Name(index);
    pending.gpu_type = "H100";
    pending.gpus_per_node = job.gpus_per_node;
    pending.nodes = job.nodes;
    pending.project = job.project;
    pending.priority = job.priority;
    pending.submitted_us = Micros(job.submitted);
    pending.expected_us = static_cast<int64_t>(expected * 1e6);
    pending.bound_us = static_cast<int64_t>(bound * 1e6);
    const auto at = FindPending(pending.id);
    snapshot_.pending.insert(at, std::move(pending));
    waits_since_[index] = since;
  }

  // The position of the job among those waiting, which are ordered by id.
  std::vector<PendingJob>::iterator FindPending(const std::string& id) {
    return std::lower_bound(
        snapshot_.pending.begin(), snapshot_.pending.end(), id,
        [](const PendingJob& job, const std::string& id) { return job.id < id; });
  }

  void SetSlots(const std::vector<Part>& parts, const std::string& job) {
    for (const Part& part : parts) {
      NodeView& node = snapshot_.nodes[by_name_.at(part.node)];
      for (const int slot : part.slots) {
        if (!job.empty() && !node.slots[slot].job.empty()) std::abort();  // given twice
        node.slots[slot].job = job;
      }
    }
  }

  void End(size_t index, double now) {
    const Live live = std::move(live_.at(index));
    live_.erase(index);
    SetSlots(live.parts, "");
    const std::string name = Name(index);
    std::erase_if(snapshot_.running, [&](const RunningJob& job) { return job.id == name; });
    Fate& fate = outcome_.fates[index];
    if (!live.stopping) {
      fate.end = now;
      return;
    }
    ++fate.preempted;
    const TraceJob& job = trace_.jobs[index];
    const double done = 1 - left_[index] / job.run;
    left_[index] += kResumeSeconds;
    Queue(index, now, job.planned * (1 - done) + kResumeSeconds,
          job.bound * (1 - done) + kResumeSeconds);
  }

  void Start(const Placement& placement, double now) {
    const size_t index = Index(placement.job);
    const TraceJob& job = trace_.jobs[index];
    const auto pending = FindPending(placement.job);
    if (!pending->promised.empty() && Micros(now) > pending->promised.start_us) ++outcome_.late;
    Fate& fate = outcome_.fates[index];
    if (fate.start < 0) fate.start = now;
    fate.waited += now - waits_since_[index];
    RunningJob running;
    running.id = placement.job;
    running.project = job.project;
    running.priority = job.priority;
    running.parts = placement.parts;
    running.gpu_type = "H100";
    running.started_us = running.saved_us = Micros(now);
    running.expected_end_us = Micros(now) + pending->expected_us;
    running.bound_end_us = Micros(now) + pending->bound_us;
    snapshot_.running.push_back(running);
    snapshot_.pending.erase(pending);
    SetSlots(placement.parts, placement.job);
    live_[index] = {placement.parts, now, now + left_[index], false};
    ends_.push({now + left_[index], index});
  }

  void Stop(const Preemption& preemption, double now) {
    outcome_.preempted_by[preemption.job].push_back(preemption.by);
    const size_t index = Index(preemption.job);
    Live& live = live_.at(index);
    const double until = now + kStopSeconds;
    if (live.end <= until) return;  // ends by itself
    left_[index] -= until - live.start;
    live.end = until;
    live.stopping = true;
    ends_.push({until, index});
    for (RunningJob& job : snapshot_.running) {
      if (job.id != preemption.job) continue;
      job.stopping = true;
      job.bound_end_us = Micros(now) + kStopUs;
    }
  }

  void Decide(double now) {
    snapshot_.now_us = Micros(now);
    ++outcome_.passes;
    const Decision decision = sched::Decide(snapshot_, rules_);
    Level highest = Level::kLow;
    for (const PendingJob& job : snapshot_.pending) {
      highest = std::max(highest, LevelOf(job, snapshot_.now_us));
    }
    for (const Waiting& waiting : decision.waiting) Note(waiting, highest);
    for (const Placement& placement : decision.placements) {
      Fate& fate = outcome_.fates[Index(placement.job)];
      if (fate.estimate < 0) fate.estimate = now;
      Start(placement, now);
    }
    for (const Preemption& preemption : decision.preemptions) Stop(preemption, now);
  }

  // `highest` is the highest level among the waiting jobs.
  void Note(const Waiting& waiting, Level highest) {
    const auto job = FindPending(waiting.job);
    Fate& fate = outcome_.fates[Index(waiting.job)];
    if (fate.estimate < 0) fate.estimate = Seconds(waiting.start_us);
    if (!waiting.promised.empty() && job->promised.empty()) ++outcome_.promises;
    const bool worse =
        waiting.promised.empty() || waiting.promised.start_us > job->promised.start_us;
    if (!job->promised.empty() && worse && LevelOf(*job, snapshot_.now_us) >= highest) {
      ++outcome_.broken;
    }
    job->promised = waiting.promised;
  }

  const Trace& trace_;
  const Rules rules_;
  Snapshot snapshot_;
  std::map<std::string, size_t> by_name_;
  std::vector<double> left_;  // remaining run time of each job
  std::map<size_t, double> waits_since_;
  std::map<size_t, Live> live_;
  using End_ = std::pair<double, size_t>;
  std::priority_queue<End_, std::vector<End_>, std::greater<>> ends_;
  Outcome outcome_;
  double at_ = 0;
};

// Plain EASY backfill: first come, first served; the first job that does not fit is promised the
// time at which enough running jobs have ended by their bounds, and others start now if they end
// before that time or leave enough free for it.
class Easy {
 public:
  explicit Easy(const Trace& trace) : trace_(trace), free_(trace.options.nodes, kGpus) {
    outcome_.fates.resize(trace.jobs.size());
    outcome_.last_submit = trace.jobs.back().submitted;
  }

  Outcome Run() {
    size_t next = 0;
    while (next < trace_.jobs.size() || !live_.empty()) {
      double now = next < trace_.jobs.size() ? trace_.jobs[next].submitted : 1e18;
      if (!ends_.empty()) now = std::min(now, ends_.top().first);
      Account(now);
      while (next < trace_.jobs.size() && trace_.jobs[next].submitted <= now) {
        queue_.push_back(next++);
      }
      while (!ends_.empty() && ends_.top().first <= now) {
        const size_t index = ends_.top().second;
        ends_.pop();
        for (const int node : live_.at(index).nodes)
          free_[node] += trace_.jobs[index].gpus_per_node;
        live_.erase(index);
        outcome_.fates[index].end = now;
      }
      Schedule(now);
    }
    Sum(trace_, outcome_);
    return std::move(outcome_);
  }

 private:
  struct Live {
    std::vector<int> nodes;
    double bound = 0;  // it has ended by then
  };

  void Account(double now) {
    const double to = std::min(now, outcome_.last_submit);
    if (to > at_) outcome_.gpu_hours += in_use_ * (to - at_) / kHour;
    at_ = now;
    in_use_ = 0;
    for (const int free : free_) in_use_ += kGpus - free;
  }

  // Nodes with enough free slots, those with the fewest left over first; empty if there are too
  // few.
  static std::vector<int> Find(const TraceJob& job, const std::vector<int>& free,
                               const std::vector<int>& also) {
    std::vector<std::pair<int, int>> fitting;
    for (size_t n = 0; n < free.size(); ++n) {
      if (std::min(free[n], also[n]) < job.gpus_per_node) continue;
      fitting.emplace_back(free[n], static_cast<int>(n));
    }
    if (static_cast<int>(fitting.size()) < job.nodes) return {};
    std::partial_sort(fitting.begin(), fitting.begin() + job.nodes, fitting.end());
    std::vector<int> nodes;
    for (int i = 0; i < job.nodes; ++i) nodes.push_back(fitting[i].second);
    return nodes;
  }

  void Start(size_t index, const std::vector<int>& nodes, double now) {
    const TraceJob& job = trace_.jobs[index];
    for (const int node : nodes) free_[node] -= job.gpus_per_node;
    in_use_ += job.gpus();
    live_[index] = {nodes, now + job.bound};
    ends_.push({now + job.run, index});
    Fate& fate = outcome_.fates[index];
    fate.start = now;
    fate.waited = now - job.submitted;
  }

  void Schedule(double now) {
    while (!queue_.empty()) {
      const std::vector<int> nodes = Find(trace_.jobs[queue_.front()], free_, free_);
      if (nodes.empty()) break;
      Start(queue_.front(), nodes, now);
      queue_.erase(queue_.begin());
    }
    if (queue_.empty()) return;
    // When and where the first job could start, and what is free beside it then.
    const TraceJob& head = trace_.jobs[queue_.front()];
    std::vector<std::pair<double, size_t>> by_bound;
    for (const auto& [index, live] : live_) by_bound.emplace_back(live.bound, index);
    std::sort(by_bound.begin(), by_bound.end());
    std::vector<int> then = free_;
    std::vector<int> nodes;
    double shadow = now;
    for (const auto& [bound, index] : by_bound) {
      for (const int node : live_.at(index).nodes) then[node] += trace_.jobs[index].gpus_per_node;
      shadow = bound;
      nodes = Find(head, then, then);
      if (!nodes.empty()) break;
    }
    for (const int node : nodes) then[node] -= head.gpus_per_node;
    for (size_t i = 1; i < queue_.size();) {
      const TraceJob& job = trace_.jobs[queue_[i]];
      const bool ends_before = now + job.bound <= shadow;
      const std::vector<int> chosen = Find(job, free_, ends_before ? free_ : then);
      if (chosen.empty()) {
        ++i;
        continue;
      }
      if (!ends_before) {
        for (const int node : chosen) then[node] -= job.gpus_per_node;
      }
      Start(queue_[i], chosen, now);
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  const Trace& trace_;
  std::vector<int> free_;
  std::vector<size_t> queue_;
  std::map<size_t, Live> live_;
  using End_ = std::pair<double, size_t>;
  std::priority_queue<End_, std::vector<End_>, std::greater<>> ends_;
  Outcome outcome_;
  double at_ = 0, in_use_ = 0;
};

}  // namespace

Outcome RunScheduler(const Trace& trace, const Rules& rules) {
  return Simulation(trace, rules).Run();
}

Outcome RunEasy(const Trace& trace) { return Easy(trace).Run(); }

double Within(const Trace& trace, const Outcome& outcome, double part) {
  int good = 0;
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    const Fate& fate = outcome.fates[i];
    const double wait = fate.start - trace.jobs[i].submitted;
    if (std::abs(fate.estimate - fate.start) <= std::max(part * wait, 120.0)) ++good;
  }
  return static_cast<double>(good) / static_cast<double>(trace.jobs.size());
}

}  // namespace sft::server::sched
