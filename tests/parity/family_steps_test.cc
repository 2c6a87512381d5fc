#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/plan/context.h"
#include "common/plan/tensor.h"
#include "tests/parity/golden_case.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/base/error.h"
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

  // `comm`: of all ranks of the model.
  void Compare(TrainingModel& model, const char* kind, Communicator& comm) {
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
          AllReduceSumDouble(
              comm,
              model.ForwardBackward(batch, static_cast<int64_t>(step), 0, true).item<double>()) *
          scale;
      const double norm = model.ReduceGradients(scale);
      model.Update(golden.at("learning_rate").get<double>(), scale);
      EXPECT_NEAR(loss, losses[step], kStepLoss * losses[step]) << kind << ", step " << step + 1;
      EXPECT_NEAR(norm, norms[step], kStepNorm * norms[step]) << kind << ", step " << step + 1;
    }
  }

  // What the ranks share.
  enum class Shared { kRows, kMatrices };

  void CompareAdapters(bool use_qlora, Communicator& comm, Shared shared = Shared::kRows) {
    const Adapter adapter = ReadAdapter(dir() / "adapter", ReadConfig(dir()).prefix);
    spec::JobSpec job = SharedBy(comm.world(), shared, PlainJob(adapter.config));
    job.lora.target_modules = {"all-linear"};
    job.training.use_qlora = use_qlora;
    TrainingModel model(job, dir(), comm);
    model.LoadAdapter(adapter);
    Compare(model, use_qlora ? "qlora" : "lora", comm);
  }
  void CompareFull(Communicator& comm, Shared shared = Shared::kRows) {
    TrainingModel model(SharedBy(comm.world(), shared, PlainJob(spec::Mode::kFullFinetune)), dir(),
                        comm);
    Compare(model, "fft", comm);
  }
  static spec::JobSpec SharedBy(int ranks, Shared shared, spec::JobSpec job) {
    job.compute.gpu_count = job.compute.gpus_per_node = ranks;
    (shared == Shared::kRows ? job.parallelism.context_parallel_size
                             : job.parallelism.tensor_parallel_size) = ranks;
    return job;
  }

  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
};

TEST_P(FamilyStepsTest, FullFineTuning) { CompareFull(*comm_); }

TEST_P(FamilyStepsTest, Lora) { CompareAdapters(false, *comm_); }

TEST_P(FamilyStepsTest, Qlora) { CompareAdapters(true, *comm_); }

// Tokens of the rows on two ranks and, where its heads allow, on four; a model that cannot be cut
// so is refused with the reason.
TEST_P(FamilyStepsTest, OnRanksThatShareTheRows) {
  for (const int ranks : {2, 4}) {
    const spec::JobSpec job = SharedBy(ranks, Shared::kRows, PlainJob(spec::Mode::kFullFinetune));
    SCOPED_TRACE(ranks);
    if (const auto problem = plan::CheckContext(ReadConfig(dir()), job)) {
      EXPECT_THAT(problem->message, testing::HasSubstr("does not divide the model's"));
      EXPECT_THROW(RunRanks(ranks, [&](Communicator& comm) { CompareFull(comm); }), UserError);
      continue;
    }
    RunRanks(ranks, [&](Communicator& comm) { CompareFull(comm); });
    RunRanks(ranks, [&](Communicator& comm) { CompareAdapters(true, comm); });
  }
}

// Four ranks as two nodes of two, which gather keys and values from each other, and as four of one.
TEST_P(FamilyStepsTest, OnNodesThatShareTheRows) {
  for (const int node : {1, 2}) {
    SCOPED_TRACE(node);
    spec::JobSpec job = SharedBy(4, Shared::kRows, PlainJob(spec::Mode::kFullFinetune));
    job.compute.gpus_per_node = node;
    if (plan::CheckContext(ReadConfig(dir()), job)) continue;  // OnRanksThatShareTheRows
    RunRanks(4, [&](Communicator& comm) {
      TrainingModel model(job, dir(), comm);
      Compare(model, "fft", comm);
    });
  }
}

// The same of ranks that share the matrices. The tiny models have none that can be cut in 4 bits.
TEST_P(FamilyStepsTest, OnRanksThatShareTheMatrices) {
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    const spec::JobSpec job =
        SharedBy(ranks, Shared::kMatrices, PlainJob(spec::Mode::kFullFinetune));
    if (const auto problem = plan::CheckTensor(ReadConfig(dir()), job)) {
      EXPECT_THAT(problem->message, testing::AnyOf(testing::HasSubstr("does not go with"),
                                                   testing::HasSubstr("does not divide"),
                                                   testing::HasSubstr("in one matrix")));
      EXPECT_THROW(
          RunRanks(ranks, [&](Communicator& comm) { CompareFull(comm, Shared::kMatrices); }),
          UserError);
      continue;
    }
    RunRanks(ranks, [&](Communicator& comm) { CompareFull(comm, Shared::kMatrices); });
    RunRanks(ranks, [&](Communicator& comm) { CompareAdapters(false, comm, Shared::kMatrices); });
  }
}

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
