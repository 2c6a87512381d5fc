#include "common/plan/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/round.h"
#include "common/plan/size_advice.h"

namespace sft::plan {
namespace {

int64_t RanksOf(const spec::JobSpec& job) { return job.parallelism.context_parallel_size; }

bool Divides(const ModelShape& shape, int64_t ranks) {
  if (shape.heads % ranks != 0) return false;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.Layer(layer).delta) {
      if (shape.delta.key_heads % ranks != 0) return false;  // and so of values
      continue;
    }
    const int64_t keys = shape.Layer(layer).kv_heads;
    if (keys % ranks != 0 && ranks % keys != 0) return false;
  }
  return true;
}

bool HasDeltaNets(const ModelShape& shape) {
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.Layer(layer).delta) return true;
  }
  return false;
}

std::string HeadsInWords(const ModelShape& shape) {
  const std::string words = fmt::format("{} heads with {} of keys", shape.heads, shape.kv_heads);
  if (!HasDeltaNets(shape)) return words;
  return fmt::format("{}, and its DeltaNets' {} heads of keys", words, shape.delta.key_heads);
}

}  // namespace

int64_t ShareOfTokens(int64_t tokens, const spec::JobSpec& job) {
  const int64_t ranks = RanksOf(job);
  return ranks == 1 ? tokens : RoundUp(tokens, ranks * kShareMultiple) / ranks;
}

ModelShape ShapeOfShare(const ModelShape& shape, const spec::JobSpec& job) {
  const int64_t ranks = job.context_in_node();
  if (ranks == 1) return shape;
  ModelShape share = shape;
  const auto keys = [&](int64_t heads) { return std::max<int64_t>(heads / ranks, 1); };
  share.heads /= ranks;
  share.kv_heads = keys(share.kv_heads);
  share.delta.key_heads /= ranks;
  share.delta.value_heads /= ranks;
  for (LayerShape& layer : share.layer_shapes) layer.kv_heads = keys(layer.kv_heads);
  return share;
}

ExchangedElements ExchangedOf(const ModelShape& shape, int64_t layer, const spec::JobSpec& job) {
  const int64_t ranks = job.context_in_node();
  if (ranks == 1) return {};
  const LayerShape sizes = shape.Layer(layer);
  if (sizes.delta) {
    return {shape.delta.channels() + 2 * shape.delta.value_heads, shape.delta.values()};
  }
  const int64_t keys = std::max(sizes.kv_heads, ranks);  // a copy for each rank at least
  return {(shape.heads + 2 * keys) * sizes.head_dim, shape.heads * sizes.head_dim};
}

int64_t GatheredOf(const ModelShape& shape, int64_t layer, const spec::JobSpec& job) {
  if (job.context_nodes() == 1) return 0;
  const LayerShape sizes = shape.Layer(layer);
  const int64_t keys = std::max<int64_t>(sizes.kv_heads / job.context_in_node(), 1);
  return RanksOf(job) * 2 * keys * sizes.head_dim;
}

std::optional<spec::Problem> CheckContext(const ModelShape& shape, const spec::JobSpec& job) {
  const int64_t ranks = RanksOf(job);
  if (ranks == 1) return std::nullopt;
  const auto problem = [](std::string why) {
    return spec::Problem{"hyperparameters.parallelism.context_parallel_size", 0, std::move(why)};
  };
  const auto advice = [&] {
    return SizeAdvice(
        shape, job, [&](int64_t count) { return Divides(shape, count); }, "leave it out");
  };
  if (job.context_nodes() > 1 && HasDeltaNets(shape)) {
    return problem(
        fmt::format("{} over {} nodes does not go with {} yet: its gated DeltaNets carry a state "
                    "from token to token; {}",
                    ranks, job.context_nodes(), shape.family, advice()));
  }
  if (Divides(shape, job.context_in_node())) return std::nullopt;
  return problem(fmt::format("{} does not divide the model's {}; {}",
                             job.context_nodes() > 1
                                 ? fmt::format("{} over nodes of {} GPUs, which share the heads,",
                                               ranks, job.compute.gpus_per_node)
                                 : std::to_string(ranks),
                             HeadsInWords(shape), advice()));
}

}  // namespace sft::plan
