#include "server/sched/wait_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "server/sched/order.h"

namespace sft::server::sched {
namespace {

using Kind = Cause::Kind;

// Causes of one change that are told.
constexpr size_t kMostTold = 3;

// "2h10m", "45m": by how much a time has moved.
std::string MoveText(int64_t us) {
  const int64_t minutes = std::max<int64_t>(1, (us + kLeastMoveUs / 2) / kLeastMoveUs);
  return minutes < 60 ? fmt::format("{} min", minutes)
                      : fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

// Whom a kind of cause is about.
struct Subject {
  std::vector<const Cause*> own;
  size_t others = 0;

  bool one() const { return own.size() + others == 1; }
  std::string Text() const {
    std::string text;
    if (own.size() == 1) text = own.front()->job;
    if (own.size() > 1) text = fmt::format("{} jobs of its project", own.size());
    if (others == 0) return text;
    return fmt::format("{}{}{}", text, text.empty() ? "" : " and ",
                       others == 1 ? "a job of another project"
                                   : fmt::format("{} jobs of other projects", others));
  }
};

// " by 40 min", where it is about one job.
std::string ByText(const Subject& subject, const Cause& cause) {
  return subject.one() ? MoveText(cause.by_us) + " " : "";
}

std::string Say(Kind kind, const Subject& subject, const Cause& cause) {
  const bool one = subject.one();
  const auto say = [&](std::string_view if_one, std::string_view if_several) {
    return subject.Text() + std::string(one ? if_one : if_several);
  };
  switch (kind) {
    case Kind::kSubmitted:
      return say(" was submitted ahead of it", " were submitted ahead of it");
    case Kind::kStartedAtOnce:
      return say(" was submitted and started at once", " were submitted and started at once");
    case Kind::kReturned:
      return subject.Text() + " came back into the line ahead of it";
    case Kind::kJoined:
      return say(" ahead of it may start now, as it might not before",
                 " ahead of it may start now, as they might not before");
    case Kind::kTurn:
      return subject.Text() + " went ahead of it, as projects take turns";
    case Kind::kGone:
      return subject.Text() + " ahead of it ended without a start";
    case Kind::kBlocked:
      return say(" ahead of it is held or over a limit", " ahead of it are held or over a limit");
    case Kind::kPreempted:
      return say(" makes room for a job of a higher class",
                 " make room for jobs of higher classes");
    case Kind::kLonger:
      return subject.Text() + (one ? " takes " : " take ") + ByText(subject, cause) +
             "longer than expected";
    case Kind::kShorter:
      return say(" is expected to end ", " are expected to end ") + ByText(subject, cause) +
             "sooner";
    case Kind::kKnown:
      return say(" has a known end now", " have known ends now");
    case Kind::kEndedSooner:
      return subject.Text() + " ended " + ByText(subject, cause) + "sooner than expected";
    case Kind::kEnded:
      return subject.Text() + " ended " + ByText(subject, cause) +
             (one ? "before the latest time that it could take"
                  : "before the latest time that they could take");
    case Kind::kNodeLost:
    case Kind::kNodeBack:
      return cause.text;
    case Kind::kLimits:
      return "the limits of its project were changed";
    case Kind::kShares:
      return "shares of projects were changed";
  }
  return "";
}

}  // namespace

bool Delays(Kind kind) {
  switch (kind) {
    case Kind::kGone:
    case Kind::kBlocked:
    case Kind::kPreempted:
    case Kind::kShorter:
    case Kind::kEndedSooner:
    case Kind::kEnded:
    case Kind::kNodeBack:
      return false;
    default:
      return true;
  }
}

bool Hastens(Kind kind) {
  return !Delays(kind) || kind == Kind::kLimits || kind == Kind::kShares || kind == Kind::kKnown;
}

bool HasMoved(int64_t before_us, int64_t after_us, int64_t now_us) {
  const int64_t left_us = std::max(before_us, after_us) - now_us;
  const auto least =
      std::max(static_cast<double>(kLeastMoveUs), kLeastMovePart * static_cast<double>(left_us));
  return static_cast<double>(std::abs(after_us - before_us)) >= least;
}

std::vector<Cause> FleetWatch::Look(const Snapshot& snapshot) {
  std::vector<Cause> causes;
  LookAtRuns(snapshot, causes);
  LookAtNodes(snapshot, causes);
  LookAtProjects(snapshot, causes);
  if (first_) causes.clear();
  first_ = false;
  return causes;
}

void FleetWatch::LookAtRuns(const Snapshot& snapshot, std::vector<Cause>& causes) {
  const int64_t now = snapshot.now_us;
  const std::unordered_map<std::string, Run> all_before = std::move(runs_);
  runs_.clear();
  const auto add = [&](Kind kind, const std::string& job, const Run& run, int64_t by_us) {
    causes.push_back(
        {.kind = kind, .type = run.type, .job = job, .project = run.project, .by_us = by_us});
  };
  for (const RunningJob& job : snapshot.running) {
    // One that is late is at its end from now on.
    const int64_t end = job.expected_end_us > 0 ? std::max(job.expected_end_us, now) : 0;
    Run run{job.gpu_type, job.project, end, job.bound_end_us};
    const auto before = all_before.find(job.id);
    if (before != all_before.end() && !job.stopping && end > 0) {
      const int64_t told = before->second.end_us;
      if (told == 0) {
        add(Kind::kKnown, job.id, run, 0);
      } else if (HasMoved(told, end, now)) {
        add(end > told ? Kind::kLonger : Kind::kShorter, job.id, run, std::abs(end - told));
      } else {
        run.end_us = told;
      }
    }
    runs_.emplace(job.id, std::move(run));
  }
  std::set<std::string_view> waiting;
  for (const auto& [job, run] : all_before) {
    if (runs_.contains(job)) continue;
    if (waiting.empty()) {
      for (const PendingJob& each : snapshot.pending) waiting.insert(each.id);
    }
    if (waiting.contains(job)) continue;
    if (run.end_us > 0 && run.end_us - now >= kLeastMoveUs) {
      add(Kind::kEndedSooner, job, run, run.end_us - now);
    } else if (run.bound_us == 0) {
      add(Kind::kEnded, job, run, kUnknownRunUs);
    } else if (run.bound_us - now >= kLeastMoveUs) {
      add(Kind::kEnded, job, run, run.bound_us - now);
    }
  }
}

void FleetWatch::LookAtNodes(const Snapshot& snapshot, std::vector<Cause>& causes) {
  std::map<std::string, Node> now;
  std::map<std::string_view, std::string_view> reasons;
  for (const NodeView& view : snapshot.nodes) {
    Node& node = now[view.name];
    reasons[view.name] = view.unusable_reason;
    if (!view.usable) continue;
    for (const SlotView& slot : view.slots) {
      if (slot.healthy) ++node.slots[slot.gpu_type];
    }
  }
  // Slots of a type that one has and the other has not.
  const auto compare = [&](const std::string& name, const Node& less, const Node& more, bool lost) {
    for (const auto& [type, count] : more.slots) {
      const auto found = less.slots.find(type);
      const int left = found == less.slots.end() ? 0 : found->second;
      if (left >= count) continue;
      Cause& cause = causes.emplace_back();
      cause.kind = lost ? Kind::kNodeLost : Kind::kNodeBack;
      cause.type = type;
      if (left > 0) {
        cause.text = fmt::format("node {} has {} slot{} {}", name, count - left,
                                 count - left == 1 ? "" : "s", lost ? "less" : "more");
      } else if (!lost) {
        cause.text = fmt::format("node {} can be used", name);
      } else {
        const std::string_view reason = reasons[name];
        cause.text = !now.contains(name) ? fmt::format("node {} has left", name)
                     : reason.empty()    ? fmt::format("node {} cannot be used", name)
                                         : fmt::format("node {} cannot be used: {}", name, reason);
      }
    }
  };
  static const Node kNone;
  for (const auto& [name, node] : nodes_) {
    const auto found = now.find(name);
    compare(name, found == now.end() ? kNone : found->second, node, /*lost=*/true);
  }
  for (const auto& [name, node] : now) {
    const auto found = nodes_.find(name);
    compare(name, found == nodes_.end() ? kNone : found->second, node, /*lost=*/false);
  }
  nodes_ = std::move(now);
}

void FleetWatch::LookAtProjects(const Snapshot& snapshot, std::vector<Cause>& causes) {
  std::map<std::string, Project> now;
  for (const ProjectView& each : snapshot.projects) {
    now[each.name] = {each.share, each.max_gpus, each.max_running};
  }
  const auto was = [&](const std::string& name) {
    const auto found = projects_.find(name);
    return found == projects_.end() ? Project() : found->second;
  };
  for (const auto& [name, project] : now) {
    const Project before = was(name);
    if (project == before) continue;
    causes.push_back({.kind = Kind::kLimits, .project = name});
    if (project.share != before.share) causes.push_back({.kind = Kind::kShares, .project = name});
  }
  projects_ = std::move(now);
}

std::string CauseText(const std::vector<const Cause*>& causes, std::string_view project) {
  std::vector<std::string> texts;
  std::set<std::pair<Kind, std::string>> said;
  for (const Cause* const cause : causes) {
    if (!said.insert({cause->kind, cause->text}).second) continue;
    Subject subject;
    std::set<std::string_view> jobs;
    for (const Cause* const other : causes) {
      if (other->kind != cause->kind || !jobs.insert(other->job).second) continue;
      if (other->project == project) {
        subject.own.push_back(other);
      } else {
        ++subject.others;
      }
    }
    texts.push_back(Say(cause->kind, subject, *cause));
  }
  if (texts.empty()) return "the times of those ahead of it were estimated anew";
  std::string text;
  for (size_t i = 0; i < std::min(texts.size(), kMostTold); ++i) {
    text += (i == 0 ? "" : "; ") + texts[i];
  }
  if (texts.size() > kMostTold) text += fmt::format("; and {} more", texts.size() - kMostTold);
  return text;
}

}  // namespace sft::server::sched
