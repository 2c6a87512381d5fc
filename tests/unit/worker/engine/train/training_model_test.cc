#include "worker/engine/train/training_model.h"

#include <ATen/TensorOperators.h>
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

// A GPT-2 that drops out embeddings, outputs of sub-layers and probabilities.
class DropoutTest : public testing::Test {
 protected:
  struct Result {
    double loss = 0;
    std::vector<Tensor> gradients;
  };

  explicit DropoutTest(double p = 0.3) {
    const std::string rate = std::to_string(p);
    WriteTinyModel(dir_.path(), R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4,
        "n_positions": 16, "vocab_size": 96, "embd_pdrop": )" +
                                    rate + R"(, "resid_pdrop": )" + rate + R"(, "attn_pdrop": )" +
                                    rate + "}");
  }

  std::unique_ptr<TrainingModel> Model(plan::Recompute recompute = plan::Recompute::kNothing) {
    spec::JobSpec spec;
    spec.training.mode = spec::Mode::kFullFinetune;
    plan::ExecutionPlan run;
    run.deep = run.shallow = recompute;
    return std::make_unique<TrainingModel>(spec, dir_.path(), *comm_, run);
  }

  static MicroBatch Batch() {
    MicroBatch batch;
    batch.tokens = {5, 7, 9, 5, 8, 11};
    batch.targets = {7, 9, 5, 8, 11, MicroBatch::kIgnore};
    batch.positions = {0, 1, 2, 3, 4, 5};
    batch.loss_rows = {0, 1, 2, 3, 4};
    batch.cu_seqlens = {0, 6};
    batch.max_seqlen = 6;
    return batch;
  }

  static Result Run(TrainingModel& model, int64_t step) {
    const at::NoGradGuard no_grad;
    model.BeginStep();
    Result result;
    result.loss = model.ForwardBackward(Batch(), step, 0, /*last=*/true).item<double>();
    model.ReduceGradients(1.0);
    for (const Tensor& gradient : model.gradients()) result.gradients.push_back(gradient.clone());
    return result;
  }

  TempDir dir_;
  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_F(DropoutTest, MasksFollowTheStepAndARecomputedForwardDrawsThemAgain) {
  const auto model = Model();
  const Result first = Run(*model, 0), again = Run(*model, 0), next = Run(*model, 1);
  EXPECT_EQ(first.loss, again.loss);
  EXPECT_NE(first.loss, next.loss);
  for (const plan::Recompute level : {plan::Recompute::kNorms, plan::Recompute::kMlp,
                                      plan::Recompute::kLinears, plan::Recompute::kAll}) {
    const auto other = Model(level);
    const Result recomputed = Run(*other, 0);
    EXPECT_EQ(recomputed.loss, first.loss);
    ASSERT_EQ(recomputed.gradients.size(), first.gradients.size());
    for (size_t i = 0; i < first.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(recomputed.gradients[i], first.gradients[i]))
          << static_cast<int>(level) << " parameter " << i;
    }
  }
}

// The gradient against a difference quotient, with the masks held by the step.
TEST_F(DropoutTest, GradientsAreThoseOfTheFunctionThatWasRun) {
  const auto model = Model();
  const Result at_start = Run(*model, 3);
  constexpr float kStep = 1e-2F;
  const auto& parts = model->store().parts();
  for (const size_t i : {size_t{0}, size_t{1}, parts.size() / 2, parts.size() - 1}) {
    const Tensor master = parts[i].master;
    const Tensor kept = master.clone(), gradient = at_start.gradients[i].view(master.sizes());
    const double norm = gradient.norm().item<double>();
    ASSERT_GT(norm, 0) << i;
    const Tensor direction = gradient / norm;
    const auto loss_at = [&](float distance) {
      master.copy_(kept + distance * direction);
      model->MastersChanged();
      return Run(*model, 3).loss;
    };
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    loss_at(0);
    EXPECT_NEAR(slope, norm, 0.02 * norm) << i;
  }
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
