#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/sched/decide.h"

// A month of a fleet, simulated: jobs of skewed sizes and lengths from a seed, run under the
// scheduler or under plain EASY backfill, a reference that shares no code with it.

namespace sft::server::sched {

// One job of a trace. Times are seconds since the trace began.
struct TraceJob {
  double submitted = 0;
  int nodes = 1, gpus_per_node = 1;
  double planned = 0;  // planned run time
  double run = 0;      // real run time
  double bound = 0;    // upper bound of the run time
  int priority = kNormal;
  std::string project = "a";

  int gpus() const { return nodes * gpus_per_node; }
};

struct TraceOptions {
  uint64_t seed = 1;
  int jobs = 20000;
  int nodes = 200;    // with 8 GPUs each
  double load = 0.9;  // submitted work as a fraction of the available GPU time
  // The most that a run time differs from the plan, and the factor of its bound.
  double error = 0.15, bound = 1.25;
  bool classes = true;  // one in ten low, one in twenty high
  double length_days = 30;
  // Share of the work that project "a" submits; the rest belongs to "b".
  double part_of_a = 0.5;
  // The largest number of nodes of a job; run times are skewed up to this many times the median.
  int most_nodes = 16;
  double longest = 60;
};

struct Trace {
  TraceOptions options;
  std::vector<TraceJob> jobs;
};
Trace MakeTrace(const TraceOptions& options);

// The outcome of a job.
struct Fate {
  double start = -1, end = -1;
  double waited = 0;     // total time in the queue
  double estimate = -1;  // estimated start, at submit
  int preempted = 0;
};

struct Outcome {
  std::vector<Fate> fates;
  // Promises that a later decision broke although nothing of a higher level stood before, and
  // starts after the promised time.
  int broken = 0, late = 0;
  int64_t promises = 0, passes = 0;
  std::map<std::string, std::vector<std::string>> preempted_by;  // by victim
  double gpu_hours = 0;                                          // until the last submit
  std::map<std::string, double> gpu_hours_of;                    // projects, until then
  double mean_wait = 0, longest_wait = 0;                        // seconds
  double last_submit = 0;
  double slowest_pass_ms = 0;
};
Outcome RunScheduler(const Trace& trace, const Rules& rules = Rules());
Outcome RunEasy(const Trace& trace);

// The fraction of jobs whose estimated wait is within `part` of the real one, or 2 minutes.
double Within(const Trace& trace, const Outcome& outcome, double part);

}  // namespace sft::server::sched
