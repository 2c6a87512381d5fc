#include "worker/engine/optim/adamw_set.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {

AdamWSet::AdamWSet(const std::vector<OptimizerParam>& params, std::span<const UpdateRule> rules,
                   const AdamWOptions& options) {
  if (params.size() != rules.size()) {
    throw InternalError(fmt::format("{} rules for {} parameters", rules.size(), params.size()));
  }
  // A rank that holds no part of anything trained counts steps all the same.
  std::map<UpdateRule, std::vector<size_t>> by_rule{{UpdateRule{}, {}}};
  for (size_t i = 0; i < params.size(); ++i) by_rule[rules[i]].push_back(i);
  places_.resize(params.size());
  for (auto& [rule, members] : by_rule) {
    std::vector<OptimizerParam> own;
    for (const size_t member : members) {
      places_[member] = {groups_.size(), own.size()};
      own.push_back(params[member]);
    }
    AdamWOptions its_options = options;
    if (!rule.decays) its_options.weight_decay = 0.0;
    groups_.push_back({rule.rate_ratio, std::move(members),
                       std::make_unique<AdamW>(std::move(own), its_options)});
  }
}

void AdamWSet::Step(std::span<const at::Tensor> grads, double lr, double grad_scale) {
  if (grads.size() != places_.size()) {
    throw InternalError(
        fmt::format("{} gradients for {} parameters", grads.size(), places_.size()));
  }
  for (const Group& group : groups_) {
    std::vector<at::Tensor> own;
    for (const size_t param : group.params) own.push_back(grads[param]);
    group.adamw->Step(own, lr * group.rate_ratio, grad_scale);
  }
}

void AdamWSet::BeginStep(double lr, double grad_scale) {
  for (const Group& group : groups_) group.adamw->BeginStep(lr * group.rate_ratio, grad_scale);
}

void AdamWSet::StepParam(size_t index, const at::Tensor& grad, const at::Tensor& copy) {
  const Place& place = places_.at(index);
  groups_[place.group].adamw->StepParam(place.index, grad, copy);
}

std::vector<AdamW*> AdamWSet::All() const {
  std::vector<AdamW*> all;
  for (const Group& group : groups_) all.push_back(group.adamw.get());
  return all;
}

int64_t AdamWSet::StateBytes() const {
  int64_t bytes = 0;
  for (const Group& group : groups_) bytes += group.adamw->StateBytes();
  return bytes;
}

}  // namespace sft::engine
