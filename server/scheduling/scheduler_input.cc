#include "server/scheduling/scheduler_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common/base/duration.h"
#include "common/hub/model_name.h"
#include "server/fleet/describe_node.h"
#include "server/fleet/node_health.h"
#include "server/fleet/node_holds.h"
#include "server/gangs/gang_life.h"
#include "server/gangs/node_checks.h"
#include "server/resume/resume.h"
#include "server/scheduling/budgets.h"
#include "server/scheduling/dependencies.h"
#include "server/scheduling/scheduler_jobs.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"
#include "server/store/prices.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

// How long after its start the server expects nodes back that have not connected yet: they dial
// again one by one.
constexpr std::chrono::minutes kReturnTime{5};

// From this wire protocol on, workers continue from checkpoints.
constexpr int kResumesSince = 2;

// True while a job waits between two attempts. A wall clock that was set back must not prolong
// that.
bool IsHeldBack(const JobRecord& job, int64_t now_us, const RestartPace& pace) {
  return job.not_before_us > now_us && job.not_before_us - now_us <= pace.max_delay_us;
}

// `by_commit`: nodes whose workers know models by their commits.
absl::Status AddModels(Database& db, const std::set<std::string>& by_commit,
                       sched::Snapshot& snapshot) {
  std::map<std::string_view, sched::NodeView*> by_name;
  for (sched::NodeView& view : snapshot.nodes) by_name[view.name] = &view;
  for (int offset = 0;; offset += store::kMaxPage) {
    SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> models,
                         store::ListModels(db, offset, store::kMaxPage));
    for (const ModelRecord& model : models) {
      if (!model.problem.empty()) continue;
      const auto found = by_name.find(model.node);
      if (found == by_name.end()) continue;
      found->second->models.push_back(model.id);
      const auto name = hub::ParseModelName(model.id);
      const std::string commit = hub::CommitOfSnapshot(model.path);
      // Workers of earlier releases do not find a model by its commit.
      if (name && name->revision.empty() && !commit.empty() && by_commit.contains(model.node)) {
        found->second->models.push_back(name->id + "@" + commit);
      }
    }
    if (models.size() < store::kMaxPage) return absl::OkStatus();
  }
}

// Adds the nodes of the database, usable where their stream lives, and notes whether a drained one
// moves jobs, now or later.
absl::Status AddNodes(Database& db, const WorkerRegistry& registry, SchedulerInput& input) {
  SFT_ASSIGN_OR_RETURN(const auto scores,
                       NodeScores(db, registry.now_us(), registry.options().score));
  SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
  SFT_ASSIGN_OR_RETURN(const auto facts, store::AllFacts(db));
  SFT_ASSIGN_OR_RETURN(input.nodes, store::AllNodes(db));
  std::set<std::string> by_commit;
  for (const NodeRecord& node : input.nodes) {
    sched::NodeView& view = input.snapshot.nodes.emplace_back();
    view.name = node.name;
    const WorkerRegistry::Live live = registry.Get(node.name);
    const auto hold = holds.find(node.name);
    view.unusable_reason = WhyUnusable(node, live, hold == holds.end() ? nullptr : &hold->second);
    view.usable = view.unusable_reason.empty();
    if (hold != holds.end() && hold->second.mode == store::HoldMode::kDrain &&
        hold->second.move_us != 0) {
      input.nodes_changed = true;
    }
    view.returning = hold == holds.end() && live.last_seen == WallTime() &&
                     live.silent_for < kReturnTime && WhyResting(scores, node.name, live).empty();
    view.has_shared = node.has_shared_folder;
    view.rank_build = live.rank_build;
    if (live.lease.has_value()) {
      view.jobs_until_us = live.lease->jobs_until_us();
      view.least_stay_us = live.lease->lead_us;
      // Its time runs out whatever else happens.
      input.waits_for_time = true;
      if (!live.leaving.empty()) input.nodes_changed = true;
    }
    view.protocol = node.protocol;
    if (const auto found = scores.find(node.name); found != scores.end()) {
      view.left_out = found->second.reason;
      // A rest ends by time alone.
      input.waits_for_time = input.waits_for_time || !found->second.resting.empty();
      if (view.usable) view.unusable_reason = WhyResting(scores, node.name, live);
      view.usable = view.unusable_reason.empty();
    }
    if (const auto found = facts.find(node.name); found != facts.end()) {
      v1::NodeFacts said;
      if (said.ParseFromString(found->second.facts)) view.place = PlaceOf(said);
      view.downloads = !said.hub().endpoint().empty();
      if (said.has_hub()) by_commit.insert(node.name);
    }
    for (const SlotRecord& slot : node.slots) {
      view.slots.push_back({slot.index, slot.gpu_type, slot.healthy, slot.job_id});
    }
    if (live.silent) input.waits_for_time = input.nodes_changed = true;
    if (live.silent != (node.state == NodeState::kSuspect)) input.nodes_changed = true;
  }
  return AddModels(db, by_commit, input.snapshot);
}

absl::Status AddPending(Database& db, const WorkerRegistry& registry, int64_t now_us, Nanos margin,
                        SchedulerInput& input) {
  for (JobRecord& job : input.pending) {
    if (IsHeldBack(job, now_us, registry.options().pace)) {
      input.waits_for_time = true;
      continue;
    }
    SFT_ASSIGN_OR_RETURN(const Dependencies others, ReadDependencies(db, job.schedule));
    if (others.have_ended) input.released.push_back(job);
    if (!others.failed.empty()) continue;
    job.schedule.after = others.left;
    sched::PendingJob view = ToPending(job);
    const auto promise = input.promises.find(job.id);
    if (promise != input.promises.end()) view.promised = promise->second;
    if (job.attempt > 0 || !job.resumed_from.empty()) {
      SFT_ASSIGN_OR_RETURN(sched::ResumeChoice choice, ChooseFor(db, registry, job, margin));
      view.only_nodes = choice.only_nodes;
      view.needs_shared = choice.needs_shared;
      if (choice.checkpoint.has_value() && view.protocol < kResumesSince) {
        view.protocol = kResumesSince;
        view.newer_keys = "going on from a checkpoint";
      }
      const bool begins_anew = !choice.checkpoint.has_value();
      input.choices[job.id] = std::move(choice);
      if (begins_anew && !job.resumed_from.empty()) {
        input.stranded.push_back(job);
        continue;
      }
    }
    input.snapshot.pending.push_back(std::move(view));
  }
  return absl::OkStatus();
}

// Adds the budgets, and keeps jobs of projects that have used up theirs from being placed.
absl::Status AddBudgets(Database& db, int64_t now_us, SchedulerInput& input) {
  SFT_ASSIGN_OR_RETURN(input.budgets, store::AllSpent(db, now_us));
  if (input.budgets.empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
  for (const store::SpentBudget& each : input.budgets) {
    if (!each.is_reached()) continue;
    std::vector<sched::ProjectView>& projects = input.snapshot.projects;
    auto view = std::find_if(projects.begin(), projects.end(), [&](const auto& project) {
      return project.name == each.budget.project;
    });
    if (view == projects.end()) view = projects.insert(view, {each.budget.project});
    view->spent = BudgetReason(each, prices.currency());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SchedulerInput> ReadSchedulerInput(Database& db, const WorkerRegistry& registry,
                                                  int64_t now_us, Nanos margin) {
  SchedulerInput input;
  SFT_RETURN_IF_ERROR(AddNodes(db, registry, input));
  SFT_ASSIGN_OR_RETURN(input.pending, store::PendingJobs(db, SchedulerInput::kMaxPending));
  for (JobRecord& job : input.pending) {
    SFT_ASSIGN_OR_RETURN(job.schedule, store::GetSchedule(db, job.id));
  }
  SFT_ASSIGN_OR_RETURN(input.promises, store::AllPromises(db));
  SFT_ASSIGN_OR_RETURN(input.live, LoadLive(db));
  if (HasLostParts(input.live, input.nodes, now_us)) {
    input.waits_for_time = input.nodes_changed = true;
  }
  SFT_RETURN_IF_ERROR(AddRunning(db, input.live, now_us, input.snapshot));
  SFT_RETURN_IF_ERROR(AddBudgets(db, now_us, input));
  SFT_RETURN_IF_ERROR(AddPending(db, registry, now_us, margin, input));
  SFT_ASSIGN_OR_RETURN(input.explanations,
                       ExplainStuckJobs(db, registry, input.live, input.nodes, now_us));
  return input;
}

absl::StatusOr<sched::ResumeChoice> ChooseFor(Database& db, const WorkerRegistry& registry,
                                              const JobRecord& job, Nanos margin) {
  SFT_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints, ResumeCandidates(db, job));
  if (checkpoints.empty()) return sched::ResumeChoice();
  SFT_ASSIGN_OR_RETURN(const RestartRules rules, ReadRestartRules(db, job));
  // Reads only the nodes that are named: many jobs may ask on a large fleet.
  std::map<std::string, sched::Holder> holders;
  for (const CheckpointRecord& checkpoint : checkpoints) {
    for (const CheckpointPart& part : checkpoint.parts) {
      if (part.place != CheckpointPlace::kNode || holders.contains(part.node)) continue;
      SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, part.node));
      if (known) holders[part.node] = {IsGivenUp(registry.Get(part.node), rules, margin)};
    }
  }
  return sched::ChooseResume(checkpoints, holders);
}

}  // namespace sft::server
