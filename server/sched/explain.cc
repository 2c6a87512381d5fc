#include "server/sched/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/base/clock.h"

namespace sft::server::sched {
namespace {

constexpr size_t kNamesShown = 3;

std::string Variant(const PendingJob& job) {
  return fmt::format("{}-{}x", job.gpu_type, job.gpus_per_node);
}

// As Fleet::MakeShape decides, for one node: where a name without a revision is known to some
// nodes, the others do not download it.
bool SeesModel(const Snapshot& snapshot, const NodeView& node, const PendingJob& job) {
  const auto has = [&](const NodeView& each) {
    return std::find(each.models.begin(), each.models.end(), job.model) != each.models.end();
  };
  if (job.model.empty() || has(node)) return true;
  if (!job.on_hub || !node.downloads) return false;
  return job.model.find('@') != std::string::npos ||
         std::none_of(snapshot.nodes.begin(), snapshot.nodes.end(), has);
}

bool Reaches(const NodeView& node, const PendingJob& job) {
  const auto& only = job.only_nodes;
  return (only.empty() || std::find(only.begin(), only.end(), node.name) != only.end()) &&
         (!job.needs_shared || node.has_shared);
}

std::string NoSuchVariant(const Snapshot& snapshot, const PendingJob& job, const Fleet& fleet,
                          const Shape& shape) {
  if (snapshot.nodes.empty()) return "no worker has registered yet: start sft-worker on a node";
  int largest = 0;
  for (const int bin : shape.all) largest = std::max(largest, fleet.bin(bin).total);
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

std::string_view ProjectOf(const Snapshot& snapshot, const std::string& id) {
  for (const RunningJob& job : snapshot.running) {
    if (job.id == id) return job.project;
  }
  for (const PendingJob& job : snapshot.pending) {
    if (job.id == id) return job.project;
  }
  return {};
}

// The holders of a bin's slots, as members of the job's project may see them.
std::string Holders(const Snapshot& snapshot, const Bin& bin, const PendingJob& job) {
  std::vector<std::string> own;
  bool others = false;
  for (const std::string& id : bin.holders) {
    const bool same = ProjectOf(snapshot, id) == job.project;
    others = others || !same;
    if (same) own.push_back(id);
  }
  if (own.empty()) return "another project";
  return Some(own) + (others ? " and another project" : "");
}

std::string BuildText(const std::string& build) {
  return build.empty() ? "an sft-rank that does not say its build" : "sft-rank " + build;
}

// Why a job that fits a node that leaves may not begin there; empty where it may.
std::string WhyTooShort(const NodeView& node, const PendingJob& job, int64_t now_us) {
  if (node.jobs_until_us == 0) return "";
  const int64_t left_us = node.jobs_until_us - now_us;
  const std::string leaves =
      fmt::format("its jobs have to leave it at {}", FormatUtc(FromUnixMicros(node.jobs_until_us)));
  if (job.resumes) {
    return left_us >= node.least_stay_us ? "" : leaves + ", too soon for a checkpoint";
  }
  if (job.bound_us == 0) {
    return leaves + " and this one could not go on elsewhere: give it a scheduling.time_limit";
  }
  return left_us >= job.bound_us
             ? ""
             : leaves +
                   ", before this one ends by its time limit, and it could not go on elsewhere";
}

std::string DescribeNode(const Snapshot& snapshot, const Bin& bin, const PendingJob& job,
                         const Shape& shape) {
  const NodeView& node = *bin.node;
  std::string text = fmt::format("{} has {}", node.name, bin.total);
  if (!node.usable) return fmt::format("{} but is {}", text, node.unusable_reason);
  if (!SeesModel(snapshot, node, job)) {
    // A copy that somebody made by hand has no commit that another node could download.
    const char* why = !job.on_hub      ? ""
                      : node.downloads ? ", which names a copy that other nodes have"
                                       : ", and downloads none";
    return fmt::format("{} but does not see model {}{}", text, job.model, why);
  }
  if (node.protocol < job.protocol) {
    return fmt::format("{} but its worker is too old for {}: upgrade it", text, job.newer_keys);
  }
  if (!Reaches(node, job)) return fmt::format("{} but cannot reach the checkpoint", text);
  if (!node.left_out.empty() && shape.spares_left_out) {
    return fmt::format("{} but is {}", text, node.left_out);
  }
  if (job.nodes > 1 && node.rank_build != shape.rank_build) {
    return fmt::format("{} but runs {}, and not {} as others do: install one release on all", text,
                       BuildText(node.rank_build), BuildText(shape.rank_build));
  }
  if (const std::string why = WhyTooShort(node, job, snapshot.now_us); !why.empty()) {
    return fmt::format("{} but {}", text, why);
  }
  const int held = bin.healthy() - static_cast<int>(bin.free.size());
  if (bin.sick > 0) text += fmt::format(", {} not healthy", bin.sick);
  if (held > 0) text += fmt::format(", {} held by {}", held, Holders(snapshot, bin, job));
  return text;
}

std::string What(const PendingJob& job) {
  const std::string where =
      job.nodes == 1 ? "one node" : fmt::format("each of {} nodes", job.nodes);
  return fmt::format("{} x {} on {}{}", job.gpus_per_node, job.gpu_type, where,
                     job.exclusive ? " without other jobs" : "");
}

}  // namespace

std::string Some(const std::vector<std::string>& names) {
  if (names.size() <= kNamesShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kNamesShown, ", "),
                     names.size() - kNamesShown);
}

std::string InLine(const PendingJob& job) {
  return fmt::format("waiting in line for {}", What(job));
}

std::string WhyNoRoom(const Snapshot& snapshot, const PendingJob& job, const Fleet& fleet,
                      const Shape& shape) {
  std::vector<const Bin*> big;
  for (const int bin : shape.all) {
    if (fleet.bin(bin).total >= job.gpus_per_node) big.push_back(&fleet.bin(bin));
  }
  if (big.empty()) return NoSuchVariant(snapshot, job, fleet, shape);
  if (std::none_of(big.begin(), big.end(),
                   [&](const Bin* bin) { return SeesModel(snapshot, *bin->node, job); })) {
    return NoModel(snapshot, job);
  }
  if (static_cast<int>(big.size()) < job.nodes) {
    return fmt::format("waiting for {} nodes with {} x {} each: there {} {}", job.nodes,
                       job.gpus_per_node, job.gpu_type, big.size() == 1 ? "is" : "are", big.size());
  }
  std::vector<std::string> nodes;
  for (size_t i = 0; i < std::min(big.size(), kNamesShown); ++i) {
    nodes.push_back(DescribeNode(snapshot, *big[i], job, shape));
  }
  std::string list = fmt::format("{}", fmt::join(nodes, "; "));
  if (big.size() > kNamesShown) list += fmt::format("; {} more nodes", big.size() - kNamesShown);
  return fmt::format("waiting for {}: {}", What(job), list);
}

}  // namespace sft::server::sched
