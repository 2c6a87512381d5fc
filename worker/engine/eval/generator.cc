#include "worker/engine/eval/generator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/dist/communicator.h"
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

std::vector<int64_t> Shape(const Tensor& tensor) { return tensor.sizes().vec(); }

bool Has(const ModelLayout& layout, const std::string& name, const Tensor& value) {
  for (const UnitInfo& unit : layout.units) {
    const int param = unit.Find(name);
    if (param >= 0) return unit.params[param].shape == Shape(value);
  }
  return false;
}

// Appends the adapter's factors to the units of their modules; returns their values by name.
std::map<std::string, Tensor> AddFactors(ModelLayout& layout, const Adapter& adapter) {
  std::map<std::string, Tensor> values = adapter.Values(layout.tied_head());
  for (const LoraPair& pair : adapter.pairs) {
    if (layout.IsOtherPart(pair.module)) continue;  // a vision tower's do not act on text
    bool found = false;
    for (UnitInfo& unit : layout.units) {
      const int weight = unit.Find(pair.module + ".weight");
      if (weight < 0 || unit.params[weight].role != ParamRole::kLinear) continue;
      const std::vector<int64_t>& shape = unit.params[weight].shape;
      if (pair.a.size(1) != shape[1] || pair.b.size(0) != shape[0]) break;
      unit.params.push_back({pair.module + ".lora_A.weight", Shape(pair.a), ParamRole::kLoraA});
      unit.params.push_back({pair.module + ".lora_B.weight", Shape(pair.b), ParamRole::kLoraB});
      if (pair.magnitude.defined()) {
        unit.params.push_back(
            {pair.module + ".lora_magnitude_vector", Shape(pair.magnitude), ParamRole::kMagnitude});
      }
      found = true;
      break;
    }
    if (!found) {
      throw UserError("the adapter changes " + pair.module +
                          ", which the model does not have as a linear layer of that shape",
                      "bad_adapter", "give the base model that the adapter was trained on");
    }
  }
  for (const auto& [name, value] : values) {
    if (!layout.IsOtherPart(name) && !Has(layout, name, value)) {
      throw UserError("the adapter sets " + name + ", which the model does not have in that shape",
                      "bad_adapter", "give the base model that the adapter was trained on");
    }
  }
  return values;
}

std::unique_ptr<WeightSource> LoadWeights(const ModelLayout& layout, const BaseWeights& base,
                                          const std::map<std::string, Tensor>& replaced,
                                          at::ScalarType compute, at::Device device) {
  auto source = std::make_unique<ResidentSource>(layout);
  const auto options = at::TensorOptions(device).dtype(compute);
  for (int unit = 0; unit < layout.size(); ++unit) {
    source->AllocateMatrices(layout.units[unit], unit, options);
    for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
      const ParamInfo& param = layout.units[unit].params[i];
      const int index = static_cast<int>(i);
      if (!source->Get(unit, index).defined()) {
        const bool exact = param.role == ParamRole::kMagnitude;
        source->Set(unit, index,
                    at::empty(param.shape, exact ? options.dtype(at::kFloat) : options));
      }
      const auto found = replaced.find(param.name);
      if (found != replaced.end()) {
        source->Get(unit, index).copy_(found->second.view(param.shape));
      } else {
        base.Copy(param, source->Get(unit, index));
      }
    }
  }
  return source;
}

// One query against the keys before it: q [1, heads, D], k and v [keys, key heads, D].
Tensor AttendOne(const SelfAttention& attention, const Tensor& q, const Tensor& k,
                 const Tensor& v) {
  const int64_t group = attention.heads / attention.kv_heads;
  const Tensor rows = q.reshape({attention.kv_heads, group, attention.head_dim});
  const Tensor scores = at::matmul(rows, k.permute({1, 2, 0})).to(at::kFloat).mul_(attention.scale);
  const Tensor weights = at::softmax(scores, -1).to(v.scalar_type());
  return at::matmul(weights, v.permute({1, 0, 2})).reshape({1, -1});
}

// True if a document of `length` tokens is the longest whose rotations are those of shorter ones.
bool TurnsAnewAt(const ModelConfig& config, int64_t length) {
  return std::any_of(config.ropes.begin(), config.ropes.end(), [length](const RopeOptions& rope) {
    return rope.type == RopeType::kLongRope && rope.original_max_positions == length;
  });
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
    values = AddFactors(layout_, adapter);
    decoder.lora.scale = adapter.config.Scale();
  }
  source_ = std::make_unique<AdaptedSource>(
      layout_, LoadWeights(layout_, base, values, ComputeTypeOf(options_), options_.device),
      decoder.lora.scale);
  decoder_ = std::make_unique<Decoder>(config_, layout_, *source_, options_.device, decoder);
}

Generator::~Generator() = default;

Tensor Generator::Step(std::span<const int32_t> tokens, int64_t past,
                       std::vector<LayerCache>& cache) {
  const auto count = static_cast<int64_t>(tokens.size());
  const auto on_device = at::TensorOptions(options_.device).dtype(at::kLong);
  const Tensor ids = at::tensor(at::ArrayRef<int32_t>(tokens.data(), tokens.size()), at::kInt)
                         .to(options_.device, at::kLong);
  const std::vector<int64_t> lengths = {count};
  const Tensor cu_seqlens =
      at::tensor({0, static_cast<int32_t>(count)}, at::kInt).to(options_.device);
  Tensor whole;  // the document so far, where its length counts
  if (decoder_->depends_on_length()) whole = at::tensor({int64_t{0}, past + count}, on_device);
  const Tensor positions = at::arange(past, past + count, on_device);
  const BlockContext context{
      {cu_seqlens, lengths}, decoder_->RopeTablesOf(positions, whole), decoder_->MakeLinks()};
  Tensor x = decoder_->Embed(ids, positions);
  context.links->inputs = decoder_->InputsOfLayers(ids, x);
  for (size_t layer = 0; layer < decoder_->blocks().size(); ++layer) {
    const DecoderBlock& block = decoder_->blocks()[layer];
    AcquiredUnit unit(*source_, layout_, static_cast<int>(layer) + 1);
    const Pass pass{unit.weights(), decoder_->lora(), nullptr};
    LayerCache& kept = cache[block.keys_of];
    x = block.ForwardWith(x, context, pass, [&](const SelfAttention::Heads& projected) {
      if (!block.attention.borrows) {
        kept.k.narrow(0, past, count).copy_(projected.k);
        kept.v.narrow(0, past, count).copy_(projected.v);
      }
      if (past == 0) {
        Tensor out = at::empty(projected.q.sizes(), projected.q.options());
        ops::Attention(out, projected.q, kept.k.narrow(0, 0, count), kept.v.narrow(0, 0, count),
                       context.documents, block.attention.scale, block.attention.window);
        return out.view({count, -1});
      }
      const int64_t window = block.attention.window;
      const int64_t first = window > 0 ? std::max<int64_t>(0, past + 1 - window) : 0;
      return AttendOne(block.attention, projected.q, kept.k.narrow(0, first, past + 1 - first),
                       kept.v.narrow(0, first, past + 1 - first));
    });
  }
  return decoder_->Head(x.narrow(0, count - 1, 1)).view({-1});
}

std::vector<int32_t> Generator::Generate(std::span<const int32_t> prompt, int max_tokens,
                                         std::span<const int32_t> stop_ids,
                                         const std::function<bool(int32_t)>& on_token) {
  const at::NoGradGuard no_grad;
  if (prompt.empty()) throw UserError("the prompt is empty", "bad_prompt", "give some text");
  const int64_t capacity = static_cast<int64_t>(prompt.size()) + max_tokens;
  if (config_.learned_positions > 0 && capacity > config_.learned_positions) {
    throw UserError(
        fmt::format("the model has a table of {} positions: a prompt of {} tokens and {} "
                    "new ones do not fit",
                    config_.learned_positions, prompt.size(), max_tokens),
        "bad_prompt", "give a shorter prompt, or ask for fewer tokens");
  }
  std::vector<LayerCache> cache;
  for (const DecoderBlock& block : decoder_->blocks()) {
    if (block.attention.borrows) {
      cache.emplace_back();  // that of another layer is read
      continue;
    }
    const auto options = at::TensorOptions(options_.device).dtype(ComputeTypeOf(options_));
    const int64_t heads = block.attention.kv_heads, size = block.attention.head_dim;
    cache.push_back(
        {at::empty({capacity, heads, size}, options), at::empty({capacity, heads, size}, options)});
  }
  std::vector<int32_t> generated;
  std::vector<int32_t> all(prompt.begin(), prompt.end());
  Tensor logits = Step(prompt, 0, cache);
  while (static_cast<int>(generated.size()) < max_tokens) {
    const auto token = static_cast<int32_t>(at::argmax(logits).item<int64_t>());
    if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) break;
    generated.push_back(token);
    if (on_token && !on_token(token)) break;
    if (static_cast<int>(generated.size()) == max_tokens) break;
    const auto past = static_cast<int64_t>(all.size());
    all.push_back(token);
    // Where longer documents turn at other frequencies, keys that were kept are of the wrong ones.
    logits = TurnsAnewAt(config_, past) ? Step(all, 0, cache)
                                        : Step(std::span(&all.back(), 1), past, cache);
  }
  return generated;
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
