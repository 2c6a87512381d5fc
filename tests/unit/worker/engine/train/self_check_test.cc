#include "worker/engine/train/self_check.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/describe.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/delivery.h"

namespace sft::engine {
namespace {

using at::Tensor;
using testing::Contains;
using testing::HasSubstr;

class SelfCheckTest : public testing::Test {
 protected:
  SelfCheckTest() { WriteTinyModel(model_dir()); }

  std::filesystem::path model_dir() const { return dir_ / "model"; }
  std::filesystem::path artifact() const { return dir_ / "output"; }
  TrainerOptions Options(spec::Mode mode, int world = 1) const {
    return TinyRun(model_dir(), mode, world);
  }
  // The message of the error that `run` throws.
  template <typename Error>
  static std::string MessageOf(const std::function<void()>& run) {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }
  // Adapters of the tiny model with values of `value`, delivered.
  void DeliverAdapter(TrainingModel& model, const spec::JobSpec& job, double value) {
    model.SetTrained([&](const ParamInfo& param) { return at::full(param.shape, value); });
    EXPECT_TRUE(
        Deliver(model, job, {.target = artifact(), .model_dir = {}, .model_name = "tiny"}, *comm_)
            .consistency.consistent);
  }

  const TempDir dir_;
  const ProbeDocuments probe_ = MakeProbe(*CountingRows(3));
  const std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_F(SelfCheckTest, TheProbeIsTheBeginningsOfTwoRows) {
  EXPECT_EQ(MakeProbe(*CountingRows(1)).size(), 2u);
  ASSERT_EQ(probe_.size(), 2u);
  EXPECT_EQ(probe_[0].front(), 0);
  EXPECT_EQ(probe_[1].front(), 7);
}

TEST_F(SelfCheckTest, PackedDocumentsStayApart) {
  const spec::JobSpec job = Options(spec::Mode::kLora).spec;
  TrainingModel model(job, model_dir(), *comm_);
  const LogitsOf logits = [&](const MicroBatch& batch, const std::vector<int64_t>& tokens) {
    return model.Logits(batch, tokens);
  };
  EXPECT_LT(CheckPacking(logits, probe_), 1e-4);
}

TEST_F(SelfCheckTest, AModelWhoseDocumentsSeeEachOtherIsRefused) {
  const spec::JobSpec job = Options(spec::Mode::kLora).spec;
  TrainingModel model(job, model_dir(), *comm_);
  const auto leaking = [&](MicroBatch batch, const std::vector<int64_t>& tokens) {
    batch.cu_seqlens = {0, static_cast<int32_t>(batch.size())};
    batch.max_seqlen = static_cast<int32_t>(batch.size());
    return model.Logits(batch, tokens);
  };
  for (const bool has_experts : {false, true}) {
    EXPECT_THAT(MessageOf<InternalError>([&] { CheckPacking(leaking, probe_, has_experts); }),
                HasSubstr("other tokens in the first of two change the second's logits"));
  }
}

TEST_F(SelfCheckTest, ExpertsMayRoundOtherwise) {
  const spec::JobSpec job = Options(spec::Mode::kLora).spec;
  TrainingModel model(job, model_dir(), *comm_);
  int calls = 0;
  const auto rounding = [&](const MicroBatch& batch, const std::vector<int64_t>& tokens) {
    return model.Logits(batch, tokens).mul_(1.0 + 1e-6 * calls++);
  };
  EXPECT_THAT(MessageOf<InternalError>([&] { CheckPacking(rounding, probe_); }),
              HasSubstr("other tokens in the first of two change"));
  EXPECT_LT(CheckPacking(rounding, probe_, /*has_experts=*/true), 1e-4);
}

// As where one of several attentions reads over a document's border: that of documents as long as
// cuDNN takes them.
TEST_F(SelfCheckTest, ALeakOfLongDocumentsAloneIsFoundByTheLongProbe) {
  const auto rows = Dataset::FromDocuments({std::vector<int32_t>(300, 1), {2, 3, 4}, {5}},
                                           {std::vector<uint8_t>(300, 1), {1, 1, 1}, {1}});
  const std::optional<ProbeDocuments> probe = MakeLongProbe(*rows);
  ASSERT_TRUE(probe);
  EXPECT_EQ(probe->front().size(), 272u);
  EXPECT_EQ(probe->back().size(), 256u);
  EXPECT_EQ(probe->back()[3], 2) << "a short row, over and over";
  EXPECT_FALSE(MakeLongProbe(*CountingRows(3)));
  const auto leaking = [](const MicroBatch& batch, const std::vector<int64_t>& tokens) {
    Tensor logits = at::ones({static_cast<int64_t>(tokens.size()), kTinyVocabulary});
    // One token in the middle of the second sees one in the middle of the first.
    const bool sees = batch.documents() > 1 && batch.max_seqlen >= 256;
    if (sees) logits[static_cast<int64_t>(tokens.size() / 2)] += batch.tokens[100];
    return logits;
  };
  EXPECT_EQ(CheckPacking(leaking, MakeProbe(*rows)), 0);
  EXPECT_THAT(MessageOf<InternalError>([&] { CheckPacking(leaking, *probe); }),
              HasSubstr("other tokens in the first of two change the second's logits"));
}

TEST_F(SelfCheckTest, AModelWithoutFiniteLogitsIsTheUsers) {
  const auto broken = [](const MicroBatch&, const std::vector<int64_t>& tokens) {
    return at::full({static_cast<int64_t>(tokens.size()), kTinyVocabulary},
                    std::numeric_limits<float>::quiet_NaN());
  };
  EXPECT_THAT(MessageOf<UserError>([&] { CheckPacking(broken, probe_); }),
              HasSubstr("not finite before any training"));
}

TEST_F(SelfCheckTest, ADocumentThatChangesWithItsPlaceIsRefused) {
  const spec::JobSpec job = Options(spec::Mode::kLora).spec;
  TrainingModel model(job, model_dir(), *comm_);
  const auto displaced = [&](const MicroBatch& batch, const std::vector<int64_t>& tokens) {
    const Tensor logits = model.Logits(batch, tokens);
    return batch.documents() > 1 ? logits.mul(1.01) : logits;
  };
  EXPECT_THAT(MessageOf<InternalError>([&] { CheckPacking(displaced, probe_); }),
              HasSubstr("from those it has alone"));
}

TEST_F(SelfCheckTest, AnAdapterThatLearnedNothingFailsTheJobByName) {
  TrainerOptions options = Options(spec::Mode::kLora);
  options.spec.hyperparameters.learning_rate = 0;
  const std::string message = MessageOf<UserError>([&] { RunTrainer(options, 1); });
  EXPECT_THAT(message, HasSubstr("14 of the job's 14 adapters learned nothing"));
  EXPECT_THAT(message, HasSubstr("model.layers.0.self_attn.q_proj, "));
  EXPECT_FALSE(std::filesystem::exists(artifact()));
}

TEST_F(SelfCheckTest, OneAdapterThatLearnedNothingIsEnough) {
  const spec::JobSpec job = Options(spec::Mode::kLora).spec;
  TrainingModel model(job, model_dir(), *comm_);
  const std::string still = "model.layers.1.mlp.up_proj";
  model.SetTrained([&](const ParamInfo& param) {
    const bool zero = param.role == ParamRole::kLoraB && param.module() == still;
    return at::full(param.shape, zero ? 0.0 : 0.5);
  });
  EXPECT_THAT(
      MessageOf<UserError>([&] { CheckAdaptersTrained(model); }),
      HasSubstr("1 of the job's 14 adapters learned nothing, their factor B is still zero: " +
                still));
}

TEST_F(SelfCheckTest, RunsOfEveryKindReadBackWhatTheyDelivered) {
  for (const spec::Mode mode : {spec::Mode::kLora, spec::Mode::kFullFinetune}) {
    for (const spec::Sharding sharding : {spec::Sharding::kDdp, spec::Sharding::kFullShard}) {
      TrainerOptions options = Options(mode, 2);
      options.spec.parallelism.sharding = sharding;
      for (const RecordingObserver& observer : RunTrainer(options, 2)) {
        EXPECT_TRUE(observer.consistency.consistent);
        EXPECT_EQ(observer.consistency.delivered_difference, 0);
        EXPECT_LT(observer.consistency.packing_difference, 1e-4);
        EXPECT_GT(observer.consistency.packing_seconds, 0);
        EXPECT_GT(observer.consistency.delivered_seconds, 0);
      }
    }
  }
}

TEST_F(SelfCheckTest, AnAdapterThatReadsBackOtherwiseIsRefused) {
  const spec::JobSpec job = Options(spec::Mode::kLora).spec;
  TrainingModel model(job, model_dir(), *comm_);
  DeliverAdapter(model, job, 0.02);
  EXPECT_EQ(CheckDelivered(model, job, artifact(), probe_, *comm_), 0);
  model.SetTrained([](const ParamInfo& param) { return at::full(param.shape, 0.1); });
  EXPECT_THAT(
      MessageOf<InternalError>([&] { CheckDelivered(model, job, artifact(), probe_, *comm_); }),
      HasSubstr("read back from " + artifact().string()));
}

TEST_F(SelfCheckTest, AnAdapterOfAnotherScaleIsRefused) {
  spec::JobSpec job = Options(spec::Mode::kLora).spec;
  TrainingModel model(job, model_dir(), *comm_);
  DeliverAdapter(model, job, 0.02);
  job.lora.alpha *= 2;
  EXPECT_THAT(
      MessageOf<InternalError>([&] { CheckDelivered(model, job, artifact(), probe_, *comm_); }),
      HasSubstr("is scaled by"));
}

TEST_F(SelfCheckTest, ARunSaysWhatItTrains) {
  const std::string messages = RunTrainer(Options(spec::Mode::kLora), 1)[0].messages;
  EXPECT_THAT(messages, HasSubstr("2 x q_proj ["));
  EXPECT_THAT(messages, HasSubstr("]: frozen, with adapters of rank 4 trained\n"));
  EXPECT_THAT(messages, HasSubstr("1 x embed_tokens ["));
  EXPECT_THAT(messages, HasSubstr("two short packed documents stay apart"));
  EXPECT_THAT(RunTrainer(Options(spec::Mode::kFullFinetune), 1)[0].messages,
              HasSubstr("]: trained\n"));
}

TEST_F(SelfCheckTest, QuantisedAndUntouchedPartsAreNamed) {
  spec::JobSpec job = Options(spec::Mode::kLora).spec;
  job.training.use_qlora = true;
  job.quantization.bits = 4;
  job.lora.target_modules = {"q_proj"};
  ModelLayout layout = MakeLayout(ReadConfig(model_dir()));
  PrepareLayout(layout, job);
  const std::vector<std::string> lines = DescribeTraining(layout, job);
  EXPECT_THAT(lines, Contains(HasSubstr("q_proj [32, 32]: frozen, quantised to 4 bits, with "
                                        "adapters of rank 4 trained")));
  EXPECT_THAT(lines, Contains(testing::AllOf(HasSubstr("v_proj"),
                                             testing::EndsWith("quantised to 4 bits"))));
  layout.in_files.prefix = "model.language_model.";
  const std::vector<std::string> names{"model.vision_tower.a.weight", "model.vision_tower.b.weight",
                                       "model.language_model.norm.weight", "lm_vision.weight"};
  EXPECT_EQ(DescribeOtherParts(names, layout),
            "not trained, kept as they are: 3 tensors of lm_vision, vision_tower");
  layout.in_files.prefix.clear();
  EXPECT_EQ(DescribeOtherParts(names, layout), "");
}

}  // namespace
}  // namespace sft::engine
