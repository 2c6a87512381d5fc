#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/parity/golden_case.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/generate/generator.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"

// Checkpoints as they are published quantised: bitsandbytes' NF4 as it is, FP8 and MXFP4
// de-quantised, against the de-quantised model in transformers and peft.

namespace sft::engine {
namespace {

using at::Tensor;

class StoredParityTest : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const { return GoldenDir() / "stored" / GetParam(); }
  GoldenTensors Read(const char* file) const { return GoldenTensors(dir() / file); }
  bool nf4() const { return GetParam().starts_with("nf4"); }
  // QLoRA of what is in 4 bits, LoRA of what is not; with the golden's adapter.
  spec::JobSpec Job(const Adapter& adapter) const {
    spec::JobSpec job = PlainJob(adapter.config);
    job.lora.target_modules = {"all-linear"};
    job.training.use_qlora = nf4();
    job.quantization.bits = nf4() ? 4 : 0;
    return job;
  }
  void ExpectTheReference(TrainingModel& model) const;
  // The logits of so many ranks, each with a shard of the weights; `tensor`: that share matrices.
  void ExpectLogitsOf(int world, int tensor) const;

  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

void StoredParityTest::ExpectTheReference(TrainingModel& model) const {
  model.LoadAdapter(ReadAdapter(dir() / "adapter"));
  ExpectPeft(model, Read("lora.safetensors"), Read("rows.safetensors"));
}

void StoredParityTest::ExpectLogitsOf(int world, int tensor) const {
  RunRanks(world, [&](Communicator& comm) {
    spec::JobSpec job = Job(ReadAdapter(dir() / "adapter"));
    job.compute.gpu_count = job.compute.gpus_per_node = world;
    job.parallelism.sharding = spec::Sharding::kFullShard;
    job.parallelism.tensor_parallel_size = tensor;
    TrainingModel model(job, dir(), comm);
    const GoldenTensors rows = Read("rows.safetensors");
    model.LoadAdapter(ReadAdapter(dir() / "adapter"));
    const at::NoGradGuard no_grad;
    const Tensor logits = model.Logits(RowsBatch(rows.Get("input_ids"), rows.Get("labels")));
    EXPECT_LT(RelativeError(logits, Read("lora.safetensors").Get("logits")), kLogitsTolerance);
  });
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
  for (const int world : {2, 3}) ExpectLogitsOf(world, 1);
}

TEST_P(StoredParityTest, RanksThatShareMatricesGiveTheSame) {
  if (GetParam() == "mxfp4") GTEST_SKIP() << "experts are not cut";
  if (GetParam() == "nf4_transposed") {
    EXPECT_THROW(ExpectLogitsOf(2, 2), UserError) << "halves of 192 elements end within a block";
    return;
  }
  for (const int world : {2, 4}) ExpectLogitsOf(world, 2);
}

TEST_P(StoredParityTest, GenerationReadsThemToo) {
  Generator generator({.model_dir = dir(), .adapter_dir = {}});
  const GoldenTensors rows = Read("rows.safetensors");
  const Tensor ids = rows.Get("input_ids")[0].to(at::kInt).contiguous();
  const std::vector<int32_t> tokens(ids.const_data_ptr<int32_t>(),
                                    ids.const_data_ptr<int32_t>() + ids.numel());
  EXPECT_LT(RelativeError(generator.Logits(tokens), rows.Get("logits")[0]), kLogitsTolerance);
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredParityTest,
                         testing::Values("nf4_double_quant", "nf4_plain_scales", "nf4_transposed",
                                         "fp8_blocks", "mxfp4"),
                         [](const auto& info) { return info.param; });

class Mxfp4Test : public testing::Test {
 protected:
  using Tensors = std::map<std::string, Tensor>;

  Mxfp4Test() {
    const auto file = SafetensorsFile::Open(golden_ / "model.safetensors");
    for (const auto& [name, info] : file->tensors()) tensors_[name] = file->View(name).clone();
  }

  // Reading the golden's folder with this change made to its tensors.
  void ExpectRefused(const std::function<void(Tensors&)>& change, const std::string& says) const {
    const TempDir dir;
    std::filesystem::copy_file(golden_ / "config.json", dir / "config.json");
    Tensors tensors = tensors_;
    change(tensors);
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors) {
      infos.push_back({.name = name, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
    }
    SafetensorsWriter writer(dir / "model.safetensors", infos);
    for (const std::string& name : writer.order()) writer.Write(name, tensors.at(name));
    writer.Commit();
    try {
      const BaseWeights base(dir.path(), MakeLayout(ReadConfig(dir.path())), at::kCPU);
      ADD_FAILURE() << "read, not refused: " << says;
    } catch (const UserError& error) {
      EXPECT_THAT(std::string(error.what()), testing::HasSubstr(says));
    }
  }

  const std::filesystem::path golden_ = GoldenDir() / "stored/mxfp4";
  Tensors tensors_;
};

// QLoRA has the linears of attention in NF4 and leaves experts as they are.
TEST_F(Mxfp4Test, QloraKeepsExpertsAsTheyArePublished) {
  const GoldenTensors golden(golden_ / "qlora.safetensors"), rows(golden_ / "rows.safetensors");
  const Adapter adapter = ReadAdapter(golden_ / "adapter");
  const MicroBatch batch = RowsBatch(rows.Get("input_ids"), rows.Get("labels"));
  for (const int world : {1, 3}) {
    RunRanks(world, [&](Communicator& comm) {
      spec::JobSpec job = PlainJob(adapter.config);
      job.lora.target_modules = {"all-linear"};
      job.training.use_qlora = true;
      job.compute.gpu_count = job.compute.gpus_per_node = world;
      if (world > 1) job.parallelism.sharding = spec::Sharding::kFullShard;
      TrainingModel model(job, golden_, comm);
      model.LoadAdapter(adapter);
      const at::NoGradGuard no_grad;
      EXPECT_LT(RelativeError(model.Logits(batch), golden.Get("logits")), kLogitsTolerance);
      if (world > 1) return;
      const double loss = MeanLossAndGradients(model, batch);
      EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kLossTolerance * loss);
      ExpectGradients(model, golden, static_cast<double>(batch.loss_tokens()), "base_model.model.");
    });
  }
}

TEST_F(Mxfp4Test, PlanesThatDoNotBelongTogetherAreRefusedByName) {
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  const std::string blocks = name + "_blocks", scales = name + "_scales";
  const auto put = [](const std::string& plane, const Tensor& tensor) {
    return [=](Tensors& tensors) { tensors[plane] = tensor; };
  };
  const auto remove = [](const std::string& plane) {
    return [=](Tensors& tensors) { tensors.erase(plane); };
  };
  ExpectRefused(remove(scales), "the weights hold no tensor " + scales);
  ExpectRefused(remove(blocks), "the weights hold no tensor " + name);
  ExpectRefused(put(blocks, tensors_.at(blocks).narrow(3, 0, 15)),
                blocks + " has shape [4, 192, 2, 15], config.json asks for [4, 192, 2, 16]");
  ExpectRefused(put(scales, tensors_.at(scales).narrow(1, 0, 191)),
                scales + " has shape [4, 191, 2], config.json asks for [4, 192, 2]");
  ExpectRefused(put(scales, tensors_.at(scales).to(at::kFloat)), scales + " has type F32");
  ExpectRefused(put(name, at::zeros({4, 64, 192}, at::kBFloat16)), "the weights hold " + name);
}

}  // namespace
}  // namespace sft::engine
