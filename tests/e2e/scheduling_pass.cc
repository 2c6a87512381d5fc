// One decision of the scheduler over a large fleet, for tests/bench/service_load.py: prints a line
// of JSON.
//
//   sft-scheduling-pass [JOBS] [NODES]
//
// Nodes of 8 GPUs of two types, nine in ten of them busy, and waiting jobs of 20 projects, four
// classes and skewed sizes, drawn from a fixed seed. Decided 20 times; and once a second 20 times
// more, beside a job of the highest class each, for what those who wait are told of it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/sched/decide.h"
#include "server/sched/wait_history.h"
#include "tests/unit/server/sched/decide_testing.h"

namespace sft::server::sched {
namespace {

constexpr int kSlots = 8, kTimes = 20;
constexpr int64_t kNow = int64_t{1'700'000'000} * 1'000'000, kHour = int64_t{3600} * 1'000'000;

std::string TypeOf(int number) { return number % 4 == 0 ? "H200" : "H100"; }

void AddNode(int number, bool busy, Snapshot& snapshot) {
  const std::string name = fmt::format("node-{:04}", number), job = fmt::format("run-{}", number);
  if (!busy) {
    snapshot.nodes.push_back(Node(name, TypeOf(number), kSlots));
    return;
  }
  snapshot.nodes.push_back(Node(name, TypeOf(number), kSlots, Held(0, kSlots, job)));
  RunningJob running{.id = job,
                     .project = fmt::format("project-{}", number % 20),
                     .priority = number % 10 == 0 ? kLow : kNormal,
                     .parts = {{name, {}}},
                     .gpu_type = TypeOf(number),
                     .started_us = kNow - number % 50 * kHour,
                     .expected_end_us = kNow + (1 + number % 40) * kHour,
                     .bound_end_us = kNow + (2 + number % 40) * kHour,
                     .saved_us = kNow - kHour / 2};
  for (int slot = 0; slot < kSlots; ++slot) running.parts[0].slots.push_back(slot);
  snapshot.running.push_back(std::move(running));
}

Snapshot MakeSnapshot(int jobs, int nodes) {
  std::mt19937_64 chance(7);
  Snapshot snapshot{.now_us = kNow};
  for (int node = 0; node < nodes; ++node) AddNode(node, chance() % 10 != 0, snapshot);
  constexpr std::array<int, 8> kSizes = {1, 1, 1, 2, 2, 4, 8, 8};
  for (int i = 0; i < jobs; ++i) {
    const int64_t length = static_cast<int64_t>(1 + chance() % 60) * kHour / 2;
    PendingJob job{.id = fmt::format("job-{:05}", i),
                   .gpu_type = TypeOf(static_cast<int>(chance() % 1000)),
                   .gpus_per_node = kSizes[chance() % kSizes.size()],
                   .project = fmt::format("project-{}", chance() % 20),
                   .priority = chance() % 20 == 0 ? kHigh : kNormal,
                   .submitted_us = kNow - (jobs - i) * int64_t{1'000'000},
                   .expected_us = length,
                   .bound_us = length * 5 / 4};
    if (chance() % 20 == 0) {
      job.gpus_per_node = kSlots;
      job.nodes = 2 << chance() % 4;
    }
    snapshot.pending.push_back(std::move(job));
  }
  for (int i = 0; i < 20; ++i) {
    snapshot.projects.push_back(
        {.name = fmt::format("project-{}", i), .share = 1.0 + i % 3, .usage_us = 1e12 * i});
  }
  return snapshot;
}

// Milliseconds that telling takes, the least first.
std::vector<double> TimeHistory(Snapshot snapshot, Clock& clock) {
  std::vector<double> millis;
  WaitHistory history;
  history.Look(snapshot, Decide(snapshot));
  for (int i = 0; i < kTimes; ++i) {
    snapshot.now_us += 1'000'000;
    snapshot.pending.push_back({.id = fmt::format("urgent-{}", i),
                                .gpu_type = TypeOf(i),
                                .gpus_per_node = kSlots,
                                .project = "project-1",
                                .priority = kUrgent,
                                .submitted_us = snapshot.now_us,
                                .expected_us = kHour,
                                .bound_us = kHour});
    const Decision decision = Decide(snapshot);
    const MonoTime begin = clock.Mono();
    history.Stored(history.Look(snapshot, decision));
    millis.push_back(static_cast<double>((clock.Mono() - begin).count()) / 1e6);
  }
  std::sort(millis.begin(), millis.end());
  return millis;
}

int Main(int jobs, int nodes) {
  const Snapshot snapshot = MakeSnapshot(jobs, nodes);
  Clock& clock = Clock::Real();
  std::vector<double> millis;
  size_t placed = 0;
  for (int i = 0; i < kTimes; ++i) {
    const MonoTime begin = clock.Mono();
    placed = Decide(snapshot).placements.size();
    millis.push_back(static_cast<double>((clock.Mono() - begin).count()) / 1e6);
  }
  std::sort(millis.begin(), millis.end());
  const std::vector<double> told = TimeHistory(snapshot, clock);
  std::puts(
      fmt::format("{{\"jobs\": {}, \"nodes\": {}, \"placed\": {}, \"median_ms\": {:.3f}, "
                  "\"most_ms\": {:.3f}, \"told_median_ms\": {:.3f}, \"told_most_ms\": {:.3f}}}",
                  jobs, nodes, placed, millis[kTimes / 2], millis.back(), told[kTimes / 2],
                  told.back())
          .c_str());
  return 0;
}

}  // namespace
}  // namespace sft::server::sched

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::stoi(argv[i]) : otherwise;
  };
  return sft::server::sched::Main(number(1, 10'000), number(2, 1'000));
}
