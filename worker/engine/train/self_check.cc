#include "worker/engine/train/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/plan/tensors.h"
#include "common/spec/module_patterns.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/kernels/batch_shape.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr size_t kProbeTokens = 16;  // of a short document; of a long one, those compared
// Of the first of two long documents; the second is a little shorter, so that they are no dense
// batch for cuDNN, which the second alone is.
constexpr int64_t kShorterBy = 16;
constexpr int64_t kLongProbeTokens = kShortestForCudnn + kShorterBy;
constexpr size_t kNamesShown = 8;

// Differences that products of another size or type explain, as parts of the largest logit.
constexpr double kRoundingFp32 = 1e-3;
constexpr double kRounding16Bits = 0.1;

// Of a document alone in 16 bits, where its products and its attention are other kernels: 0.075 was
// seen of 16 tokens and 0.13 of 256 in 62 layers of random weights. A document whose positions do
// not begin anew has other logits altogether.
constexpr double kAlone16Bits = 0.5;

double RoundingOf(const Tensor& logits) {
  return logits.scalar_type() == at::kFloat ? kRoundingFp32 : kRounding16Bits;
}

MicroBatch Pack(const ProbeDocuments& documents) {
  MicroBatch batch;
  for (const std::vector<int32_t>& document : documents) {
    const std::vector<uint8_t> no_loss(document.size(), 0);
    batch.Append({.tokens = document, .loss = no_loss});
  }
  return batch;
}

double DifferenceOf(const Tensor& logits, const Tensor& other) {
  const Tensor reference = logits.to(at::kFloat);
  const double largest = reference.abs().max().item<double>();
  const double difference = (other.to(at::kFloat) - reference).abs_().max().item<double>();
  return largest > 0 ? difference / largest : difference;
}

// The numbers of the tokens to compare, all over a document that begins at `first`.
std::vector<int64_t> TokensOf(size_t first, size_t length) {
  const size_t count = std::min(length, kProbeTokens);
  std::vector<int64_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t step = count > 1 ? i * (length - 1) / (count - 1) : 0;
    tokens[i] = static_cast<int64_t>(first + step);
  }
  return tokens;
}

// The scales are those that the job trained with.
void CheckScales(const ModelLayout& layout, const spec::JobSpec& spec, const Adapter& adapter,
                 const std::filesystem::path& dir) {
  const auto sizes = spec::LoraSizes::Make(spec.lora);
  if (!sizes.ok()) throw InternalError(std::string(Message(sizes.status())));
  for (const LoraPair& pair : adapter.pairs) {
    const double scale = sizes->ScaleOf(plan::RuntimeModule(layout.prefix(), pair.module));
    if (pair.scale == scale) continue;
    throw InternalError(fmt::format("the job's adapter of {} is scaled by {}, that of {} by {}",
                                    pair.module, scale, dir.string(), pair.scale),
                        "diverged", "report this with the job file");
  }
}

// The delivered weights by the names of the layout, one at a time.
class DeliveredWeights {
 public:
  DeliveredWeights(const TrainingModel& model, const spec::JobSpec& spec,
                   const std::filesystem::path& dir, at::Device device) {
    if (spec.full_finetune()) {
      layout_ = MakeLayout(ReadConfig(dir));
      model_.emplace(dir, layout_, device);
      return;
    }
    const Adapter adapter = ReadAdapter(dir, model.layout().prefix());
    CheckScales(model.layout(), spec, adapter, dir);
    tensors_ = adapter.Values(model.layout().tied_head());
  }

  Tensor Read(const ParamInfo& param) const {
    if (model_) return model_->Read(param, 0, param.numel());
    return tensors_.at(param.name);
  }

 private:
  std::map<std::string, Tensor> tensors_;
  ModelLayout layout_;  // borrowed by model_
  std::optional<BaseWeights> model_;
};

}  // namespace

ProbeDocuments MakeProbe(const Dataset& rows) {
  ProbeDocuments probe;
  for (const int64_t row : {int64_t{0}, std::min<int64_t>(1, rows.size() - 1)}) {
    const std::span<const int32_t> tokens = rows.Get(row).tokens;
    const size_t count = std::min(tokens.size(), kProbeTokens);
    probe.emplace_back(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return probe;
}

std::optional<ProbeDocuments> MakeLongProbe(const Dataset& rows) {
  const int64_t longest = rows.stats().longest;
  if (longest < kShortestForCudnn) return std::nullopt;
  ProbeDocuments probe;
  for (const int64_t row : {int64_t{0}, std::min<int64_t>(1, rows.size() - 1)}) {
    const std::span<const int32_t> tokens = rows.Get(row).tokens;
    const int64_t length = probe.empty() ? std::min(longest, kLongProbeTokens)
                                         : static_cast<int64_t>(probe.front().size()) - kShorterBy;
    std::vector<int32_t>& document = probe.emplace_back();
    for (int64_t i = 0; i < length; ++i) document.push_back(tokens[i % tokens.size()]);
  }
  return probe;
}

double CheckPacking(const LogitsOf& logits, const ProbeDocuments& probe, bool has_experts) {
  const at::NoGradGuard no_grad;
  const std::vector<int32_t>& second = probe.back();
  const std::vector<int64_t> tokens = TokensOf(probe.front().size(), second.size());
  const Tensor packed = logits(Pack(probe), tokens);
  if (!packed.isfinite().all().item<bool>()) {
    throw UserError("the model's logits are not finite before any training", "bad_model",
                    "check the model's weights: some are NaN or infinite, or of another model");
  }
  ProbeDocuments changed = probe;
  for (int32_t& token : changed.front()) token = token > 0 ? token - 1 : token + 1;
  const Tensor other = logits(Pack(changed), tokens);
  const auto fail = [](const std::string& what) {
    throw InternalError("packed documents do not stay apart: " + what, "packing_leak",
                        "report this with the job file and the model's config.json");
  };
  const double rounding = packed.scalar_type() == at::kFloat ? kRoundingFp32 : kAlone16Bits;
  if (!packed.equal(other) && !(has_experts && DifferenceOf(packed, other) <= rounding)) {
    fail(
        fmt::format("other tokens in the first of two change the second's logits by {:.2g} of "
                    "the largest",
                    DifferenceOf(packed, other)));
  }
  const double difference =
      DifferenceOf(logits(Pack({second}), TokensOf(0, second.size())), packed);
  if (!(difference <= rounding)) {
    fail(
        fmt::format("the second of two has logits that differ by {:.2g} of the largest from those "
                    "it has alone",
                    difference));
  }
  return difference;
}

void CheckAdaptersTrained(const TrainingModel& model) {
  std::vector<std::string> untrained;
  size_t adapters = 0;
  const ModelLayout& layout = model.layout();
  for (int unit = 0; unit < layout.size(); ++unit) {
    for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
      const ParamInfo& param = layout.units[unit].params[i];
      if (param.role != ParamRole::kLoraB || !param.trainable) continue;
      ++adapters;
      const Tensor weight = model.Gather(unit, static_cast<int>(i));
      if (!weight.any().item<bool>()) untrained.emplace_back(param.module());
    }
  }
  if (untrained.empty()) return;
  const size_t count = untrained.size();
  if (count > kNamesShown) untrained.resize(kNamesShown);
  throw UserError(
      fmt::format("{} of the job's {} adapters learned nothing, their factor B is still zero: {}{}",
                  count, adapters, fmt::join(untrained, ", "), count > kNamesShown ? ", ..." : ""),
      "adapter_untrained",
      "train for more steps or with a higher learning_rate, or leave these layers out of "
      "lora.target_modules");
}

double CheckDelivered(TrainingModel& model, const spec::JobSpec& spec,
                      const std::filesystem::path& dir, const ProbeDocuments& probe,
                      Communicator& comm) {
  const at::NoGradGuard no_grad;
  const MicroBatch batch = Pack(probe);
  const Tensor trained = model.Logits(batch);
  std::optional<DeliveredWeights> delivered;
  if (comm.rank() == 0) delivered.emplace(model, spec, dir, comm.device());
  const at::TensorOptions options(comm.device());
  const at::ScalarType type = spec.full_finetune() ? model.compute_type() : at::kFloat;
  model.SetTrained([&](const ParamInfo& param) {
    Tensor whole = at::empty(param.shape, options.dtype(type));
    if (delivered) whole.copy_(delivered->Read(param).view(param.shape));
    comm.Broadcast(whole, 0);
    return whole;
  });
  const double difference = DifferenceOf(trained, model.Logits(batch));
  if (!(difference <= RoundingOf(trained) / 10)) {
    throw InternalError(
        fmt::format("read back from {}, the trained weights give logits that differ by {:.2g} of "
                    "the largest from those that were trained",
                    dir.string(), difference),
        "diverged", "report this with the job file; the artifact must not be used");
  }
  return difference;
}

}  // namespace sft::engine
