#include "server/fleet/fleet_catalog.h"

#include <algorithm>
#include <utility>

#include "common/hub/model_name.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"
#include "sft/v1/node.pb.h"

namespace sft::server {
namespace {

// Limits on cached names that people typed, which need not be models.
constexpr size_t kMaxKept = 1000, kMaxName = 1000;

FleetCatalog::Fleet Summarise(const std::vector<NodeRecord>& nodes) {
  FleetCatalog::Fleet fleet;
  fleet.has_nodes = !nodes.empty();
  for (const NodeRecord& node : nodes) {
    std::map<std::string, int> count;
    for (const SlotRecord& slot : node.slots) {
      ++count[slot.gpu_type];
      FleetCatalog::Type& type = fleet.types[slot.gpu_type];
      type.memory = std::max(type.memory, slot.memory_bytes);
    }
    for (const auto& [name, slots] : count) {
      FleetCatalog::Type& type = fleet.types[name];
      type.most = std::max(type.most, slots);
      (node.simulated ? type.pretended : type.real) = true;
      type.nodes.push_back(node.name);
    }
  }
  return fleet;
}

}  // namespace

void FleetCatalog::Refresh() {
  // Read before the data: a change stored meanwhile makes the cache out of date again.
  const int64_t version = store_.fleet_version();
  const MutexLock lock(mutex_);
  if (version == version_) return;
  version_ = version;
  fleet_.reset();
  models_.clear();
}

absl::StatusOr<std::shared_ptr<const FleetCatalog::Fleet>> FleetCatalog::Get() {
  Refresh();
  int64_t version = 0;
  {
    const MutexLock lock(mutex_);
    if (fleet_ != nullptr) return fleet_;
    version = version_;
  }
  std::vector<NodeRecord> nodes;
  bool downloads = false, runs_graders = false;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(nodes, store::AllNodes(db));
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> left, store::LeftNodes(db));
    nodes.insert(nodes.end(), left.begin(), left.end());
    SFT_ASSIGN_OR_RETURN(const auto facts, store::AllFacts(db));
    for (const NodeRecord& node : nodes) {
      const auto found = facts.find(node.name);
      v1::NodeFacts said;
      if (found == facts.end() || !said.ParseFromString(found->second.facts)) continue;
      downloads = downloads || !said.hub().endpoint().empty();
      runs_graders = runs_graders || said.graders().roots_size() > 0;
    }
    return absl::OkStatus();
  }));
  Fleet summary = Summarise(nodes);
  summary.downloads = downloads;
  summary.runs_graders = runs_graders;
  auto fleet = std::make_shared<const Fleet>(std::move(summary));
  const MutexLock lock(mutex_);
  if (version_ == version) fleet_ = fleet;
  return std::shared_ptr<const Fleet>(std::move(fleet));
}

absl::StatusOr<std::shared_ptr<const ModelRecord>> FleetCatalog::FindModel(
    const std::string& model) {
  Refresh();
  int64_t version = 0;
  {
    const MutexLock lock(mutex_);
    const auto known = models_.find(model);
    if (known != models_.end()) return known->second;
    version = version_;
  }
  std::shared_ptr<const ModelRecord> found;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(auto record, store::FindModel(db, model));
    if (const auto name = hub::ParseModelName(model);
        !record.has_value() && name && !name->revision.empty()) {
      SFT_ASSIGN_OR_RETURN(record, store::FindSnapshot(db, name->id, name->revision));
    }
    if (record.has_value()) found = std::make_shared<const ModelRecord>(*std::move(record));
    return absl::OkStatus();
  }));
  const MutexLock lock(mutex_);
  if (models_.size() >= kMaxKept) models_.clear();
  if (version_ == version && model.size() <= kMaxName) models_[model] = found;
  return found;
}

}  // namespace sft::server
