#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/parity/golden_case.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/generate/generator.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"

// Checkpoints as they are published quantised: bitsandbytes' NF4 as it is, FP8 de-quantised,
// against the de-quantised model in transformers and peft.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr double kLogits = 1e-4;
constexpr double kGradients = 1e-5;
constexpr double kLoss = 1e-5;

class StoredParityTest : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const { return GoldenDir() / "stored" / GetParam(); }
  GoldenTensors Read(const char* file) const { return GoldenTensors(dir() / file); }
  bool nf4() const { return GetParam().starts_with("nf4"); }
  // QLoRA of what is in 4 bits, LoRA of what is not; with the golden's adapter.
  spec::JobSpec Job(const Adapter& adapter) const {
    spec::JobSpec job = PlainJob(adapter.config);
    job.training.use_qlora = nf4();
    job.quantization.bits = nf4() ? 4 : 0;
    return job;
  }
  void ExpectTheReference(TrainingModel& model) const;

  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

void StoredParityTest::ExpectTheReference(TrainingModel& model) const {
  const GoldenTensors golden = Read("lora.safetensors");
  const GoldenTensors rows = Read("rows.safetensors");
  model.LoadAdapter(ReadAdapter(dir() / "adapter"));
  const MicroBatch batch = RowsBatch(rows.Get("input_ids"), rows.Get("labels"));
  {
    const at::NoGradGuard no_grad;
    EXPECT_LT(RelativeError(model.Logits(batch), golden.Get("logits")), kLogits);
  }
  const double loss = MeanLossAndGradients(model, batch);
  EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kLoss * loss);
  const auto& parts = model.store().parts();
  ASSERT_FALSE(parts.empty());
  for (size_t i = 0; i < parts.size(); ++i) {
    const ParamInfo& param = model.layout().units[parts[i].unit].params[parts[i].param];
    const Tensor expected = golden.Get("grad.base_model.model." + param.name)
                                .view({-1})
                                .narrow(0, parts[i].first, parts[i].count);
    const Tensor actual = model.gradients()[i] / static_cast<double>(batch.loss_tokens());
    EXPECT_LT(RelativeError(actual, expected), kGradients) << param.name;
  }
}

TEST_P(StoredParityTest, WeightsAreThoseOfTheReferenceBitForBit) {
  ModelLayout layout = MakeLayout(ReadConfig(dir()));
  spec::JobSpec job = PlainJob(spec::Mode::kLora);
  job.training.use_qlora = nf4();
  job.quantization.bits = nf4() ? 4 : 0;
  PrepareLayout(layout, job);
  const BaseWeights base(dir(), layout, at::kCPU);
  if (nf4()) base.QuantizeAsStored(layout);
  const auto source =
      LoadFrozen(layout, base, {.compute = at::kBFloat16, .bits = job.quantization.bits}, *comm_);
  const AcquiredUnit block(*source, layout, 1);
  const GoldenTensors golden = Read("dequantized.safetensors");
  size_t compared = 0;
  for (size_t i = 0; i < layout.units[1].params.size(); ++i) {
    const ParamInfo& param = layout.units[1].params[i];
    if (!golden.Contains(param.name)) continue;
    EXPECT_TRUE(at::equal(block.weights().params[i], golden.Get(param.name))) << param.name;
    ++compared;
  }
  EXPECT_EQ(compared, golden.size());
}

TEST_P(StoredParityTest, AdapterLogitsLossAndGradientsEqualPeftOnTheDequantisedModel) {
  TrainingModel model(Job(ReadAdapter(dir() / "adapter")), dir(), *comm_);
  ExpectTheReference(model);
}

TEST_P(StoredParityTest, RanksThatHoldAPartEachGiveTheSame) {
  for (const int world : {2, 3}) {
    RunRanks(world, [&](Communicator& comm) {
      spec::JobSpec job = Job(ReadAdapter(dir() / "adapter"));
      job.compute.gpu_count = job.compute.gpus_per_node = world;
      job.parallelism.sharding = spec::Sharding::kFullShard;
      TrainingModel model(job, dir(), comm);
      const GoldenTensors rows = Read("rows.safetensors");
      model.LoadAdapter(ReadAdapter(dir() / "adapter"));
      const at::NoGradGuard no_grad;
      const Tensor logits = model.Logits(RowsBatch(rows.Get("input_ids"), rows.Get("labels")));
      EXPECT_LT(RelativeError(logits, Read("lora.safetensors").Get("logits")), kLogits);
    });
  }
}

TEST_P(StoredParityTest, GenerationReadsThemToo) {
  Generator generator({.model_dir = dir(), .adapter_dir = {}});
  const GoldenTensors rows = Read("rows.safetensors");
  const Tensor ids = rows.Get("input_ids")[0].to(at::kInt).contiguous();
  const std::vector<int32_t> tokens(ids.const_data_ptr<int32_t>(),
                                    ids.const_data_ptr<int32_t>() + ids.numel());
  EXPECT_LT(RelativeError(generator.Logits(tokens), rows.Get("logits")[0]), kLogits);
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredParityTest,
                         testing::Values("nf4_double_quant", "nf4_plain_scales", "nf4_transposed",
                                         "fp8_blocks"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sft::engine
