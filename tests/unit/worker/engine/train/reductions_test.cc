#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/run_trainer.h"
#include "worker/engine/base/error.h"

// A sum over ranks that is left out trains on and says nothing, and what is delivered is wrong. So
// every kind of sum that a run makes, over every group of ranks, is left out once: the run must
// come out otherwise than it should, or fail.

namespace sft::engine {
namespace {

using ::testing::IsEmpty;

// The sums of a run by kind and group, and the one that is left out.
struct Sums {
  std::mutex mutex;
  std::set<std::string> seen;
  std::string left_out;
};

// A rank's communicator and the groups made of it. Once `training`, it notes its sums, and leaves
// out one kind of them.
class LeavesOut : public Communicator {
 public:
  LeavesOut(std::unique_ptr<Communicator> own, Communicator& inner, std::vector<int> members,
            Sums& sums, const bool& training)
      : own_(std::move(own)),
        inner_(inner),
        members_(std::move(members)),
        sums_(sums),
        training_(training) {}

  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  at::Device device() const override { return inner_.device(); }
  std::string_view backend() const override { return inner_.backend(); }

  WorkPtr AllReduceSumAsync(at::Tensor tensor) override {
    if (IsLeftOut("all-reduce")) return std::make_unique<DoneWork>();
    return inner_.AllReduceSumAsync(std::move(tensor));
  }
  WorkPtr ReduceScatterSumAsync(at::Tensor part, at::Tensor in,
                                std::vector<int64_t> counts) override {
    if (!IsLeftOut("reduce-scatter")) {
      return inner_.ReduceScatterSumAsync(std::move(part), std::move(in), std::move(counts));
    }
    int64_t begin = 0;
    for (int rank = 0; rank < inner_.rank(); ++rank) begin += counts[static_cast<size_t>(rank)];
    const at::Tensor own = in.view(-1).narrow(0, begin, part.numel());
    if (own.data_ptr() != part.data_ptr()) part.view(-1).copy_(own);
    return std::make_unique<DoneWork>();
  }
  // Numbers that are added up by whoever gathers them: the loss, and squares for the norm.
  WorkPtr AllGatherAsync(at::Tensor out, at::Tensor part, std::vector<int64_t> counts) override {
    if (out.scalar_type() != at::kDouble || !IsLeftOut("gather of numbers")) {
      return inner_.AllGatherAsync(std::move(out), std::move(part), std::move(counts));
    }
    int64_t begin = 0;
    for (int rank = 0; rank < inner_.rank(); ++rank) begin += counts[static_cast<size_t>(rank)];
    const at::Tensor own = part.clone();
    out.zero_().narrow(0, begin, own.numel()).copy_(own);
    return std::make_unique<DoneWork>();
  }
  WorkPtr AllToAllAsync(at::Tensor out, at::Tensor in) override {
    return inner_.AllToAllAsync(std::move(out), std::move(in));
  }
  WorkPtr BroadcastAsync(at::Tensor tensor, int root) override {
    return inner_.BroadcastAsync(std::move(tensor), root);
  }
  WorkPtr SendAsync(at::Tensor tensor, int to) override {
    return inner_.SendAsync(std::move(tensor), to);
  }
  WorkPtr ReceiveAsync(at::Tensor tensor, int from) override {
    return inner_.ReceiveAsync(std::move(tensor), from);
  }
  void Barrier() override { inner_.Barrier(); }
  std::unique_ptr<Communicator> Connect(const std::string& name,
                                        const std::vector<int>& members) override {
    std::vector<int> global;
    for (const int member : members) global.push_back(members_[static_cast<size_t>(member)]);
    auto group = inner_.Connect(name, members);
    Communicator& inner = *group;
    return std::make_unique<LeavesOut>(std::move(group), inner, std::move(global), sums_,
                                       training_);
  }

 private:
  // All groups alike of one axis have as many members, as far from each other.
  bool IsLeftOut(const char* kind) {
    if (!training_) return false;
    const int step = members_.size() > 1 ? members_[1] - members_[0] : 0;
    const std::string name =
        fmt::format("{} of {} ranks, every {}", kind, members_.size(), std::abs(step));
    const std::lock_guard lock(sums_.mutex);
    sums_.seen.insert(name);
    return sums_.left_out == name;
  }

  std::unique_ptr<Communicator> own_;  // null: borrowed
  Communicator& inner_;
  std::vector<int> members_;
  Sums& sums_;
  const bool& training_;
};

struct Case {
  const char* name;
  spec::Mode mode;
  spec::Sharding sharding;
  int stages = 1;
  int rows = 1;
  int nodes = 1;
  int tensor = 1;
  bool tied = false;
  std::vector<std::string> sums;  // that there are
};

class ReductionsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(testing::TempDir()) / (std::string("sft_sums_") + GetParam().name);
    std::filesystem::remove_all(dir_);
    WriteTinyModel(dir_ / "model",
                   TinyConfig(std::string(", \"num_hidden_layers\": 4, \"tie_word_embeddings\": ") +
                              (GetParam().tied ? "true" : "false")));
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // What the ranks report; the error where the run fails.
  std::string Run(Sums& sums) const {
    const Case& c = GetParam();
    const int world = c.stages * c.rows * c.tensor;
    TrainerOptions options = TinyRun(dir_ / "model", c.mode, world);
    spec::JobSpec& job = options.spec;
    job.parallelism.sharding = c.sharding;
    job.parallelism.pipeline_parallel_size = c.stages;
    job.parallelism.tensor_parallel_size = c.tensor;
    job.compute.nodes = c.nodes;
    job.compute.gpus_per_node = world / c.nodes;
    job.hyperparameters.gradient_accumulation_steps = 2;
    job.hyperparameters.global_batch = 4 * c.rows;
    job.hyperparameters.max_steps = 2;
    job.hyperparameters.max_grad_norm = 0.1;  // the norm decides by how much
    job.checkpoint.save_strategy = spec::SaveStrategy::kNo;
    std::vector<std::string> told(static_cast<size_t>(world));
    try {
      RunRanks(world, [&](Communicator& comm) {
        bool training = false;
        std::vector<int> everyone;
        for (int rank = 0; rank < comm.world(); ++rank) everyone.push_back(rank);
        LeavesOut leaves_out(nullptr, comm, everyone, sums, training);
        RecordingObserver observer;
        std::string& text = told[static_cast<size_t>(comm.rank())];
        observer.on_step = [&](int64_t step) {
          const StepReport& report = observer.steps.back();
          text += fmt::format("{} {} {}; ", step, report.loss, report.grad_norm);
          training = step < 2;  // what is delivered is gathered as it should
        };
        observer.on_message = [&](std::string_view) {};
        Trainer trainer(options, leaves_out, observer);
        training = true;
        trainer.Run();
        text += observer.consistency.weights_sha256;
      });
    } catch (const std::exception& error) {
      return error.what();
    }
    return fmt::format("{}", fmt::join(told, "\n"));
  }

  std::filesystem::path dir_;
};

TEST_P(ReductionsTest, EachSumThatIsLeftOutShows) {
  Sums right;
  const std::string expected = Run(right);
  EXPECT_THAT(right.seen, testing::UnorderedElementsAreArray(GetParam().sums));
  for (const std::string& sum : right.seen) {
    Sums wrong;
    wrong.left_out = sum;
    EXPECT_NE(Run(wrong), expected) << sum << " is left out, and nothing shows it";
  }
}

constexpr char kLoss2[] = "gather of numbers of 2 ranks, every 1",
               kLoss4[] = "gather of numbers of 4 ranks, every 1";

INSTANTIATE_TEST_SUITE_P(
    Cases, ReductionsTest,
    testing::Values(
        Case{.name = "Ddp",
             .mode = spec::Mode::kFullFinetune,
             .sharding = spec::Sharding::kDdp,
             .rows = 2,
             .sums = {kLoss2, "all-reduce of 2 ranks, every 1"}},
        Case{.name = "Zero1",
             .mode = spec::Mode::kLora,
             .sharding = spec::Sharding::kZero1,
             .rows = 2,
             .sums = {kLoss2, "reduce-scatter of 2 ranks, every 1"}},
        Case{.name = "Hybrid",
             .mode = spec::Mode::kFullFinetune,
             .sharding = spec::Sharding::kHybridShard,
             .rows = 4,
             .nodes = 2,
             .sums = {kLoss4, kLoss2, "reduce-scatter of 2 ranks, every 1",
                      "all-reduce of 2 ranks, every 2"}},
        Case{.name = "Pipeline",
             .mode = spec::Mode::kFullFinetune,
             .sharding = spec::Sharding::kDdp,
             .stages = 2,
             .rows = 2,
             .sums = {kLoss4, "gather of numbers of 2 ranks, every 2",
                      "all-reduce of 2 ranks, every 1"}},
        Case{.name = "PipelineOfShards",
             .mode = spec::Mode::kLora,
             .sharding = spec::Sharding::kFullShard,
             .stages = 2,
             .rows = 2,
             .sums = {kLoss4, kLoss2, "gather of numbers of 2 ranks, every 2",
                      "reduce-scatter of 2 ranks, every 1"}},
        Case{.name = "PipelineWithATableOnBothEnds",
             .mode = spec::Mode::kFullFinetune,
             .sharding = spec::Sharding::kDdp,
             .stages = 2,
             .rows = 2,
             .tied = true,
             .sums = {kLoss4, "gather of numbers of 2 ranks, every 2",
                      "all-reduce of 2 ranks, every 1", "all-reduce of 2 ranks, every 2"}},
        Case{.name = "TensorOfReplicas",
             .mode = spec::Mode::kLora,
             .sharding = spec::Sharding::kDdp,
             .rows = 2,
             .tensor = 2,
             .sums = {kLoss4, kLoss2, "reduce-scatter of 2 ranks, every 1",
                      "all-reduce of 2 ranks, every 1", "all-reduce of 2 ranks, every 2"}},
        Case{.name = "TensorOfShards",
             .mode = spec::Mode::kFullFinetune,
             .sharding = spec::Sharding::kFullShard,
             .rows = 2,
             .tensor = 2,
             .sums = {kLoss4, "reduce-scatter of 2 ranks, every 1",
                      "reduce-scatter of 2 ranks, every 2", "all-reduce of 2 ranks, every 1"}},
        Case{.name = "TensorWithTwoRanksToAHeadOfKeys",
             .mode = spec::Mode::kFullFinetune,
             .sharding = spec::Sharding::kDdp,
             .tensor = 4,
             .sums = {kLoss4, "reduce-scatter of 4 ranks, every 1",
                      "all-reduce of 4 ranks, every 1", "all-reduce of 2 ranks, every 1"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::engine
