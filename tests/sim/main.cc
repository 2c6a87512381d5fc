// sim [--seeds FIRST:COUNT | --seed N --trace] [--jobs N]: simulations from seeds, the invariants
// after each event. Prints the faults and edges that were covered. Ends with 1 when a simulation
// did not hold, or a fault or a legal edge never happened.

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "server/state/job_state.h"
#include "tests/sim/simulation.h"

namespace sft::sim {
namespace {

struct Totals {
  int64_t seeds = 0, events = 0, jobs = 0, least_events = INT64_MAX;
  std::array<int64_t, kFaults> faults{};
  std::map<std::pair<int, int>, int64_t> edges;  // and in how many simulations
  std::map<std::string, int64_t> outcomes;
};

void PrintViolations(uint64_t seed, const SimulationResult& result) {
  fmt::print("seed {}: {}", seed, result.trace);
  for (const Violation& each : result.violations) {
    fmt::print("seed {}: VIOLATED ({}): {}\n", seed, ToString(each.invariant), each.what);
  }
  fmt::print("again: sft-sim --seed {} --trace\n", seed);
  std::fflush(stdout);
}

// False: some did not hold. A few of those say enough.
bool RunSeeds(uint64_t first, uint64_t count, uint64_t stride, Totals& totals) {
  constexpr int kMostViolated = 10;
  int violated = 0;
  for (uint64_t seed = first; seed < first + count && violated < kMostViolated; seed += stride) {
    const SimulationResult result = Simulate({.seed = seed});
    if (!result.violations.empty()) {
      PrintViolations(seed, result);
      ++violated;
      continue;
    }
    ++totals.seeds;
    totals.events += result.events;
    totals.least_events = std::min(totals.least_events, result.events);
    totals.jobs += result.jobs;
    for (int i = 0; i < kFaults; ++i) totals.faults[i] += result.faults[i];
    for (const auto& [from, to] : result.edges) {
      ++totals.edges[{static_cast<int>(from), static_cast<int>(to)}];
    }
    for (const auto& [state, number] : result.outcomes) totals.outcomes[state] += number;
  }
  return violated == 0;
}

void Write(const Totals& totals, std::ostream& out) {
  out << totals.seeds << ' ' << totals.events << ' ' << totals.jobs << ' ' << totals.least_events
      << '\n';
  for (const int64_t number : totals.faults) out << number << ' ';
  out << '\n' << totals.edges.size() << '\n';
  for (const auto& [edge, number] : totals.edges) {
    out << edge.first << ' ' << edge.second << ' ' << number << '\n';
  }
  out << totals.outcomes.size() << '\n';
  for (const auto& [state, number] : totals.outcomes) out << state << ' ' << number << '\n';
}

void AddFrom(std::istream& in, Totals& totals) {
  Totals part;
  size_t edges = 0, outcomes = 0;
  in >> part.seeds >> part.events >> part.jobs >> part.least_events;
  totals.seeds += part.seeds;
  totals.events += part.events;
  totals.jobs += part.jobs;
  totals.least_events = std::min(totals.least_events, part.least_events);
  for (int64_t& number : totals.faults) {
    int64_t more = 0;
    in >> more;
    number += more;
  }
  for (in >> edges; edges > 0; --edges) {
    std::pair<int, int> edge;
    int64_t number = 0;
    in >> edge.first >> edge.second >> number;
    totals.edges[edge] += number;
  }
  for (in >> outcomes; outcomes > 0; --outcomes) {
    std::string state;
    int64_t number = 0;
    in >> state >> number;
    totals.outcomes[state] += number;
  }
}

// Whether every fault happened and every legal edge was taken.
bool Print(const Totals& totals) {
  fmt::print(
      "{} simulations held all {} invariants after each of {} events (at least {} each), "
      "{} jobs\n",
      totals.seeds, kInvariants, totals.events, totals.least_events, totals.jobs);
  bool all = true;
  for (int i = 0; i < kFaults; ++i) {
    all = all && totals.faults[i] > 0;
    fmt::print("  fault: {:<24} {:>9}{}\n", ToString(static_cast<Fault>(i)), totals.faults[i],
               totals.faults[i] == 0 ? "  NOT COVERED" : "");
  }
  for (const auto& edge : server::JobEdges()) {
    const auto found = totals.edges.find({static_cast<int>(edge.from), static_cast<int>(edge.to)});
    const int64_t number = found == totals.edges.end() ? 0 : found->second;
    all = all && number > 0;
    fmt::print("  edge: {:<10} -> {:<12} in {:>7} simulations{}\n", server::ToString(edge.from),
               server::ToString(edge.to), number, number == 0 ? "  NOT COVERED" : "");
  }
  for (const auto& [state, number] : totals.outcomes)
    fmt::print("  ended {:<12} {:>9}\n", state, number);
  return all;
}

// Processes, because SQLite's file system is one of the process.
int RunAll(uint64_t first, uint64_t count, int jobs) {
  std::vector<std::pair<pid_t, std::string>> children;
  for (int i = 0; i < jobs; ++i) {
    const std::string path = fmt::format("/tmp/sft-sim-{}-{}", getpid(), i);
    const pid_t pid = fork();
    if (pid == 0) {
      Totals totals;
      const bool held = RunSeeds(first + static_cast<uint64_t>(i), count - static_cast<uint64_t>(i),
                                 static_cast<uint64_t>(jobs), totals);
      std::ofstream out(path);
      Write(totals, out);
      out.close();
      std::fflush(stdout);
      _exit(held ? 0 : 1);
    }
    children.emplace_back(pid, path);
  }
  Totals totals;
  bool held = true;
  for (const auto& [pid, path] : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status)) fmt::print("a simulation crashed: signal {}\n", WTERMSIG(status));
    held = held && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::ifstream in(path);
    if (in) AddFrom(in, totals);
    unlink(path.c_str());
  }
  const bool all = Print(totals);
  return held && all ? 0 : 1;
}

int Main(int argc, char** argv) {
  CLI::App app("Simulations of a server, three nodes, networks and disks from seeds");
  uint64_t first = 1, count = 100, seed = 0;
  int jobs = 1;
  bool trace = false;
  app.add_option("--first", first, "first seed");
  app.add_option("--seeds", count, "number of seeds");
  app.add_option("--jobs", jobs, "processes side by side")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "this one alone");
  app.add_flag("--trace", trace, "with --seed: print what happens");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(trace ? spdlog::level::info : spdlog::level::off);
  if (seed == 0) return RunAll(first, count, jobs);
  const SimulationResult result = Simulate({.seed = seed, .trace = trace});
  fmt::print("seed {}: {} events, {} jobs\n", seed, result.events, result.jobs);
  for (const auto& [state, number] : result.outcomes) fmt::print("  {} {}\n", state, number);
  if (!result.violations.empty()) PrintViolations(seed, result);
  return result.violations.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sft::sim

int main(int argc, char** argv) { return sft::sim::Main(argc, argv); }
