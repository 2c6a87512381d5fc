// The losses over preferences on a GPU against the same on a CPU, in fp32.
#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <string>
#include <vector>

#include "common/spec/visit.h"
#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/train/preference_loss.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {
namespace {

constexpr int kPreferencePairs = 4;

// Pairs of ragged documents with the same prompt; with `prompt_too` the chosen one's is predicted.
MicroBatch PairBatch(bool prompt_too) {
  MicroBatch batch;
  for (uint32_t i = 0; i < 2 * kPreferencePairs; ++i) {
    const bool good = i % 2 == 0;
    std::vector<int32_t> tokens;
    std::vector<uint8_t> loss;
    for (int t = 0; t < 9 + static_cast<int>(i * 5 % 7); ++t) {
      const bool answer = t >= 4;
      const int seed = answer ? static_cast<int>(i) : static_cast<int>(i / 2);
      tokens.push_back((seed * 31 + t * 7 + 1) % kTinyVocabulary);
      const uint8_t before = prompt_too && good && t > 0 ? kPredicted | kBesideAnswer : 0;
      loss.push_back(!answer ? before : good ? kPredicted : kPredicted | kOfBadAnswer);
    }
    batch.rows.push_back(i);
    batch.Append({.tokens = tokens, .loss = loss});
  }
  batch.longest_row = batch.max_seqlen;
  return batch;
}

struct PreferenceStep {
  std::vector<double> sums;
  std::vector<at::Tensor> gradients;
};

class PreferenceGpuTest : public GpuTest, public ::testing::WithParamInterface<spec::Loss> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    dir_ = OwnFolder("sft_preference_gpu_" + std::string(spec::EnumName(GetParam())));
    WriteTinyModel(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  PreferenceStep Step(spec::Mode mode, at::Device device) const {
    const at::NoGradGuard no_grad;
    spec::JobSpec job;
    job.training.mode = mode;
    job.training.loss = GetParam();
    job.training.preference.beta = 0.3;
    job.training.preference.sft_weight = GetParam() == spec::Loss::kDpo ? 0.5 : 0.0;
    job.quantization.bits = 0;
    job.parallelism.compute_type = spec::ComputeType::kFp32;
    const auto comm = MakeLocalCommunicator(device);
    TrainingModel model(job, dir_, *comm);
    const MicroBatch batch = PairBatch(GetParam() == spec::Loss::kOrpo);
    std::vector<double> reference;
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      reference.push_back(-30.0 - static_cast<double>(i * 3 % 5));
    }
    const PreferenceScale scale{.samples = kPreferencePairs, .chosen_tokens = 40, .kl = 0.25};
    model.BeginStep();
    const at::Tensor sums = model.ForwardBackward(
        batch, 0, 0, /*last=*/true, PreferenceObjective(job, batch, reference, scale, device));
    model.ReduceGradients(1.0 / scale.samples);
    const at::Tensor host = sums.cpu();
    PreferenceStep outcome;
    outcome.sums.assign(host.const_data_ptr<double>(),
                        host.const_data_ptr<double>() + host.numel());
    for (const at::Tensor& gradient : model.gradients()) {
      outcome.gradients.push_back(gradient.cpu().clone());
    }
    return outcome;
  }

  void ExpectEqualToCpu(spec::Mode mode) const {
    const PreferenceStep gpu = Step(mode, at::Device(at::kCUDA, 0)), cpu = Step(mode, at::kCPU);
    ASSERT_EQ(gpu.sums.size(), static_cast<size_t>(kPreferenceSums));
    for (size_t i = 0; i < gpu.sums.size(); ++i) {
      EXPECT_NEAR(gpu.sums[i], cpu.sums[i], 1e-4 * std::max(1.0, std::abs(cpu.sums[i]))) << i;
    }
    ASSERT_EQ(gpu.gradients.size(), cpu.gradients.size());
    for (size_t i = 0; i < gpu.gradients.size(); ++i) {
      // B's gradient alone where A's is zero: fresh adapters.
      if (cpu.gradients[i].norm().item<double>() == 0) continue;
      EXPECT_LT(RelativeError(gpu.gradients[i], cpu.gradients[i]), 1e-4) << i;
    }
    EXPECT_EQ(Step(mode, at::Device(at::kCUDA, 0)).sums, gpu.sums) << "two runs, the same bits";
  }

  std::filesystem::path dir_;
};

TEST_P(PreferenceGpuTest, AdaptersHaveTheGradientsOfACpu) { ExpectEqualToCpu(spec::Mode::kLora); }

// The head's own gradient takes the path that makes the logits twice.
TEST_P(PreferenceGpuTest, AllWeightsHaveTheGradientsOfACpu) {
  ExpectEqualToCpu(spec::Mode::kFullFinetune);
}

INSTANTIATE_TEST_SUITE_P(Losses, PreferenceGpuTest,
                         ::testing::Values(spec::Loss::kDpo, spec::Loss::kOrpo, spec::Loss::kSimPo,
                                           spec::Loss::kKto),
                         [](const auto& info) { return std::string(spec::EnumName(info.param)); });

}  // namespace
}  // namespace sft::engine
