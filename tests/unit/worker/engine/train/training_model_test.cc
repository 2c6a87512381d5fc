#include "worker/engine/train/training_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/documents.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kPad = 7;

class PadTokenTest : public testing::Test {
 protected:
  // Of the embedding of a full fine-tuning, [V, H], for a text with kPad in its middle.
  Tensor EmbeddingGradient(const std::string& config) {
    const at::NoGradGuard no_grad;
    WriteTinyModel(dir_.path(), TinyConfig(config));
    spec::JobSpec spec;
    spec.training.mode = spec::Mode::kFullFinetune;
    TrainingModel model(spec, dir_.path(), *comm_);
    MicroBatch batch;
    batch.tokens = {5, kPad, 9, 5, kPad, 11};
    batch.targets = {kPad, 9, 5, kPad, 11, MicroBatch::kIgnore};
    batch.positions = {0, 1, 2, 3, 4, 5};
    batch.loss_rows = {0, 1, 2, 3, 4};
    batch.cu_seqlens = {0, 6};
    batch.max_seqlen = 6;
    model.BeginStep();
    model.ForwardBackward(batch, 0, 0, /*last=*/true);
    model.ReduceGradients(1.0);
    return model.gradients()[0].view({kTinyVocabulary, -1}).clone();
  }

  // `gradient` without the row of kPad.
  static Tensor Others(const Tensor& gradient) {
    Tensor others = gradient.clone();
    others.select(0, kPad).zero_();
    return others;
  }

  TempDir dir_;
  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_F(PadTokenTest, LookupsOfThePadTokenDoNotTrainItsEmbedding) {
  const Tensor plain = EmbeddingGradient("");
  EXPECT_GT(plain[kPad].count_nonzero().item<int64_t>(), 0);
  // Torch takes negative indices as counted from the end.
  for (int64_t id : {kPad, kPad - kTinyVocabulary}) {
    const Tensor padded = EmbeddingGradient(", \"pad_token_id\": " + std::to_string(id));
    EXPECT_EQ(padded[kPad].count_nonzero().item<int64_t>(), 0) << id;
    EXPECT_TRUE(at::equal(Others(padded), Others(plain))) << id;
  }
}

TEST_F(PadTokenTest, TheTiedHeadStillTrainsTheRowOfThePadToken) {
  const std::string tied = R"(, "tie_word_embeddings": true)";
  const Tensor plain = EmbeddingGradient(tied);
  const Tensor padded = EmbeddingGradient(tied + R"(, "pad_token_id": 7)");
  EXPECT_GT(padded[kPad].count_nonzero().item<int64_t>(), 0);
  EXPECT_FALSE(at::equal(padded[kPad], plain[kPad]));
  EXPECT_TRUE(at::equal(Others(padded), Others(plain)));
}

TEST_F(PadTokenTest, AModelWithoutAPadTokenTrainsEveryLookup) {
  EXPECT_TRUE(at::equal(EmbeddingGradient(R"(, "pad_token_id": null)"), EmbeddingGradient("")));
}

// What a block reads of the gradient has room for its adapters, whichever block is the first with
// some.
TEST(AdaptedLayersTest, AnyLayerAloneMayHaveAdapters) {
  const at::NoGradGuard no_grad;
  const TempDir dir;
  WriteTinyModel(dir.path(), TinyConfig(""));
  const auto comm = MakeLocalCommunicator(at::kCPU);
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* module : {"mlp.down_proj", "self_attn.o_proj", "self_attn.q_proj"}) {
      spec::JobSpec spec;
      spec.training.mode = spec::Mode::kLora;
      spec.lora.target_modules = {std::string(layer) + module};
      TrainingModel model(spec, dir.path(), *comm);
      model.BeginStep();
      model.ForwardBackward(Documents({6}, 1, kTinyVocabulary), 0, 0, /*last=*/true);
      EXPECT_GT(model.ReduceGradients(1.0), 0.0) << layer << module;
    }
  }
}

}  // namespace
}  // namespace sft::engine
