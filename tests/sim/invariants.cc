#include "tests/sim/invariants.h"

#include <fmt/format.h>

#include <algorithm>

namespace sft::sim {
namespace {

using server::Database;
using server::JobState;
using server::Statement;

constexpr std::chrono::seconds kReasonPatience{30};
// A node is missed after 15 s, and counts as heard when the server starts.
constexpr std::chrono::seconds kRemovedPatience{60};

// Runs `row` for each row of `sql`.
template <typename Row>
absl::Status ForEach(Database& db, const char* sql, Row&& row) {
  SFT_ASSIGN_OR_RETURN(Statement rows, db.Prepare(sql));
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return absl::OkStatus();
    row(rows);
  }
}

}  // namespace

std::string_view ToString(Invariant invariant) {
  static constexpr std::array<std::string_view, kInvariants> kNames = {
      "one attempt per GPU", "one live attempt per job", "a gang is whole",
      "submits survive",     "final states are final",   "jobs move or say why",
      "logs are whole",      "budgets shrink",           "nothing is held in the end"};
  return kNames[static_cast<size_t>(invariant) - 1];
}

void Checker::Acknowledged(const std::string& request_id, const std::string& job) {
  const auto [known, first] = acknowledged_.emplace(request_id, job);
  if (!first && known->second != job) {
    Violate(Invariant::kSubmitsSurvive,
            fmt::format("request {} made jobs {} and {}", request_id, known->second, job));
  }
}

absl::Status Checker::Load(Database& db) {
  jobs_.clear();
  attempts_.clear();
  held_over_ = 0;
  SFT_RETURN_IF_ERROR(
      ForEach(db, "SELECT id, state, attempt, nodes, gpus_per_node, reason, request_id FROM jobs",
              [&](const Statement& row) {
                Job& job = jobs_[row.Text(0)];
                job.state = static_cast<JobState>(row.Int(1));
                job.attempt = row.Int(2);
                job.nodes = row.Int(3);
                job.gpus_per_node = row.Int(4);
                job.reason = row.Text(5);
                job.request_id = row.Text(6);
              }));
  SFT_RETURN_IF_ERROR(ForEach(
      db, "SELECT uid, job_id, number, epoch, state FROM attempts", [&](const Statement& row) {
        Job& job = jobs_[row.Text(1)];
        ++job.attempts;
        if (IsTerminal(static_cast<server::AttemptState>(row.Int(4)))) return;
        ++job.live;
        attempts_[row.Text(0)] = {row.Text(1), row.Int(2), row.Int(3), 0, {}};
      }));
  SFT_RETURN_IF_ERROR(ForEach(db, "SELECT attempt_uid, count(*) FROM attempt_nodes GROUP BY 1",
                              [&](const Statement& row) {
                                const auto found = attempts_.find(row.Text(0));
                                if (found != attempts_.end()) found->second.members = row.Int(1);
                              }));
  SFT_RETURN_IF_ERROR(ForEach(
      db,
      "SELECT attempt_uid, node FROM attempt_nodes JOIN nodes ON name = node WHERE removed = 1 "
      "AND lost = 0 AND attempt_nodes.state <> 8",
      [&](const Statement& row) {
        const auto found = attempts_.find(row.Text(0));
        if (found != attempts_.end()) found->second.removed_node = row.Text(1);
      }));
  return ForEach(db,
                 "SELECT attempt_uid, allocations.node, slot, forgotten FROM allocations JOIN "
                 "attempt_nodes USING (attempt_uid, node) WHERE freed_us IS NULL",
                 [&](const Statement& row) {
                   const auto found = attempts_.find(row.Text(0));
                   if (found == attempts_.end()) {
                     // Of a node that was given up, until it has said that nothing of it is left.
                     ++held_over_;
                     if (row.Int(3) == 0) return;
                     return Violate(Invariant::kGangIsWhole,
                                    fmt::format("attempt {} is over and holds slot {} of {}",
                                                row.Text(0), row.Int(2), row.Text(1)));
                   }
                   found->second.slots.emplace(row.Text(1), static_cast<int>(row.Int(2)));
                 });
}

void Checker::CheckJobs(const std::map<std::string, Job>& before, Nanos now, bool able) {
  for (auto& [id, job] : jobs_) {
    const auto old = before.find(id);
    if (old != before.end()) {
      if (IsTerminal(old->second.state) && job.state != old->second.state) {
        Violate(Invariant::kTerminalIsFinal,
                fmt::format("{} was {} and is {}", id, server::ToString(old->second.state),
                            server::ToString(job.state)));
      }
      if (job.attempt < old->second.attempt || job.attempts < old->second.attempts) {
        Violate(Invariant::kBudgetsShrink, fmt::format("{} lost an attempt", id));
      }
      job.silent_since = old->second.silent_since;
    }
    if (job.attempts > job.attempt) {
      Violate(Invariant::kBudgetsShrink,
              fmt::format("{} has {} attempts and counts {}", id, job.attempts, job.attempt));
    }
    if (job.live > 1) {
      Violate(Invariant::kOneLiveAttemptPerJob, fmt::format("{} has {} attempts", id, job.live));
    }
    if (!able || job.state != JobState::kPending || !job.reason.empty()) {
      job.silent_since = Nanos(-1);
    } else if (job.silent_since < Nanos(0)) {
      job.silent_since = now;
    } else if (now - job.silent_since > kReasonPatience) {
      Violate(Invariant::kJobsMoveOrSayWhy, fmt::format("{} waits and does not say why", id));
    }
  }
  for (const auto& [id, job] : before) {
    if (!jobs_.contains(id)) Violate(Invariant::kSubmitsSurvive, id + " is gone");
  }
  for (const auto& [request, id] : acknowledged_) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || found->second.request_id != request) {
      Violate(Invariant::kSubmitsSurvive,
              fmt::format("{} was acknowledged for {} and is not there", id, request));
    }
  }
}

// What ran on a node that was removed is given up once the server has missed the node for a while.
void Checker::CheckRemoved(Nanos now, bool able) {
  std::erase_if(removed_since_, [&](const auto& each) {
    const auto found = attempts_.find(each.first);
    return !able || found == attempts_.end() || found->second.removed_node.empty();
  });
  for (const auto& [uid, attempt] : attempts_) {
    if (!able || attempt.removed_node.empty()) continue;
    const Nanos since = removed_since_.emplace(uid, now).first->second;
    if (now - since <= kRemovedPatience) continue;
    Violate(Invariant::kJobsMoveOrSayWhy,
            fmt::format("{} waits for {}, which was removed", uid, attempt.removed_node));
  }
}

void Checker::CheckHeld(const Machines& machines) {
  for (const auto& [uid, attempt] : attempts_) {
    const Job& job = jobs_.at(attempt.job);
    int64_t& epoch = epochs_[attempt.job];
    if (attempt.epoch < epoch) {
      Violate(Invariant::kBudgetsShrink,
              fmt::format("epoch {} of {} after {}", attempt.epoch, attempt.job, epoch));
    }
    epoch = std::max(epoch, attempt.epoch);
    if (attempt.number != job.attempt) {
      Violate(Invariant::kOneLiveAttemptPerJob,
              fmt::format("attempt {} of {} lives, {} is its newest", attempt.number, attempt.job,
                          job.attempt));
    }
    const auto slots = static_cast<int64_t>(attempt.slots.size());
    if (attempt.members != job.nodes || slots != job.nodes * job.gpus_per_node) {
      Violate(Invariant::kGangIsWhole,
              fmt::format("{} has {} of {} nodes and {} of {} slots", uid, attempt.members,
                          job.nodes, slots, job.nodes * job.gpus_per_node));
    }
    if (IsTerminal(job.state)) {
      Violate(Invariant::kNothingIsHeldInTheEnd,
              fmt::format("{} has ended, its attempt {} has not", attempt.job, uid));
    }
  }
  for (const auto& [node, machine] : machines) {
    for (const Machine::Live& live : machine->LiveAttempts()) {
      const auto held = attempts_.find(live.attempt);
      for (const int gpu : live.gpus) {
        if (held != attempts_.end() && held->second.slots.contains({node, gpu})) continue;
        Violate(Invariant::kOneAttemptPerGpu,
                fmt::format("ranks of {} live on GPU {} of {}, which it does not hold",
                            live.attempt, gpu, node));
      }
    }
  }
}

std::vector<Violation> Checker::CheckMachines(const Machines& machines) const {
  std::vector<Violation> found;
  std::map<std::string, std::string> attempt_of;  // job → attempt
  for (const auto& [node, machine] : machines) {
    std::map<int, std::string> holder;
    for (const Machine::Live& live : machine->LiveAttempts()) {
      for (const int gpu : live.gpus) {
        if (!holder.emplace(gpu, live.attempt).second) {
          found.push_back(
              {Invariant::kOneAttemptPerGpu, fmt::format("{} and {} compute on GPU {} of {}",
                                                         holder[gpu], live.attempt, gpu, node)});
        }
      }
      const auto [other, first] = attempt_of.emplace(live.job, live.attempt);
      if (!first && other->second != live.attempt) {
        found.push_back(
            {Invariant::kOneLiveAttemptPerJob, fmt::format("ranks of {} and of {} live, both of {}",
                                                           other->second, live.attempt, live.job)});
      }
    }
  }
  return found;
}

std::vector<Violation> Checker::Check(server::Store& store, int64_t life, const Machines& machines,
                                      Nanos now, bool able) {
  const std::pair seen(life, store.commits());
  const bool read_now = seen != seen_ || now - read_at_ > kReasonPatience / 2;
  if (read_now) {
    if (life != seen_.first) removed_since_.clear();  // another server: it waits anew
    seen_ = seen;
    read_at_ = now;
    std::map<std::string, Job> before;
    before.swap(jobs_);
    const absl::Status read = store.Read([&](Database& db) { return Load(db); });
    if (read.ok()) {
      CheckJobs(before, now, able);
      CheckRemoved(now, able);
    } else {
      jobs_.swap(before);
      Violate(Invariant::kSubmitsSurvive, "the database cannot be read: " + read.ToString());
    }
  }
  int64_t version = 0;
  for (const auto& [node, machine] : machines) version += machine->version();
  if (!read_now && version == machines_seen_) return std::exchange(found_, {});
  machines_seen_ = version;
  CheckHeld(machines);
  for (Violation& each : CheckMachines(machines)) found_.push_back(std::move(each));
  return std::exchange(found_, {});
}

std::vector<Violation> Checker::CheckRest(server::Store& store, const Machines& machines) {
  const absl::Status read = store.Read([&](Database& db) { return Load(db); });
  if (!read.ok()) Violate(Invariant::kSubmitsSurvive, read.ToString());
  for (const auto& [id, job] : jobs_) {
    if (IsTerminal(job.state)) continue;
    Violate(Invariant::kJobsMoveOrSayWhy,
            fmt::format("{} is {} for ever ({})", id, server::ToString(job.state), job.reason));
  }
  for (const auto& [uid, attempt] : attempts_) {
    Violate(Invariant::kNothingIsHeldInTheEnd, uid + " holds slots at rest");
  }
  if (held_over_ > 0) {
    Violate(Invariant::kNothingIsHeldInTheEnd, "a node that was given up holds slots at rest");
  }
  for (const auto& [node, machine] : machines) {
    for (const Machine::Live& live : machine->LiveAttempts()) {
      Violate(Invariant::kNothingIsHeldInTheEnd,
              fmt::format("ranks of {} live on {} at rest", live.attempt, node));
    }
  }
  return std::exchange(found_, {});
}

std::set<std::pair<JobState, JobState>> Checker::Edges(server::Store& store) {
  std::set<std::pair<JobState, JobState>> edges;
  const auto add = [&](const Statement& row) {
    const std::string text = row.Text(0);
    for (const auto& edge : server::JobEdges()) {
      if (text.starts_with(
              fmt::format("{} -> {}", server::ToString(edge.from), server::ToString(edge.to)))) {
        edges.emplace(edge.from, edge.to);
      }
    }
  };
  const absl::Status read = store.Read([&](Database& db) {
    return ForEach(db, "SELECT message FROM events WHERE type = 'state'", add);
  });
  if (!read.ok()) edges.clear();
  return edges;
}

bool Checker::AllFinal() const {
  return std::all_of(jobs_.begin(), jobs_.end(),
                     [](const auto& each) { return IsTerminal(each.second.state); });
}

}  // namespace sft::sim
