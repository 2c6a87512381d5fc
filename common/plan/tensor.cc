#include "common/plan/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/parameters.h"
#include "common/plan/size_advice.h"
#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

// Elements of a row that have one scale in NF4: a cut between two leaves the codes as they are.
constexpr int64_t kNf4Block = 64;

int64_t RanksOf(const spec::JobSpec& job) { return job.parallelism.tensor_parallel_size; }

bool InFourBits(const spec::JobSpec& job) { return job.qlora() && job.quantization.bits == 4; }

// What stands in the way of so many ranks in a layer; empty: nothing.
std::string Obstacle(const ModelShape& shape, const LayerShape& layer, const spec::JobSpec& job,
                     int64_t ranks) {
  if (shape.heads % ranks != 0 || (layer.kv_heads % ranks != 0 && ranks % layer.kv_heads != 0)) {
    return fmt::format("does not divide the model's {} heads with {} of keys", shape.heads,
                       layer.kv_heads);
  }
  if (ranks > layer.kv_heads && NamesOf(shape).k == nullptr) {
    return fmt::format(
        "is more than the {} heads of keys, which this {} model has in one matrix with its queries",
        layer.kv_heads, shape.family);
  }
  if (layer.intermediate % ranks != 0) {
    return fmt::format("does not divide the intermediate size, {}", layer.intermediate);
  }
  if (!InFourBits(job)) return {};
  const std::pair<const char*, int64_t> inputs[] = {
      {"hidden size", shape.hidden},
      {"size of all heads", shape.heads / ranks * layer.head_dim},
      {"intermediate size", layer.intermediate / ranks}};
  for (const auto& [what, size] : inputs) {
    if (size % kNf4Block == 0) continue;
    return fmt::format(
        "leaves a rank {} elements of the {}: in 4 bits the ranks' parts are multiples of {}", size,
        what, kNf4Block);
  }
  return {};
}

std::string ObstacleOf(const ModelShape& shape, const spec::JobSpec& job, int64_t ranks) {
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    std::string obstacle = Obstacle(shape, shape.Layer(layer), job, ranks);
    if (!obstacle.empty()) return obstacle;
  }
  return {};
}

// What a model has that is not cut, whatever the number of ranks; null: nothing.
const char* NotCut(const ModelShape& shape) {
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.Layer(layer).delta) return "gated DeltaNets";
  }
  if (shape.HasExperts()) return "mixtures of experts";
  if (shape.qk_norm == QkNorm::kWhole) return "norms over all heads together";
  if (shape.layer_input > 0) return "layers with an input of their own";
  return nullptr;
}

}  // namespace

ModelShape ShapeOfTensorRank(const ModelShape& shape, const spec::JobSpec& job) {
  const int64_t ranks = RanksOf(job);
  if (ranks == 1) return shape;
  ModelShape own = shape;
  const auto keys = [&](int64_t heads) { return std::max<int64_t>(heads / ranks, 1); };
  own.heads /= ranks;
  own.kv_heads = keys(own.kv_heads);
  own.intermediate /= ranks;
  for (LayerShape& layer : own.layer_shapes) {
    layer.kv_heads = keys(layer.kv_heads);
    layer.intermediate /= ranks;
  }
  return own;
}

std::vector<TensorExchange> TensorExchangesOf(const ModelShape& shape, const spec::JobSpec& job) {
  std::vector<TensorExchange> exchanges(static_cast<size_t>(shape.layers));
  if (RanksOf(job) == 1) return exchanges;
  const auto matrices = MatricesOf(shape, job);
  for (size_t layer = 0; layer < exchanges.size(); ++layer) {
    TensorExchange& exchange = exchanges[layer];
    // Rows are gathered with their products with the adapters' first factors.
    const int64_t qkv = shape.hidden + matrices[layer].qkv.rank;
    const int64_t gate_up = shape.hidden + matrices[layer].gate_up.rank;
    exchange.forward = qkv + gate_up + 2 * shape.hidden;
    exchange.backward = exchange.forward;
    if (job.full_finetune()) exchange.backward += 2 * shape.hidden;  // what the linears read
    const bool output_again = NamesOf(shape).mlp_out_norm != nullptr;
    const int64_t attention = qkv + shape.hidden;
    const int64_t all = attention + gate_up + (output_again ? shape.hidden : 0);
    exchange.again = {0, 0, gate_up, all, all};
  }
  return exchanges;
}

std::optional<spec::Problem> CheckTensor(const ModelShape& shape, const spec::JobSpec& job) {
  const int64_t ranks = RanksOf(job);
  if (ranks == 1) return std::nullopt;
  const auto problem = [](std::string why) {
    return spec::Problem{"hyperparameters.parallelism.tensor_parallel_size", 0, std::move(why)};
  };
  if (const char* what = NotCut(shape)) {
    return problem(
        fmt::format("{} does not go with {} yet, which this {} model has: use fsdp = true, which "
                    "divides every layer over the GPUs",
                    ranks, what, shape.family));
  }
  if (job.hyperparameters.optimizer == spec::Optimizer::kAdamW8bit) {
    return problem(
        fmt::format("{} does not go with adamw_8bit yet: use \"adamw\" or \"adamw_bf16\"", ranks));
  }
  const std::string obstacle = ObstacleOf(shape, job, ranks);
  if (obstacle.empty()) return std::nullopt;
  const std::string advice = SizeAdvice(
      shape, job, [&](int64_t count) { return ObstacleOf(shape, job, count).empty(); },
      "leave it out, and use fsdp = true for models over one GPU");
  return problem(fmt::format("{} {}; {}", ranks, obstacle, advice));
}

}  // namespace sft::plan
