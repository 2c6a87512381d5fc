#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/parity/golden_case.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/model/families.h"

// Five optimizer steps of every tiny model, full fine-tuning, LoRA and QLoRA, against transformers,
// peft and torch's AdamW (family_steps.py says what a step is).

namespace sft::engine {
namespace {

constexpr double kStepLoss = 1e-5;
constexpr double kStepNorm = 1e-4;

class FamilyStepsTest : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path dir() const { return GoldenDir() / "families" / GetParam(); }

  void Compare(TrainingModel& model, const char* kind) {
    std::ifstream file(dir() / "steps.json");
    const nlohmann::json golden = nlohmann::json::parse(file);
    const std::vector<double> losses = golden.at(kind).at("loss");
    const std::vector<double> norms = golden.at(kind).at("grad_norm");
    ASSERT_EQ(losses.size(), 5u);
    const GoldenTensors rows(dir() / "rows.safetensors");
    const MicroBatch batch = RowsBatch(rows.Get("input_ids"), rows.Get("labels"));
    const double scale = 1.0 / static_cast<double>(batch.loss_tokens());
    const at::NoGradGuard no_grad;
    for (size_t step = 0; step < losses.size(); ++step) {
      model.BeginStep();
      const double loss =
          model.ForwardBackward(batch, static_cast<int64_t>(step), 0, true).item<double>() * scale;
      const double norm = model.ReduceGradients(scale);
      model.Update(golden.at("learning_rate").get<double>(), scale);
      EXPECT_NEAR(loss, losses[step], kStepLoss * losses[step]) << kind << ", step " << step + 1;
      EXPECT_NEAR(norm, norms[step], kStepNorm * norms[step]) << kind << ", step " << step + 1;
    }
  }

  void CompareAdapters(bool use_qlora) {
    const Adapter adapter = ReadAdapter(dir() / "adapter", ReadConfig(dir()).prefix);
    spec::JobSpec job = PlainJob(adapter.config);
    job.lora.target_modules = {"all-linear"};
    job.training.use_qlora = use_qlora;
    TrainingModel model(job, dir(), *comm_);
    model.LoadAdapter(adapter);
    Compare(model, use_qlora ? "qlora" : "lora");
  }

  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_P(FamilyStepsTest, FullFineTuning) {
  TrainingModel model(PlainJob(spec::Mode::kFullFinetune), dir(), *comm_);
  Compare(model, "fft");
}

TEST_P(FamilyStepsTest, Lora) { CompareAdapters(false); }

TEST_P(FamilyStepsTest, Qlora) { CompareAdapters(true); }

// Every case that there is.
std::vector<std::string> Cases() {
  std::vector<std::string> cases;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDir() / "families")) {
    if (entry.is_directory()) cases.push_back(entry.path().filename());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyStepsTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sft::engine
