#include "server/sched/order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <queue>

namespace sft::server::sched {
namespace {

double Work(int gpus, int64_t expected_us) {
  return static_cast<double>(gpus) *
         static_cast<double>(expected_us > 0 ? expected_us : kUnknownRunUs);
}

// Merges the jobs of one level by usage; each project's stay in order of submission.
void TakeTurns(const Snapshot& snapshot, const std::vector<size_t>& jobs, Level level, Usage& usage,
               std::vector<Standing>& line) {
  std::map<std::string_view, std::vector<size_t>> by_project;
  for (const size_t index : jobs) by_project[snapshot.pending[index].project].push_back(index);
  struct Turn {
    double used;
    size_t index;  // index of its next job; also breaks ties
    const std::vector<size_t>* jobs;
    size_t next;
    bool operator<(const Turn& other) const {
      return std::pair(other.used, other.index) < std::pair(used, index);
    }
  };
  std::priority_queue<Turn> turns;
  for (const auto& [project, own] : by_project) {
    turns.push({usage.Of(project), own.front(), &own, 0});
  }
  while (!turns.empty()) {
    Turn turn = turns.top();
    turns.pop();
    const PendingJob& job = snapshot.pending[turn.index];
    line.push_back({turn.index, level});
    usage.Charge(job);
    if (++turn.next == turn.jobs->size()) continue;
    turn.index = (*turn.jobs)[turn.next];
    turn.used = usage.Of(job.project);
    turns.push(turn);
  }
}

}  // namespace

Usage::Usage(const Snapshot& snapshot) {
  for (const ProjectView& project : snapshot.projects) {
    Account& account = accounts_[project.name];
    account.share = std::max(project.share, 1e-6);
    account.used = project.usage_us;
  }
  for (const RunningJob& job : snapshot.running) {
    const int64_t left = job.expected_end_us > 0
                             ? std::max<int64_t>(job.expected_end_us - snapshot.now_us, 1)
                             : kUnknownRunUs;
    accounts_[job.project].used += Work(job.gpus(), left);
  }
}

double Usage::Of(std::string_view project) {
  const Account& account = accounts_[project];
  return account.used / account.share;
}

void Usage::Charge(const PendingJob& job) {
  accounts_[job.project].used += Work(job.gpus(), job.expected_us);
}

Level LevelOf(const PendingJob& job, int64_t now_us) {
  switch (job.priority) {
    case kUrgent:
      return Level::kUrgent;
    case kHigh:
      return Level::kHigh;
    default:
      if (job.submitted_us > 0 && now_us - job.submitted_us >= kOldAfterUs) return Level::kOld;
      return job.priority == kLow ? Level::kLow : Level::kNormal;
  }
}

double Decayed(double usage_us, int64_t at_us, int64_t now_us) {
  // A wall clock that was set back must not make it weigh more.
  const auto elapsed = static_cast<double>(std::max<int64_t>(0, now_us - at_us));
  return usage_us * std::exp2(-elapsed / static_cast<double>(kUsageHalfLifeUs));
}

std::vector<Standing> MakeLine(const Snapshot& snapshot) {
  std::array<std::vector<size_t>, kLevels> levels;
  for (size_t i = 0; i < snapshot.pending.size(); ++i) {
    const PendingJob& job = snapshot.pending[i];
    if (!job.blocked.empty()) continue;
    levels[static_cast<size_t>(LevelOf(job, snapshot.now_us))].push_back(i);
  }
  Usage usage(snapshot);
  std::vector<Standing> line;
  for (int level = kLevels - 1; level >= 0; --level) {
    TakeTurns(snapshot, levels[static_cast<size_t>(level)], static_cast<Level>(level), usage, line);
  }
  return line;
}

}  // namespace sft::server::sched
