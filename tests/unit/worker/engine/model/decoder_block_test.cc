#include "worker/engine/model/decoder_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/weights/adapted_source.h"

namespace sft::plan {

static void PrintTo(Recompute recompute, std::ostream* out) {
  *out << (recompute == Recompute::kNorms ? "Norms" : "Mlp");
}

}  // namespace sft::plan

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;

constexpr int64_t kTokens = 24;

// The first block of a model of random weights with adapters, its weights in matrices with room.
class DecoderBlockTest : public ::testing::TestWithParam<Recompute> {
 protected:
  DecoderBlockTest() {
    PrepareLayout(layout_, {.training = {.mode = spec::Mode::kLora}});
    auto source = std::make_unique<ResidentSource>(layout_);
    source->AllocateMatrices(layout_.units[1], 1, at::kFloat);
    for (int i = 0; i < static_cast<int>(layout_.units[1].params.size()); ++i) {
      const Tensor values = at::randn(layout_.units[1].params[i].shape).mul_(0.1);
      if (source->Get(1, i).defined()) {
        source->Get(1, i).copy_(values);
      } else {
        source->Set(1, i, values);
      }
    }
    source_ = std::make_unique<AdaptedSource>(layout_, std::move(source), 2.0);
  }

  DecoderBlock::Saved Forward(bool drops) {
    const AcquiredUnit unit(*source_, layout_, 1);
    const DropoutKey key{7};
    const Pass pass{unit.weights(), {2.0, 0.1}, drops ? &key : nullptr};
    const Rope rope(config_.ropes[0], config_.head_dim, at::kCPU);
    const BlockContext context{{at::tensor({0, static_cast<int>(kTokens)}, at::kInt), {kTokens}},
                               {rope.Tables(at::arange(kTokens))}};
    DecoderBlock::Saved saved;
    DecoderBlock::Bind(config_, layout_.units[1], 0)
        .Forward(at::randn({kTokens, config_.hidden}), context, pass, {.recompute = GetParam()},
                 &saved);
    return saved;
  }

  ModelConfig config_ = ParseConfig(
      R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64})",
      "config.json");
  ModelLayout layout_ = MakeLayout(config_);
  std::unique_ptr<AdaptedSource> source_;
};

// The products of first factors stand in the spare columns of what they read: kept so, they would
// keep all of that, which the plan counts as freed.
TEST_P(DecoderBlockTest, WhatIsComputedAgainIsNotKeptByTheAdaptersProducts) {
  const at::NoGradGuard no_grad;
  for (const bool drops : {false, true}) {
    const DecoderBlock::Saved saved = Forward(drops);
    for (const Tensor& xa : {saved.attention.qkv_xa, saved.mlp.gate_up_xa, saved.mlp.down_xa}) {
      if (!xa.defined()) continue;
      EXPECT_EQ(xa.storage().nbytes(), xa.nbytes()) << "drops " << drops << " " << xa.sizes();
    }
    EXPECT_TRUE(saved.mlp.down_xa.defined());
    EXPECT_TRUE(saved.attention.o_xa.is_alias_of(saved.attention.out)) << "that stays anyway";
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, DecoderBlockTest,
                         ::testing::Values(Recompute::kNorms, Recompute::kMlp),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace sft::engine
