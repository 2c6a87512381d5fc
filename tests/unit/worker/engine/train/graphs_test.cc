// Blocks that are recorded by the shape of the micro-batch. A CPU's recorder calls them again, so
// that all but CUDA's part is met here; tests/gpu/graphs_test.cc has that.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/documents.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/padding.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;

constexpr int kSteps = 4;
constexpr int kLayers = 2;

// Ragged ones of two shapes, and dense ones of a third, in turns; ranks have different ones.
MicroBatch BatchOf(int step, int micro, int rank) {
  const int seed = 100 * rank + 10 * step + micro;
  switch ((micro + rank) % 3) {
    case 0:
      return Documents({20 + step, 9, 30 - step}, seed, kTinyVocabulary);
    case 1:
      return Documents({40 + step, 31, 20, 7 + step}, seed, kTinyVocabulary);
    default:
      return Documents({32, 32, 32, 32}, seed, kTinyVocabulary);
  }
}
constexpr int kMicroBatches = 4;

struct Curve {
  std::vector<double> losses, norms;
  std::vector<Tensor> gradients;  // of each step
  std::vector<Tensor> masters;    // after the last
  size_t shapes = 0;
};

enum class Way { kRecorded, kPadded, kPlain };

class GraphsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    WriteTinyModel(dir_->path());
  }
  static void TearDownTestSuite() { dir_.reset(); }

  static spec::JobSpec Job(spec::Mode mode) {
    spec::JobSpec job;
    job.training.mode = mode;
    job.quantization.bits = 0;
    job.lora.r = 4;
    job.lora.alpha = 8;
    return job;
  }
  static spec::JobSpec Qlora() {
    spec::JobSpec job = Job(spec::Mode::kLora);
    job.training.use_qlora = true;
    job.quantization.bits = 4;
    return job;
  }
  // Of which the first block recomputes `level`.
  static plan::ExecutionPlan Recorded(Recompute level = Recompute::kNothing) {
    return {.deep = level, .deep_layers = 1, .kept = kLayers, .graphs = true};
  }

  static Curve TrainOn(Communicator& comm, const spec::JobSpec& job, Way way,
                       plan::ExecutionPlan run) {
    const at::NoGradGuard no_grad;
    run.graphs = way == Way::kRecorded;
    TrainingModel model(job, dir_->path(), comm, run);
    Curve curve;
    for (int step = 0; step < kSteps; ++step) {
      model.BeginStep();
      double sum = 0;
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        const MicroBatch batch = BatchOf(step, micro, comm.rank());
        sum += model
                   .ForwardBackward(way == Way::kPadded ? WithPadding(batch) : batch, step, micro,
                                    micro + 1 == kMicroBatches)
                   .item<double>();
      }
      curve.losses.push_back(sum);
      curve.norms.push_back(model.ReduceGradients(1e-2));
      for (const Tensor& gradient : model.gradients()) curve.gradients.push_back(gradient.clone());
      model.Update(1e-2, 1e-2 * ClipFactor(curve.norms.back(), 1.0));
    }
    for (const TrainablePart& part : model.store().parts()) {
      curve.masters.push_back(part.master.clone());
    }
    if (model.decoder().graphs() != nullptr) curve.shapes = model.decoder().graphs()->shapes();
    return curve;
  }

  static Curve Train(const spec::JobSpec& job, Way way,
                     const plan::ExecutionPlan& run = Recorded()) {
    const auto comm = MakeLocalCommunicator(at::kCPU);
    return TrainOn(*comm, job, way, run);
  }

  static void ExpectSameBits(const Curve& a, const Curve& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    ASSERT_EQ(a.gradients.size(), b.gradients.size());
    for (size_t i = 0; i < a.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(a.gradients[i], b.gradients[i])) << i;
    }
    for (size_t i = 0; i < a.masters.size(); ++i) {
      EXPECT_TRUE(at::equal(a.masters[i], b.masters[i])) << i;
    }
  }

  // Two models that train alike, and a third whose batches are not padded.
  static void ExpectTheSameTraining(const spec::JobSpec& job,
                                    const plan::ExecutionPlan& run = Recorded()) {
    const Curve recorded = Train(job, Way::kRecorded, run);
    EXPECT_GE(recorded.shapes, 3U);
    ExpectSameBits(recorded, Train(job, Way::kPadded, run));
    const Curve plain = Train(job, Way::kPlain, run);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(recorded.losses[step] / plain.losses[step], 1.0, 1e-5) << step;
      EXPECT_NEAR(recorded.norms[step] / plain.norms[step], 1.0, 1e-4) << step;
    }
  }

  static bool Records(const spec::JobSpec& job, const plan::ExecutionPlan& run,
                      Communicator& comm) {
    const at::NoGradGuard no_grad;
    return TrainingModel(job, dir_->path(), comm, run).decoder().graphs() != nullptr;
  }
  static bool Records(const spec::JobSpec& job, const plan::ExecutionPlan& run = Recorded()) {
    return Records(job, run, *MakeLocalCommunicator(at::kCPU));
  }

  static std::unique_ptr<TempDir> dir_;
};

std::unique_ptr<TempDir> GraphsTest::dir_;

TEST_F(GraphsTest, FullFineTuningIsTheSame) {
  ExpectTheSameTraining(Job(spec::Mode::kFullFinetune));
}

TEST_F(GraphsTest, AdaptersAreThoseOfTheLastUpdate) {
  ExpectTheSameTraining(Job(spec::Mode::kLora));
}

TEST_F(GraphsTest, KeptQuantisedBlocksAreTheSame) { ExpectTheSameTraining(Qlora()); }

TEST_F(GraphsTest, RecomputationIsTheSame) {
  for (const Recompute level :
       {Recompute::kNorms, Recompute::kMlp, Recompute::kLinears, Recompute::kAll}) {
    ExpectTheSameTraining(Job(spec::Mode::kLora), Recorded(level));
  }
}

TEST_F(GraphsTest, BlocksInBf16AreTheSame) {
  spec::JobSpec job = Job(spec::Mode::kLora);
  job.parallelism.compute_type = spec::ComputeType::kBf16;
  const Curve recorded = Train(job, Way::kRecorded);
  ExpectSameBits(recorded, Train(job, Way::kPadded));
}

TEST_F(GraphsTest, GainsOfRowsAreThoseOfTheLastUpdate) {
  spec::JobSpec job = Job(spec::Mode::kLora);
  job.lora.use_dora = true;
  job.lora.modules_to_save = {"norm"};
  ExpectTheSameTraining(job);
}

TEST_F(GraphsTest, NoiseOnEmbeddingsIsTheSame) {
  spec::JobSpec job = Job(spec::Mode::kLora);
  const Curve quiet = Train(job, Way::kRecorded);
  job.hyperparameters.neftune_noise_alpha = 5.0;
  const Curve recorded = Train(job, Way::kRecorded);
  EXPECT_GE(recorded.shapes, 3U);
  ExpectSameBits(recorded, Train(job, Way::kPadded));
  EXPECT_NE(recorded.losses, quiet.losses);
}

// Every unit is finished once a micro-batch, so that each bucket is sent once.
TEST_F(GraphsTest, RanksExchangeTheSameGradients) {
  for (const spec::Sharding sharding : {spec::Sharding::kDdp, spec::Sharding::kZero1}) {
    spec::JobSpec job = Job(spec::Mode::kFullFinetune);
    job.parallelism.sharding = sharding;
    job.parallelism.ddp_bucket_cap_mb = 0.01;
    job.compute.gpu_count = 2;
    Curve curves[2];
    for (const Way way : {Way::kRecorded, Way::kPadded}) {
      std::mutex mutex;
      RunRanks(2, [&](Communicator& comm) {
        Curve curve = TrainOn(comm, job, way, Recorded());
        const std::lock_guard lock(mutex);
        if (comm.rank() == 1) curves[way == Way::kRecorded ? 0 : 1] = std::move(curve);
      });
    }
    EXPECT_GE(curves[0].shapes, 3U);
    ExpectSameBits(curves[0], curves[1]);
  }
}

// The operations that LibTorch dispatches on this thread meanwhile.
std::vector<std::string> OperationsOf(const std::function<void()>& work) {
  static std::vector<std::string>* names = nullptr;
  std::vector<std::string> all;
  names = &all;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call)
                                     -> std::unique_ptr<at::ObserverContext> {
        names->emplace_back(call.name());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  return all;
}

// A CPU's recording would do it anew, CUDA's never again.
TEST_F(GraphsTest, UpdatedAdaptersArePlacedBeforeTheRecordingReadsThem) {
  const at::NoGradGuard no_grad;
  for (const spec::JobSpec& job : {Job(spec::Mode::kLora), Qlora()}) {
    const auto comm = MakeLocalCommunicator(at::kCPU);
    TrainingModel model(job, dir_->path(), *comm, Recorded());
    std::vector<std::string> operations;
    for (int step = 0; step < 3; ++step) {
      model.BeginStep();
      operations = OperationsOf([&] {
        model.ForwardBackward(Documents({64, 64}, step, kTinyVocabulary), step, 0, true);
      });
      model.Update(1e-2, model.ReduceGradients(1e-2));
    }
    const auto last_placed = std::find(operations.rbegin(), operations.rend(), "sft::PlaceFactors");
    const auto first_read = std::find(operations.begin(), operations.end(), "sft::RmsNorm");
    ASSERT_NE(last_placed, operations.rend());
    ASSERT_NE(first_read, operations.end());
    EXPECT_LT(last_placed.base() - operations.begin(), first_read - operations.begin() + 1);
    EXPECT_EQ(std::count(operations.begin(), operations.end(), "sft::PlaceFactors"), 4 * kLayers);
  }
}

TEST_F(GraphsTest, AnEmptyMicroBatchIsPaddingAlone) {
  const at::NoGradGuard no_grad;
  const auto comm = MakeLocalCommunicator(at::kCPU);
  TrainingModel model(Job(spec::Mode::kLora), dir_->path(), *comm, Recorded());
  for (int micro = 0; micro < 4; ++micro) {
    model.BeginStep();
    EXPECT_EQ(model.ForwardBackward({}, 0, micro, true).item<double>(), 0.0);
    EXPECT_EQ(model.ReduceGradients(1.0), 0.0);
  }
}

TEST_F(GraphsTest, ShapesBeyondTheMostRunAsTheyAre) {
  const at::NoGradGuard no_grad;
  const auto comm = MakeLocalCommunicator(at::kCPU);
  TrainingModel model(Job(spec::Mode::kLora), dir_->path(), *comm, Recorded());
  const auto loss = [&](int documents) {
    model.BeginStep();
    return model
        .ForwardBackward(Documents(std::vector<int>(documents, 64), 1, kTinyVocabulary), 0, 0, true)
        .item<double>();
  };
  constexpr int kMore = BlockGraphs::kMostShapes + 3;
  for (int documents = 1; documents <= kMore; ++documents) {
    const double first = loss(documents);
    for (int again = 0; again < 2; ++again) EXPECT_EQ(loss(documents), first) << documents;
  }
  EXPECT_LE(model.decoder().graphs()->shapes(), BlockGraphs::kMostShapes);
}

TEST_F(GraphsTest, JobsWhoseMasksOrAddressesChangeAreNotRecorded) {
  EXPECT_TRUE(Records(Qlora()));
  EXPECT_FALSE(Records(Qlora(), {.kept = 1, .graphs = true}));
  EXPECT_FALSE(Records(Qlora(), {.carried = kLayers, .graphs = true}));
  EXPECT_FALSE(Records(Qlora(), {.kept = kLayers}));
  spec::JobSpec drops = Job(spec::Mode::kLora);
  drops.lora.dropout = 0.1;
  EXPECT_FALSE(Records(drops));
  const plan::ExecutionPlan on_host{.graphs = true, .optimizer_on_host = true};
  EXPECT_FALSE(Records(Job(spec::Mode::kFullFinetune), on_host));
  for (const spec::Sharding sharding :
       {spec::Sharding::kZero2, spec::Sharding::kFullShard, spec::Sharding::kHybridShard}) {
    spec::JobSpec sharded = Job(spec::Mode::kFullFinetune);
    sharded.parallelism.sharding = sharding;
    EXPECT_FALSE(Records(sharded));
  }
}

}  // namespace
}  // namespace sft::engine
