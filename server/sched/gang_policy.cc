#include "server/sched/gang_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace sft::server::sched {
namespace {

constexpr size_t kNamesShown = 3;

std::string Some(const std::vector<std::string>& names) {
  if (names.size() <= kNamesShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kNamesShown, ", "),
                     names.size() - kNamesShown);
}

std::string Variant(const PendingJob& job) {
  return fmt::format("{}-{}x", job.gpu_type, job.gpus_per_node);
}

// What one node has of the job's slot type.
struct Supply {
  const NodeView* node = nullptr;
  int total = 0, sick = 0;
  std::vector<int> free;
  std::vector<std::string> holders;  // in slot order, each once
  bool sees_model = true;
  bool understands = true;     // what the job asks of its workers
  bool has_checkpoint = true;  // that the job goes on from can be reached
  bool left_out = false;       // and others can hold the job

  int healthy() const { return total - sick; }
  bool could_hold(const PendingJob& job) const {
    return node->usable && sees_model && understands && has_checkpoint && !left_out &&
           healthy() >= job.gpus_per_node;
  }
  bool can_take(const PendingJob& job) const {
    return could_hold(job) && static_cast<int>(free.size()) >= job.gpus_per_node;
  }
};

// Slots taken by placements of this decision, beside those of the snapshot.
using Taken = std::map<std::string, std::map<int, std::string>>;

Supply SupplyOf(const NodeView& node, const PendingJob& job, const Taken& taken) {
  Supply supply;
  supply.node = &node;
  supply.sees_model = job.model.empty() || std::find(node.models.begin(), node.models.end(),
                                                     job.model) != node.models.end();
  supply.understands = node.protocol >= job.protocol;
  const auto& only = job.only_nodes;
  supply.has_checkpoint =
      (only.empty() || std::find(only.begin(), only.end(), node.name) != only.end()) &&
      (!job.needs_shared || node.has_shared);
  const auto mine = taken.find(node.name);
  for (const SlotView& slot : node.slots) {
    if (slot.gpu_type != job.gpu_type) continue;
    ++supply.total;
    std::string holder = slot.job;
    if (mine != taken.end() && mine->second.contains(slot.index)) {
      holder = mine->second.at(slot.index);
    }
    if (!slot.healthy) ++supply.sick;
    if (!holder.empty()) {
      if (std::find(supply.holders.begin(), supply.holders.end(), holder) == supply.holders.end()) {
        supply.holders.push_back(holder);
      }
    } else if (slot.healthy) {
      supply.free.push_back(slot.index);
    }
  }
  return supply;
}

std::vector<Supply> SuppliesOf(const Snapshot& snapshot, const PendingJob& job,
                               const Taken& taken) {
  std::vector<Supply> supplies;
  for (const NodeView& node : snapshot.nodes) {
    Supply supply = SupplyOf(node, job, taken);
    if (supply.total > 0) supplies.push_back(std::move(supply));
  }
  const auto sound = [&](const Supply& s) { return s.node->left_out.empty() && s.could_hold(job); };
  if (std::count_if(supplies.begin(), supplies.end(), sound) >= job.nodes) {
    for (Supply& supply : supplies) supply.left_out = !supply.node->left_out.empty();
  }
  return supplies;
}

int CountCouldHold(const std::vector<Supply>& supplies, const PendingJob& job) {
  return static_cast<int>(std::count_if(supplies.begin(), supplies.end(),
                                        [&](const Supply& s) { return s.could_hold(job); }));
}

std::string NoSuchVariant(const Snapshot& snapshot, const PendingJob& job,
                          const std::vector<Supply>& supplies) {
  if (snapshot.nodes.empty()) return "no worker has registered yet: start sft-worker on a node";
  int largest = 0;
  for (const Supply& supply : supplies) largest = std::max(largest, supply.total);
  if (largest > 0) {
    return fmt::format("no node has {}; largest is {}-{}x", Variant(job), job.gpu_type, largest);
  }
  std::set<std::string> types;
  for (const NodeView& node : snapshot.nodes) {
    for (const SlotView& slot : node.slots) types.insert(slot.gpu_type);
  }
  return fmt::format("no node has {} (there is: {})", job.gpu_type,
                     types.empty() ? "nothing" : fmt::format("{}", fmt::join(types, ", ")));
}

std::string NoModel(const Snapshot& snapshot, const PendingJob& job) {
  std::set<std::string> seen;
  for (const NodeView& node : snapshot.nodes) seen.insert(node.models.begin(), node.models.end());
  return fmt::format("no node with {} sees model {} (seen: {})", Variant(job), job.model,
                     seen.empty() ? "none" : Some({seen.begin(), seen.end()}));
}

std::string DescribeNode(const Supply& supply, const PendingJob& job) {
  std::string text = fmt::format("{} has {}", supply.node->name, supply.total);
  if (!supply.node->usable) {
    return fmt::format("{} but is {}", text, supply.node->unusable_reason);
  }
  if (!supply.sees_model) return fmt::format("{} but does not see model {}", text, job.model);
  if (!supply.understands) {
    return fmt::format("{} but its worker is too old for {}: upgrade it", text, job.newer_keys);
  }
  if (!supply.has_checkpoint) return fmt::format("{} but cannot reach the checkpoint", text);
  if (supply.left_out) return fmt::format("{} but is {}", text, supply.node->left_out);
  const int held = supply.healthy() - static_cast<int>(supply.free.size());
  if (supply.sick > 0) text += fmt::format(", {} not healthy", supply.sick);
  if (held > 0) text += fmt::format(", {} held by {}", held, Some(supply.holders));
  return text;
}

std::string WhyWaiting(const Snapshot& snapshot, const PendingJob& job,
                       const std::vector<Supply>& supplies) {
  const auto enough_slots = [&](const Supply& s) { return s.total >= job.gpus_per_node; };
  const auto big = std::count_if(supplies.begin(), supplies.end(), enough_slots);
  if (big == 0) return NoSuchVariant(snapshot, job, supplies);
  if (std::none_of(supplies.begin(), supplies.end(),
                   [&](const Supply& s) { return enough_slots(s) && s.sees_model; })) {
    return NoModel(snapshot, job);
  }
  std::vector<std::string> nodes;
  for (const Supply& supply : supplies) {
    if (enough_slots(supply)) nodes.push_back(DescribeNode(supply, job));
  }
  if (big < job.nodes) {
    return fmt::format("waiting for {} nodes with {} x {} each: there {} {}", job.nodes,
                       job.gpus_per_node, job.gpu_type, big == 1 ? "is" : "are", big);
  }
  const std::string where =
      job.nodes == 1 ? "one node" : fmt::format("each of {} nodes", job.nodes);
  std::string list = fmt::format(
      "{}", fmt::join(nodes.begin(), nodes.begin() + std::min(nodes.size(), kNamesShown), "; "));
  if (nodes.size() > kNamesShown)
    list += fmt::format("; {} more nodes", nodes.size() - kNamesShown);
  return fmt::format("waiting for {} x {} on {}: {}", job.gpus_per_node, job.gpu_type, where, list);
}

// The placement that leaves the fewest free slots over; empty parts when it does not fit now.
Placement TryPlace(const PendingJob& job, std::vector<Supply> supplies) {
  std::erase_if(supplies, [&](const Supply& s) { return !s.can_take(job); });
  const auto place = [&](const Supply& s) {
    const auto pinned = std::find(job.only_nodes.begin(), job.only_nodes.end(), s.node->name);
    return std::tuple(pinned - job.only_nodes.begin(), s.node->name == job.avoid_node,
                      s.free.size(), s.node->name);
  };
  std::stable_sort(supplies.begin(), supplies.end(),
                   [&](const Supply& a, const Supply& b) { return place(a) < place(b); });
  Placement placement{job.id, {}};
  if (static_cast<int>(supplies.size()) < job.nodes) return placement;
  for (int i = 0; i < job.nodes; ++i) {
    const Supply& supply = supplies[i];
    placement.parts.push_back(
        {supply.node->name, {supply.free.begin(), supply.free.begin() + job.gpus_per_node}});
  }
  return placement;
}

}  // namespace

Decision Decide(const Snapshot& snapshot) {
  Decision decision;
  Taken taken;
  std::map<std::string, std::string> head_of_line;  // slot type → first waiting job
  for (const PendingJob& job : snapshot.pending) {
    const std::vector<Supply> supplies = SuppliesOf(snapshot, job, taken);
    const bool possible = CountCouldHold(supplies, job) >= job.nodes;
    const auto head = head_of_line.find(job.gpu_type);
    if (possible && head != head_of_line.end()) {
      decision.waiting.push_back(
          {job.id, fmt::format("waiting behind {}, which came first and waits "
                               "for {} slots too",
                               head->second, job.gpu_type)});
      continue;
    }
    Placement placement = TryPlace(job, supplies);
    if (placement.parts.empty()) {
      decision.waiting.push_back({job.id, WhyWaiting(snapshot, job, supplies)});
      if (possible) head_of_line.emplace(job.gpu_type, job.id);
      continue;
    }
    for (const Part& part : placement.parts) {
      for (const int slot : part.slots) taken[part.node][slot] = job.id;
    }
    decision.placements.push_back(std::move(placement));
  }
  return decision;
}

std::string Preview(const Snapshot& snapshot, const PendingJob& job) {
  Snapshot with_job = snapshot;
  with_job.pending.push_back(job);
  const Decision decision = Decide(with_job);
  for (const Placement& placement : decision.placements) {
    if (placement.job != job.id) continue;
    std::vector<std::string> nodes;
    for (const Part& part : placement.parts) nodes.push_back(part.node);
    return fmt::format("could start now on {}", Some(nodes));
  }
  for (const Waiting& waiting : decision.waiting) {
    if (waiting.job == job.id) return waiting.reason;
  }
  return "";
}

}  // namespace sft::server::sched
