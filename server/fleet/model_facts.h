#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "server/fleet/fleet_catalog.h"
#include "server/state/records.h"
#include "sft/v1/cluster_service.pb.h"

namespace sft::server {

// What users are told of a model that a node sees: family, size, and what fine-tuning it needs on
// the fleet's GPUs, computed from the config.json that the node reported (common/plan/needs.h).
// Answers are kept: plans take a tenth of a second for a type of GPU, and longer for models of many
// layers. One is made at a time. Thread-safe.
class ModelFacts {
 public:
  explicit ModelFacts(FleetCatalog& fleet) : fleet_(fleet) {}

  // A model whose config.json is refused has that as its problem, in the words of a submit.
  v1::NodeModel Describe(const ModelRecord& model) SFT_EXCLUDES(mutex_);

 private:
  std::optional<v1::NodeModel> Known(const std::string& key) SFT_EXCLUDES(mutex_);

  FleetCatalog& fleet_;
  Mutex planning_;  // held by who makes plans, and taken before mutex_
  Mutex mutex_;
  // By config.json, size and GPUs; without node and model.
  std::map<std::string, v1::NodeModel> known_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
