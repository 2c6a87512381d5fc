#include "worker/engine/generate/generator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/generate/nf4_weights.h"
#include "worker/engine/generate/paged_decoder.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"
#include "worker/engine/weights/adapted_source.h"

namespace sft::engine {

using at::Tensor;

namespace {

at::ScalarType ComputeTypeOf(const GeneratorOptions& options) {
  if (options.compute != at::ScalarType::Undefined) return options.compute;
  return options.device.is_cpu() ? at::kFloat : at::kBFloat16;
}

std::unique_ptr<WeightSource> LoadWeights(const ModelLayout& layout, const BaseWeights& base,
                                          const std::map<std::string, Tensor>& replaced,
                                          const GeneratorOptions& choices) {
  auto source = std::make_unique<ResidentSource>(layout);
  bool has_nf4 = false;
  const auto options = at::TensorOptions(choices.device).dtype(ComputeTypeOf(choices));
  const std::unique_ptr<Communicator> alone = MakeLocalCommunicator(choices.device);
  for (int unit = 0; unit < layout.size(); ++unit) {
    source->AllocateMatrices(layout.units[unit], unit, options);
    for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
      const ParamInfo& param = layout.units[unit].params[i];
      has_nf4 |= param.quantized;
      if (param.quantized) continue;
      const int index = static_cast<int>(i);
      if (!source->Get(unit, index).defined()) {
        const bool exact = param.exact || param.role == ParamRole::kMagnitude;
        source->Set(unit, index,
                    at::empty(param.shape, exact ? options.dtype(at::kFloat) : options));
      }
      const auto found = replaced.find(param.name);
      if (found != replaced.end()) {
        source->Get(unit, index).copy_(found->second.view(param.shape));
      } else if (choices.quantized != nullptr && param.role == ParamRole::kLinear &&
                 !base.HoldsMxfp4(param)) {  // which the job kept as it is
        const Tensor weight = base.Read(param, 0, param.numel()).view(param.shape);
        source->Get(unit, index).copy_(AfterQuantizing(*choices.quantized, weight, *alone));
        base.Done(param);
      } else {
        base.Copy(param, source->Get(unit, index));
      }
    }
  }
  if (!has_nf4) return source;
  auto both = std::make_unique<ComposedSource>();
  both->Add(std::move(source));
  both->Add(std::make_unique<Nf4Weights>(layout, base));
  return both;
}

// Linear layers in NF4, but those that the adapter replaces.
void KeepAsNf4(ModelLayout& layout, const std::map<std::string, Tensor>& values) {
  std::set<std::string> replaced;
  for (const auto& [name, value] : values) {
    if (name.ends_with(".lora_magnitude_vector")) {
      throw UserError("an adapter with DoRA needs the base's weights as they are, not in NF4",
                      "bad_adapter", "leave generate.nf4 out");
    }
    replaced.insert(name);
  }
  MarkNf4(layout, replaced);
  for (const UnitInfo& unit : layout.units) {
    if (std::ranges::any_of(unit.params, &ParamInfo::quantized)) return;
  }
  throw UserError(
      "no linear layer of this model can be held in NF4: none has a multiple of 64 inputs",
      "bad_model", "leave generate.nf4 out");
}

}  // namespace

Generator::Generator(const GeneratorOptions& options)
    : options_(options), config_(ReadConfig(options.model_dir)), layout_(MakeLayout(config_)) {
  const at::NoGradGuard no_grad;
  const BaseWeights base(options_.model_dir, layout_, options_.device);
  std::map<std::string, Tensor> values;
  DecoderOptions decoder;
  if (!options_.adapter_dir.empty()) {
    const Adapter adapter = ReadAdapter(options_.adapter_dir, config_.prefix);
    values = AddAdapter(layout_, adapter);
    decoder.lora.scale = adapter.config.Scale();
    // Tensors of the adapter's that take the place of the base's own.
    for (const auto& [name, value] : values) {
      const bool beside = name.find(".lora_") != std::string::npos;
      if (!beside && !layout_.IsOtherPart(name)) optional_adapters_ = false;
    }
  }
  if (options_.nf4) KeepAsNf4(layout_, values);
  source_ = std::make_unique<AdaptedSource>(layout_, LoadWeights(layout_, base, values, options_),
                                            decoder.lora.scale);
  decoder_ = std::make_unique<Decoder>(config_, layout_, *source_, options_.device, decoder);
}

Generator::~Generator() = default;

std::unique_ptr<BatchGenerator> Generator::MakeBatch(const BatchOptions& options) {
  return std::make_unique<BatchGenerator>(config_, *decoder_, options_.device,
                                          ComputeTypeOf(options_), optional_adapters_, options);
}

int64_t Generator::CacheTokenBytes() const {
  return TokenBytesOf(*decoder_, ComputeTypeOf(options_));
}

int64_t Generator::StateBytes() const { return StateBytesOf(*decoder_, ComputeTypeOf(options_)); }

std::vector<int32_t> Generator::Generate(std::span<const int32_t> prompt, int max_tokens,
                                         std::span<const int32_t> stop_ids,
                                         const std::function<bool(int32_t)>& on_token) {
  const int64_t tokens = static_cast<int64_t>(prompt.size()) + max_tokens;
  const std::unique_ptr<BatchGenerator> batch = MakeBatch({.cache_tokens = tokens});
  batch->Add({.prompt = {prompt.begin(), prompt.end()},
              .max_new_tokens = max_tokens,
              .stop_ids = {stop_ids.begin(), stop_ids.end()},
              .on_token = on_token});
  std::vector<GenerationAnswer> answers;
  while (answers.empty()) answers = batch->Step();
  if (answers.front().reason == EndReason::kFailed) {
    throw UserError(answers.front().problem, "bad_logits");
  }
  return answers.front().tokens;
}

Tensor Generator::Logits(std::span<const int32_t> tokens) {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(tokens.size());
  DeviceBatch batch;
  batch.tokens = at::tensor(at::ArrayRef<int32_t>(tokens.data(), tokens.size()), at::kInt)
                     .to(options_.device, at::kLong);
  batch.positions = at::arange(count, at::TensorOptions(options_.device).dtype(at::kLong));
  batch.cu_seqlens = at::tensor({0, static_cast<int32_t>(count)}, at::kInt).to(options_.device);
  batch.lengths = {count};
  return decoder_->Logits(batch);
}

}  // namespace sft::engine
