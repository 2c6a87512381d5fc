#include "server/fleet/model_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/plan/gpu.h"
#include "common/plan/needs.h"
#include "common/plan/parameters.h"
#include "server/core/convert.h"

namespace sft::server {
namespace {

constexpr size_t kMostFacts = 1000;

// A type of GPU that needs are told for.
struct GpuType {
  std::string name;
  int64_t memory = 0;
  bool assumed = false;
};

// The fleet's, those with the most memory first; an H100 where it has none whose memory is known.
std::vector<GpuType> TypesOf(FleetCatalog& catalog) {
  std::vector<GpuType> types;
  if (const auto fleet = catalog.Get(); fleet.ok()) {
    for (const auto& [name, type] : (*fleet)->types) {
      if (name != "CPU" && type.memory > 0) types.push_back({name, type.memory});
    }
  }
  std::stable_sort(types.begin(), types.end(),
                   [](const GpuType& a, const GpuType& b) { return a.memory > b.memory; });
  if (types.empty()) types.push_back({"H100", 80'000'000'000, /*assumed=*/true});
  return types;
}

v1::ModelNeed ToProto(const plan::Need& need, const GpuType& type) {
  v1::ModelNeed proto;
  proto.set_gpu_type(type.name);
  proto.set_gpu_memory_bytes(type.memory);
  proto.set_assumed(type.assumed);
  proto.set_method(need.method);
  proto.set_smallest(need.smallest);
  proto.set_sequence_length(need.sequence_length);
  proto.set_gpus(need.gpus);
  proto.set_memory_bytes(need.memory_bytes);
  proto.set_tokens_per_second(need.tokens_per_second);
  const plan::GpuRates* rates = plan::FindGpu(type.name);
  proto.set_speed_from_peaks(need.tokens_per_second > 0 && !rates->measured);
  return proto;
}

v1::NodeModel FactsOf(const ModelRecord& model, const std::vector<GpuType>& types) {
  v1::NodeModel facts;
  const absl::StatusOr<plan::ModelConfig> config = plan::ParseModelConfig(model.config_json);
  if (!config.ok()) {
    facts.mutable_model()->set_problem(std::string(Message(config.status())));
    return facts;
  }
  facts.set_family(config->family);
  facts.set_parameters(plan::BaseParameters(*config));
  facts.set_active_parameters(plan::ActiveParameters(*config));
  facts.set_stored(plan::StoredText(*config, model.bytes));
  for (const GpuType& type : types) {
    for (const plan::Need& need : plan::NeedsOf(*config, type.name, type.memory)) {
      *facts.add_needs() = ToProto(need, type);
    }
  }
  return facts;
}

}  // namespace

std::optional<v1::NodeModel> ModelFacts::Known(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto known = known_.find(key);
  return known == known_.end() ? std::nullopt : std::make_optional(known->second);
}

v1::NodeModel ModelFacts::Describe(const ModelRecord& model) {
  v1::NodeModel described;
  // A folder without config.json has a problem that says so.
  if (!model.config_json.empty()) {
    const std::vector<GpuType> types = TypesOf(fleet_);
    std::string key = fmt::format("{} ", model.bytes);
    for (const GpuType& type : types) key += fmt::format("{} {} ", type.name, type.memory);
    key += model.config_json;
    std::optional<v1::NodeModel> known = Known(key);
    if (!known) {
      const MutexLock planning(planning_);
      known = Known(key);
      if (!known) {
        known = FactsOf(model, types);
        const MutexLock lock(mutex_);
        if (known_.size() >= kMostFacts) known_.clear();
        known_[std::move(key)] = *known;
      }
    }
    described = *std::move(known);
  }
  const std::string refused = described.model().problem();
  described.set_node(model.node);
  *described.mutable_model() = ToProto(model);
  if (model.problem.empty()) described.mutable_model()->set_problem(refused);
  return described;
}

}  // namespace sft::server
