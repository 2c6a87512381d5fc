#include "tests/unit/server/sched/month.h"

#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "common/base/env.h"

// The scheduler on traces of a simulated fleet, compared with plain EASY. By default a part of the
// month that takes seconds; with SFT_WHOLE_MONTH=1 the 30 days and 20,000 jobs on 200 nodes with
// 1,600 GPUs (`make test-sim`).

namespace sft::server::sched {
namespace {

bool Whole() { return GetEnv("SFT_WHOLE_MONTH").value_or("") == "1"; }

TraceOptions Share() {
  TraceOptions options;
  if (Whole()) return options;
  options.jobs = 3000;
  options.length_days = 4.5;
  return options;
}

void Print(const char* name, const Outcome& outcome) {
  std::cerr << name << ": " << outcome.gpu_hours << " GPU hours until the last submit, mean wait "
            << outcome.mean_wait << " s, longest " << outcome.longest_wait / 3600 << " h, "
            << outcome.promises << " promises, " << outcome.broken << " broken, " << outcome.late
            << " late, " << outcome.preempted_by.size() << " jobs preempted\n";
}

// A promise is the start that a decision named for a waiting gang by the upper bounds of the run
// times of all before it; run times never exceed their bounds here. It is broken when a later
// decision names a later start, or none, while no job of a higher level waits; it is late when the
// gang starts after it.
void ExpectSound(const Trace& trace, const Outcome& outcome) {
  EXPECT_EQ(outcome.broken, 0);
  EXPECT_EQ(outcome.late, 0);
  EXPECT_GT(outcome.promises, 0);
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    EXPECT_GE(outcome.fates[i].end, 0) << "job " << i << " waits for ever";
  }
}

TEST(MonthTest, PromisesHoldAndTheFleetIsUsedAsUnderEasyWithShorterWaits) {
  TraceOptions options = Share();
  options.classes = false;
  const Trace trace = MakeTrace(options);
  const Outcome outcome = RunScheduler(trace), easy = RunEasy(trace);
  Print("scheduler", outcome);
  Print("EASY", easy);
  ExpectSound(trace, outcome);
  EXPECT_TRUE(outcome.preempted_by.empty());
  EXPECT_LE(outcome.mean_wait, easy.mean_wait);
  // The choice of jobs that run last in the window changes this by some tenths of a percent.
  EXPECT_GE(outcome.gpu_hours, 0.995 * easy.gpu_hours);
}

TEST(MonthTest, ClassesPreemptUpwardsOnlyAndEverybodyEnds) {
  TraceOptions options = Share();
  options.load = Whole() ? 0.9 : 1.1;
  const Trace trace = MakeTrace(options);
  const Outcome outcome = RunScheduler(trace);
  Print("with classes", outcome);
  ExpectSound(trace, outcome);
  EXPECT_FALSE(outcome.preempted_by.empty());
  const auto priority = [&](const std::string& id) {
    return trace.jobs[std::stoul(id.substr(4))].priority;
  };
  for (const auto& [victim, others] : outcome.preempted_by) {
    for (const std::string& by : others) EXPECT_LT(priority(victim), priority(by));
  }
}

TEST(MonthTest, EqualProjectsGetEqualGpuTimeWhateverTheySubmit) {
  // Twice the work that the fleet can do: `a` submits far more than `b`, and each more than half of
  // the fleet at any time, or it would not ask for its share. Without the whole month there are
  // fewer, shorter and smaller jobs: a gang of 128 GPUs that runs for days is some percent of a
  // week.
  TraceOptions options = Share();
  options.classes = false;
  options.part_of_a = 0.6;
  options.load = 2;
  options.longest = 20;
  if (!Whole()) {
    options.load = 1.4;
    options.jobs = 2500;
    options.nodes = 40;
    options.length_days = 6;
    options.most_nodes = 2;
    options.longest = 6;
  }
  const Outcome outcome = RunScheduler(MakeTrace(options), {.max_foretold = 0});
  const double a = outcome.gpu_hours_of.at("a"), b = outcome.gpu_hours_of.at("b");
  std::cerr << "projects: " << a << " and " << b << " GPU hours\n";
  EXPECT_LE(std::abs(a - b), 0.05 * std::max(a, b));
}

TEST(MonthTest, EstimatesOfTheStartAreHonest) {
  TraceOptions options = Share();
  options.classes = false;
  options.load = Whole() ? 0.85 : 1.0;
  const Trace trace = MakeTrace(options);
  const Outcome outcome = RunScheduler(trace);
  const double in20 = Within(trace, outcome, 0.2), in50 = Within(trace, outcome, 0.5);
  std::cerr << "estimates: " << 100 * in20 << " % within 20 % or 2 min, " << 100 * in50
            << " % within 50 % or 2 min\n";
  EXPECT_GE(in20, 0.5);
  EXPECT_GE(in50, 0.9);
}

TEST(MonthTest, TheSameTraceIsDecidedTheSameWay) {
  TraceOptions options = Share();
  options.jobs = 400;
  options.length_days = 0.6;
  const Trace trace = MakeTrace(options);
  const Outcome first = RunScheduler(trace), second = RunScheduler(trace);
  for (size_t i = 0; i < trace.jobs.size(); ++i) {
    EXPECT_EQ(first.fates[i].start, second.fates[i].start);
    EXPECT_EQ(first.fates[i].end, second.fates[i].end);
  }
}

}  // namespace
}  // namespace sft::server::sched
