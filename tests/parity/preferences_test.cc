#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/parity/golden_case.h"
#include "worker/engine/data/mismatched.h"
#include "worker/engine/train/preference_loss.h"

// The losses over preferences against TRL's trainers: loss, metrics and gradients of one step.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr double kTolerance = 1e-5;
constexpr char kModel[] = "qwen2_sliding_untied";

struct PreferenceCase {
  const char* name;
  spec::Loss loss;
  spec::DpoLoss dpo_loss = spec::DpoLoss::kSigmoid;
  double sft_weight = 0;

  friend void PrintTo(const PreferenceCase& c, std::ostream* out) { *out << c.name; }
};

class PreferenceParityTest : public testing::TestWithParam<PreferenceCase> {
 protected:
  static GoldenTensors Golden(const std::string& name) {
    return GoldenTensors(GoldenDir() / "preferences" / (name + ".safetensors"));
  }
  static std::filesystem::path Model() { return GoldenDir() / "families" / kModel; }

  static void Configure(spec::JobSpec& job) {
    const PreferenceCase& c = GetParam();
    job.training.loss = c.loss;
    auto& preference = job.training.preference;
    preference.beta = 0.3;
    preference.simpo_gamma = 0.4;
    preference.dpo_loss = c.dpo_loss;
    preference.label_smoothing = c.dpo_loss == spec::DpoLoss::kRobust ? 0.1 : 0.0;
    preference.sft_weight = c.sft_weight;
    preference.kto_undesirable_weight = 1.2;
  }

  PreferenceParityTest() {
    const Tensor tokens = inputs_.Get("tokens"), lengths = inputs_.Get("lengths"),
                 prompts = inputs_.Get("prompts"), reference = inputs_.Get("reference");
    int64_t begin = 0;
    for (int64_t i = 0; i < lengths.numel(); ++i) {
      const int64_t length = lengths[i].item<int64_t>(), prompt = prompts[i].item<int64_t>();
      const bool good = i % 2 == 0, orpo = GetParam().loss == spec::Loss::kOrpo;
      std::vector<int32_t>& document = tokens_.emplace_back();
      std::vector<uint8_t>& loss = marks_.emplace_back();
      for (int64_t t = 0; t < length; ++t) {
        document.push_back(static_cast<int32_t>(tokens[begin + t].item<int64_t>()));
        // TRL's ORPO adds the cross entropy of prompt and answer.
        const uint8_t before = orpo && good && t > 0 ? kPredicted | kBesideAnswer : 0;
        const uint8_t answer = good ? kPredicted : kPredicted | kOfBadAnswer;
        loss.push_back(t < prompt ? before : answer);
      }
      begin += length;
      reference_.push_back(reference[i].item<float>());
    }
    dataset_ = Dataset::FromDocuments(tokens_, marks_);
    for (uint32_t i = 0; i < dataset_->size(); ++i) {
      batch_.rows.push_back(i);
      batch_.Append(dataset_->Get(i));
    }
    batch_.longest_row = batch_.max_seqlen;
  }

  PreferenceScale ScaleOf(TrainingModel& model) const {
    const bool kto = GetParam().loss == spec::Loss::kKto;
    const int64_t documents = dataset_->size();
    PreferenceScale scale{.samples = static_cast<double>(kto ? documents : documents / 2)};
    for (int64_t i = 0; i < documents; i += 2) {
      scale.chosen_tokens += static_cast<double>(dataset_->LossTokens(i));
    }
    if (!kto) return scale;
    const MicroBatch mixed = Mismatched(dataset_, 64).Of(batch_);
    const Tensor logps = AnswerLogps(mixed, model.RowLosses(mixed));
    scale.kl = std::max(
        0.0, (logps - inputs_.Get("mismatched_reference").to(at::kDouble)).mean().item<double>());
    return scale;
  }

  // One step of all weights or of the golden's adapter; its gradients stay in the model.
  std::vector<double> Step(TrainingModel& model, const spec::JobSpec& job,
                           const PreferenceScale& scale) {
    model.BeginStep();
    const Tensor sums = model.ForwardBackward(
        batch_, 0, 0, /*last=*/true, PreferenceObjective(job, batch_, reference_, scale, at::kCPU));
    model.ReduceGradients(1.0 / scale.samples);
    std::vector<double> values(sums.const_data_ptr<double>(),
                               sums.const_data_ptr<double>() + sums.numel());
    return values;
  }

  static int ExpectKeptGradients(const TrainingModel& model, const GoldenTensors& golden,
                                 const std::string& prefix, double samples) {
    int compared = 0;
    for (size_t i = 0; i < model.store().parts().size(); ++i) {
      const TrainablePart& part = model.store().parts()[i];
      const ParamInfo& param = model.layout().units[part.unit].params[part.param];
      const std::string name = prefix + param.name;
      if (!golden.Contains(name)) continue;
      ++compared;
      EXPECT_LT(RelativeError(model.gradients()[i] / samples, golden.Get(name)), kTolerance)
          << name;
    }
    return compared;
  }

  const at::NoGradGuard no_grad_;
  const std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
  const GoldenTensors inputs_ = Golden("inputs");
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<uint8_t>> marks_;
  std::vector<double> reference_;
  std::shared_ptr<const Dataset> dataset_;
  MicroBatch batch_;
};

TEST_P(PreferenceParityTest, LossMetricsAndGradientsOfAllWeightsEqualTrl) {
  const GoldenTensors golden = Golden(GetParam().name);
  spec::JobSpec job = PlainJob(spec::Mode::kFullFinetune);
  Configure(job);
  TrainingModel model(job, Model(), *comm_);
  const PreferenceScale scale = ScaleOf(model);
  const std::vector<double> sums = Step(model, job, scale);
  const auto expect = [&](const char* name, double value) {
    if (!golden.Contains(name)) return;
    const double wanted = golden.Get(name).item<float>();
    EXPECT_NEAR(value, wanted, kTolerance * std::max(1.0, std::abs(wanted))) << name;
  };
  expect("loss", sums[kLossSum] / scale.samples);
  expect("rewards/chosen", sums[kChosenRewardSum] / sums[kChosenCount]);
  expect("rewards/rejected", sums[kRejectedRewardSum] / sums[kRejectedCount]);
  expect("rewards/accuracies", sums[kRightSum] / scale.samples);
  expect("logps/chosen", sums[kChosenLogpSum] / sums[kChosenCount]);
  expect("logps/rejected", sums[kRejectedLogpSum] / sums[kRejectedCount]);
  expect("kl", scale.kl);
  EXPECT_EQ(ExpectKeptGradients(model, golden, "grad.", scale.samples), 5);
}

TEST_P(PreferenceParityTest, GradientsOfAnAdapterEqualTrl) {
  const GoldenTensors golden = Golden(GetParam().name);
  const Adapter adapter = ReadAdapter(Model() / "adapter");
  spec::JobSpec job = PlainJob(adapter.config);
  job.lora.target_modules = adapter.config.target_modules;
  Configure(job);
  TrainingModel model(job, Model(), *comm_);
  model.LoadAdapter(adapter);
  const PreferenceScale scale = ScaleOf(model);
  const std::vector<double> sums = Step(model, job, scale);
  EXPECT_NEAR(sums[kLossSum] / scale.samples, golden.Get("lora.loss").item<float>(),
              kTolerance * std::max(1.0, sums[kLossSum] / scale.samples));
  EXPECT_EQ(ExpectKeptGradients(model, golden, "lora.grad.base_model.model.", scale.samples), 4);
}

INSTANTIATE_TEST_SUITE_P(
    Losses, PreferenceParityTest,
    testing::Values(PreferenceCase{"dpo_sigmoid", spec::Loss::kDpo},
                    PreferenceCase{"dpo_robust", spec::Loss::kDpo, spec::DpoLoss::kRobust},
                    PreferenceCase{"dpo_hinge", spec::Loss::kDpo, spec::DpoLoss::kHinge},
                    PreferenceCase{"dpo_ipo", spec::Loss::kDpo, spec::DpoLoss::kIpo},
                    PreferenceCase{"dpo_sigmoid_norm", spec::Loss::kDpo,
                                   spec::DpoLoss::kSigmoidNorm},
                    PreferenceCase{"dpo_sft", spec::Loss::kDpo, spec::DpoLoss::kSigmoid, 0.5},
                    PreferenceCase{"orpo", spec::Loss::kOrpo},
                    PreferenceCase{"simpo", spec::Loss::kSimPo},
                    PreferenceCase{"simpo_sft", spec::Loss::kSimPo, spec::DpoLoss::kSigmoid, 0.5},
                    PreferenceCase{"kto", spec::Loss::kKto}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::engine
