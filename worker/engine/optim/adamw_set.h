#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/optim/adamw.h"

namespace sft::engine {

// What the parameters of one AdamW have in common.
struct UpdateRule {
  bool decays = true;       // by the job's weight_decay
  double rate_ratio = 1.0;  // their learning rate over the step's

  auto operator<=>(const UpdateRule&) const = default;
};

// The parameters of a job, each updated by the AdamW of its rule. Thread-compatible.
class AdamWSet {
 public:
  // params[i] is updated by rules[i]; otherwise as AdamW.
  AdamWSet(const std::vector<OptimizerParam>& params, std::span<const UpdateRule> rules,
           const AdamWOptions& options);

  // As AdamW's, with `index` and grads[i] in the order of `params` above.
  void Step(std::span<const at::Tensor> grads, double lr, double grad_scale = 1.0);
  void BeginStep(double lr, double grad_scale = 1.0);
  void StepParam(size_t index, const at::Tensor& grad, const at::Tensor& copy);

  // One for each rule there is.
  std::vector<AdamW*> All() const;
  int64_t StateBytes() const;

 private:
  struct Group {
    double rate_ratio = 1.0;
    std::vector<size_t> params;  // of the set
    std::unique_ptr<AdamW> adamw;
  };
  struct Place {
    size_t group = 0;
    size_t index = 0;  // in its AdamW
  };

  std::vector<Group> groups_;
  std::vector<Place> places_;  // of each parameter
};

}  // namespace sft::engine
