#include "worker/engine/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/huge_pages.h"
#include "worker/engine/optim/adamw_state.h"
#include "worker/engine/optim/dynamic_map.h"

namespace sft::engine {
namespace {

// Below this many elements 8-bit states keep fp32, as in bitsandbytes: small tensors (norms,
// biases) are sensitive and cost nothing.
constexpr int64_t kMinCodedElements = 4096;

bool Coded(spec::Optimizer kind, int64_t elements) {
  return kind == spec::Optimizer::kAdamW8bit && elements >= kMinCodedElements;
}

int64_t BlocksOf(int64_t elements) { return (elements + kOptimizerBlock - 1) / kOptimizerBlock; }

bool IsWeightType(at::ScalarType type) { return type == at::kFloat || type == at::kBFloat16; }

void CheckCopy(const OptimizerParam& param, const at::Tensor& copy) {
  const at::Tensor& weight = param.weight;
  if (copy.defined() &&
      (!copy.is_contiguous() || copy.numel() != weight.numel() ||
       !IsWeightType(copy.scalar_type()) || copy.scalar_type() == weight.scalar_type())) {
    throw InternalError(
        fmt::format("the copy of \"{}\" must be contiguous, as long as the weight "
                    "and of the other of the types fp32 and bf16",
                    param.name));
  }
}

void CheckParam(const OptimizerParam& param) {
  const at::Tensor& weight = param.weight;
  if (!weight.defined() || !weight.is_contiguous() || !IsWeightType(weight.scalar_type())) {
    throw InternalError(fmt::format(
        "the optimizer takes contiguous fp32 or bf16 weights; \"{}\" is not one", param.name));
  }
  CheckCopy(param, param.copy);
}

void CheckGrad(const OptimizerParam& param, const at::Tensor& grad) {
  if (!grad.is_contiguous() || !IsWeightType(grad.scalar_type()) ||
      grad.numel() != param.weight.numel() || grad.device() != param.weight.device()) {
    throw InternalError(fmt::format(
        "the gradient of \"{}\" must be contiguous, fp32 or bf16, of {} elements and on {}",
        param.name, param.weight.numel(), param.weight.device().str()));
  }
}

// What ops::AdamWStep takes as maps, on `device`.
at::Tensor MapTables(at::Device device) {
  std::vector<at::Tensor> tables;
  for (const DynamicMap* map : {&DynamicMap::Signed(), &DynamicMap::Unsigned()}) {
    for (const auto* table : {&map->values(), &map->midpoints()}) {
      tables.push_back(at::tensor(at::ArrayRef<float>(table->data(), table->size()), at::kFloat));
    }
  }
  return at::cat(tables).view({2, 2, 256}).to(device);
}

ops::AdamWFactors FactorsOf(const AdamWOptions& options, int64_t steps, double lr,
                            double grad_scale) {
  const auto t = static_cast<double>(steps);
  return {.keep = static_cast<float>(1 - lr * options.weight_decay),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .step_size = static_cast<float>(lr / (1 - std::pow(options.beta1, t))),
          .sqrt_bias2 = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, t))),
          .epsilon = static_cast<float>(options.epsilon),
          .grad_scale = static_cast<float>(grad_scale)};
}

}  // namespace

// Parameters that one call of ops::AdamWStep takes: those of equal types.
struct AdamW::Batches {
  std::vector<ops::AdamWTensors> batches;

  static bool IsOf(const ops::AdamWTensors& batch, const optim::Step& step) {
    return batch.weights[0].scalar_type() == step.weight.scalar_type() &&
           batch.weights[0].device() == step.weight.device() &&
           batch.grads[0].scalar_type() == step.grad.scalar_type() &&
           batch.m[0].scalar_type() == step.m->scalar_type() &&
           batch.copies.empty() != step.copy.defined();
  }

  void Add(const optim::Step& step) {
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const auto& other) { return IsOf(other, step); });
    if (batch == batches.end()) batch = batches.emplace(batches.end());
    batch->weights.push_back(step.weight);
    batch->grads.push_back(step.grad);
    if (step.copy.defined()) batch->copies.push_back(step.copy);
    batch->m.push_back(*step.m);
    batch->v.push_back(*step.v);
    if (step.m_absmax->defined()) {
      batch->m_absmax.push_back(*step.m_absmax);
      batch->v_absmax.push_back(*step.v_absmax);
    }
    batch->keys.push_back(static_cast<int64_t>(step.key));
    batch->offsets.push_back(step.offset);
  }

  void Run(const at::Tensor& maps, const ops::AdamWFactors& factors) const {
    for (const ops::AdamWTensors& batch : batches) ops::AdamWStep(batch, maps, factors);
  }
};

AdamWOptions AdamWOptionsOf(const spec::JobSpec& spec) {
  const auto& h = spec.hyperparameters;
  return {.kind = h.optimizer,
          .beta1 = h.adam_beta1,
          .beta2 = h.adam_beta2,
          .epsilon = h.adam_epsilon,
          .weight_decay = h.weight_decay,
          .seed = h.seed};
}

int64_t AdamWStateBytes(spec::Optimizer kind, int64_t elements) {
  if (Coded(kind, elements)) {
    return 2 * (elements + BlocksOf(elements) * static_cast<int64_t>(sizeof(float)));
  }
  return 2 * elements * (kind == spec::Optimizer::kAdamWBf16 ? 2 : 4);
}

AdamW::AdamW(std::vector<OptimizerParam> params, const AdamWOptions& options)
    : params_(std::move(params)), options_(options) {
  states_.reserve(params_.size());
  for (const OptimizerParam& param : params_) {
    CheckParam(param);
    const int64_t elements = param.weight.numel();
    const auto on = at::TensorOptions().device(param.weight.device());
    State state;
    if (Coded(options_.kind, elements)) {
      state.m = at::zeros({elements}, on.dtype(at::kByte));
      state.v = at::zeros({elements}, on.dtype(at::kByte));
      state.m_absmax = at::zeros({BlocksOf(elements)}, on.dtype(at::kFloat));
      state.v_absmax = at::zeros({BlocksOf(elements)}, on.dtype(at::kFloat));
      if (!maps_.defined() && param.weight.is_cuda()) maps_ = MapTables(param.weight.device());
    } else {
      const auto type = options_.kind == spec::Optimizer::kAdamWBf16 ? at::kBFloat16 : at::kFloat;
      for (at::Tensor* moment : {&state.m, &state.v}) {
        *moment = at::empty({elements}, on.dtype(type));
        AdviseHugePages(*moment);
        moment->zero_();
      }
    }
    states_.push_back(std::move(state));
  }
}

AdamW::~AdamW() = default;

void AdamW::BeginStep(double lr, double grad_scale) {
  ++steps_;
  lr_ = lr;
  grad_scale_ = grad_scale;
}

void AdamW::StepOne(size_t index, const at::Tensor& grad, const at::Tensor& copy,
                    Batches* batches) {
  const OptimizerParam& param = params_[index];
  if (!grad.defined() || param.weight.numel() == 0) return;
  CheckGrad(param, grad);
  const ops::AdamWFactors factors = FactorsOf(options_, steps_, lr_, grad_scale_);
  const uint64_t key = optim::Mix64(options_.seed ^ optim::Mix64(static_cast<uint64_t>(steps_)));
  const State& state = states_[index];
  const optim::Step step{
      .weight = param.weight,
      .grad = grad,
      .copy = copy,
      .m = &state.m,
      .v = &state.v,
      .m_absmax = &state.m_absmax,
      .v_absmax = &state.v_absmax,
      .key = optim::Mix64(key ^ static_cast<uint64_t>(param.id)),
      .offset = param.offset,
      .factors = factors,
  };
  if (options_.step != nullptr) {
    options_.step(step);
  } else if (param.weight.is_cuda()) {
    batches->Add(step);
  } else {
    optim::StepCpu(step);
  }
}

void AdamW::StepParam(size_t index, const at::Tensor& grad, const at::Tensor& copy) {
  at::NoGradGuard no_grad;
  Batches batches;
  CheckCopy(params_[index], copy);
  StepOne(index, grad, copy, &batches);
  batches.Run(maps_, FactorsOf(options_, steps_, lr_, grad_scale_));
}

void AdamW::Step(std::span<const at::Tensor> grads, double lr, double grad_scale) {
  if (grads.size() != params_.size()) {
    throw InternalError(
        fmt::format("{} gradients for {} parameters", grads.size(), params_.size()));
  }
  at::NoGradGuard no_grad;
  BeginStep(lr, grad_scale);
  Batches batches;
  for (size_t i = 0; i < params_.size(); ++i) StepOne(i, grads[i], params_[i].copy, &batches);
  batches.Run(maps_, FactorsOf(options_, steps_, lr_, grad_scale_));
}

int64_t AdamW::StateBytes() const {
  int64_t bytes = 0;
  for (const State& state : states_) {
    bytes += static_cast<int64_t>(state.m.nbytes() + state.v.nbytes());
    if (state.coded()) {
      bytes += static_cast<int64_t>(state.m_absmax.nbytes() + state.v_absmax.nbytes());
    }
  }
  return bytes;
}

}  // namespace sft::engine
