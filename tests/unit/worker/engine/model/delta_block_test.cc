#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>

#include "common/plan/block.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/decoder_block.h"
#include "worker/engine/model/families.h"
#include "worker/engine/weights/adapted_source.h"

// Blocks with a gated DeltaNet or with attention that has an output gate: what they keep.

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;

constexpr int64_t kHybridTokens = 24;

// Both kinds of blocks of a model of random weights.
class DeltaBlockTest : public ::testing::TestWithParam<spec::Mode> {
 protected:
  DeltaBlockTest() {
    job_.training.mode = GetParam();
    job_.lora.target_modules = {"all-linear"};
    job_.lora.r = 2;
    PrepareLayout(layout_, job_);
    auto source = std::make_unique<ResidentSource>(layout_);
    for (const int unit : {1, 2}) {
      source->AllocateMatrices(layout_.units[unit], unit, at::kFloat);
      for (int i = 0; i < static_cast<int>(layout_.units[unit].params.size()); ++i) {
        const Tensor values = at::randn(layout_.units[unit].params[i].shape).mul_(0.1);
        if (source->Get(unit, i).defined()) {
          source->Get(unit, i).copy_(values);
        } else {
          source->Set(unit, i, values);
        }
      }
    }
    source_ = std::make_unique<AdaptedSource>(layout_, std::move(source), 2.0);
  }

  DecoderBlock::Saved Forward(int64_t layer, Recompute level) {
    const int index = static_cast<int>(layer) + 1;
    const AcquiredUnit unit(*source_, layout_, index);
    const Pass pass{unit.weights(), {2.0, 0.0}, nullptr};
    const Rope rope(config_.ropes[0], config_.head_dim, at::kCPU);
    const BlockContext context{
        {at::tensor({0, static_cast<int>(kHybridTokens)}, at::kInt), {kHybridTokens}},
        {rope.Tables(at::arange(kHybridTokens))}};
    DecoderBlock::Saved saved;
    DecoderBlock::Bind(config_, layout_.units[index], layer)
        .Forward(at::randn({kHybridTokens, config_.hidden}), context, pass, {.recompute = level},
                 &saved);
    return saved;
  }

  // All memory that is held, whoever shares it.
  static int64_t BytesOf(const DecoderBlock::Saved& saved) {
    std::map<const void*, int64_t> storages;
    for (const Tensor& tensor : {saved.input,
                                 saved.input_normed,
                                 saved.input_statistics,
                                 saved.middle,
                                 saved.middle_normed,
                                 saved.middle_statistics,
                                 saved.attention.qkv,
                                 saved.attention.q,
                                 saved.attention.k,
                                 saved.attention.out,
                                 saved.attention.gated,
                                 saved.attention.lse,
                                 saved.attention.qkv_xa,
                                 saved.attention.o_xa,
                                 saved.delta.projected,
                                 saved.delta.convolved,
                                 saved.delta.heads,
                                 saved.delta.rstd,
                                 saved.delta.normed,
                                 saved.delta.in_xa,
                                 saved.delta.out_xa,
                                 saved.mlp.gate_up,
                                 saved.mlp.activated,
                                 saved.mlp.gate_up_xa,
                                 saved.mlp.down_xa}) {
      if (!tensor.defined()) continue;
      storages[tensor.storage().data()] = static_cast<int64_t>(tensor.storage().nbytes());
    }
    int64_t bytes = 0;
    for (const auto& [storage, size] : storages) bytes += size;
    return bytes;
  }

  spec::JobSpec job_;
  ModelConfig config_ = ParseConfig(
      R"({"model_type": "qwen3_5_text", "vocab_size": 96, "hidden_size": 64,
        "intermediate_size": 256, "num_hidden_layers": 2, "full_attention_interval": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 32, "max_position_embeddings": 64})",
      "config.json");
  ModelLayout layout_ = MakeLayout(config_);
  std::unique_ptr<AdaptedSource> source_;
};

TEST_P(DeltaBlockTest, WhatIsKeptIsWhatThePlanCounts) {
  const at::NoGradGuard no_grad;
  const auto costs = plan::CostsOfBlocks(config_, job_, /*element_bytes=*/4);
  for (const int64_t layer : {0, 1}) {
    ASSERT_EQ(config_.Layer(layer).delta, layer == 0);
    for (int level = 0; level < plan::kRecomputeLevels; ++level) {
      SCOPED_TRACE(testing::Message()
                   << "layer " << layer << ", " << plan::NameOf(static_cast<Recompute>(level)));
      const auto counted = static_cast<double>(costs[layer].saved[level] * kHybridTokens);
      const auto kept = static_cast<double>(BytesOf(Forward(layer, static_cast<Recompute>(level))));
      // Rows with room for adapters are of fewer columns in fp32 than in bf16, which it counts.
      EXPECT_GE(kept, (GetParam() == spec::Mode::kLora ? 0.8 : 0.98) * counted);
      EXPECT_LE(kept, 1.02 * counted);
    }
  }
}

TEST_P(DeltaBlockTest, WhatIsComputedAgainIsNotKeptByTheAdaptersProducts) {
  const at::NoGradGuard no_grad;
  for (const int64_t layer : {0, 1}) {
    for (const Recompute level : {Recompute::kNorms, Recompute::kMlp}) {
      const DecoderBlock::Saved saved = Forward(layer, level);
      for (const Tensor& xa : {saved.attention.qkv_xa, saved.attention.o_xa, saved.delta.in_xa,
                               saved.delta.out_xa, saved.mlp.gate_up_xa, saved.mlp.down_xa}) {
        if (!xa.defined()) continue;
        EXPECT_EQ(xa.storage().nbytes(), xa.nbytes()) << plan::NameOf(level) << " " << xa.sizes();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, DeltaBlockTest,
                         ::testing::Values(spec::Mode::kLora, spec::Mode::kFullFinetune),
                         [](const auto& info) {
                           return info.param == spec::Mode::kLora ? "Adapters" : "Whole";
                         });

}  // namespace
}  // namespace sft::engine
