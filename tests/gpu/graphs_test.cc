// Blocks that are recorded as CUDA graphs: the same bits as without, on the same padded batches.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "tests/unit/worker/engine/train/documents.h"
#include "worker/engine/kernels/graph.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/padding.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;

constexpr int kSteps = 4;
constexpr int kMicroBatches = 4;
constexpr int kLayers = 3;
constexpr int kVocabulary = 512;

// Of one step's lengths; others of the same shape in the next.
using Batches = std::vector<int> (*)(int step, int micro);

// cuDNN's: ragged, of two shapes in turns, the larger one second.
std::vector<int> LongRagged(int step, int micro) {
  if (micro % 2 == 0) return {300 + step, 120, 80 - step};
  return {500 + step, 300 - 2 * step, 200, 90};
}
// cuDNN's and of one length, beside ragged ones.
std::vector<int> LongDense(int step, int micro) {
  if (micro % 2 == 0) return {512, 512};
  return {400 + step, 330, 150 + step, 100};
}
// FlashAttention-2's.
std::vector<int> Short(int step, int micro) {
  if (micro % 2 == 0) return {60 + step, 40, 20};
  return {200 + step, 180, 150 - step, 30, 20};
}

struct Model {
  const char* name;
  const char* heads;  // of the config
};
// Heads of 128 with norms, as Qwen3 has, and of 64 without.
constexpr Model kQwen3{
    "qwen3", R"("model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128,
      "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true,)"};
constexpr Model kLlama{"llama", R"("model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "num_attention_heads": 8, "num_key_value_heads": 2,)"};

struct Curve {
  std::vector<double> losses, norms;
  std::vector<Tensor> gradients, masters;
  size_t shapes = 0;
};

class GraphsTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    root_ = OwnFolder("sft_gpu_graphs");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::filesystem::path DirOf(const Model& model) const {
    const std::filesystem::path dir = root_ / model.name;
    if (!std::filesystem::exists(dir)) {
      WriteTinyModel(dir, std::string("{") + model.heads +
                              R"("vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024,
          "num_hidden_layers": 3, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
          "hidden_act": "silu", "torch_dtype": "bfloat16"})");
    }
    return dir;
  }

  static spec::JobSpec Job(spec::Mode mode, int bits = 0) {
    spec::JobSpec job;
    job.training.mode = mode;
    job.training.use_qlora = bits > 0;
    job.quantization.bits = bits;
    return job;
  }

  static plan::ExecutionPlan Run(Recompute level) { return {.shallow = level, .kept = kLayers}; }

  // What `between` does with the model after each step returns one more of the losses.
  using Between = double (*)(TrainingModel& model, int step);

  Curve Train(const Model& config, const spec::JobSpec& job, Batches batches, bool recorded,
              plan::ExecutionPlan run, Between between = nullptr) const {
    const at::NoGradGuard no_grad;
    const auto comm = MakeLocalCommunicator(at::Device(at::kCUDA, 0));
    run.graphs = recorded;
    TrainingModel model(job, DirOf(config), *comm, run);
    Curve curve;
    for (int step = 0; step < kSteps; ++step) {
      model.BeginStep();
      double sum = 0;
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        const MicroBatch batch =
            WithPadding(Documents(batches(step, micro), 10 * step + micro, kVocabulary));
        sum += model.ForwardBackward(batch, step, micro, micro + 1 == kMicroBatches).item<double>();
      }
      curve.losses.push_back(sum);
      curve.norms.push_back(model.ReduceGradients(1e-3));
      for (const Tensor& gradient : model.gradients()) curve.gradients.push_back(gradient.cpu());
      model.Update(1e-2, 1e-3 * ClipFactor(curve.norms.back(), 1.0));
      if (between != nullptr) curve.losses.push_back(between(model, step));
    }
    for (const TrainablePart& part : model.store().parts()) {
      curve.masters.push_back(part.master.cpu());
    }
    if (recorded) {
      EXPECT_NE(model.decoder().graphs(), nullptr);
      curve.shapes = model.decoder().graphs()->shapes();
    }
    return curve;
  }

  void ExpectTheSameBits(const Model& config, const spec::JobSpec& job, Batches batches,
                         Recompute level = Recompute::kNothing, Between between = nullptr) const {
    const Curve recorded = Train(config, job, batches, true, Run(level), between);
    const Curve eager = Train(config, job, batches, false, Run(level), between);
    EXPECT_GE(recorded.shapes, 2U);
    EXPECT_EQ(recorded.losses, eager.losses);
    EXPECT_EQ(recorded.norms, eager.norms);
    EXPECT_NE(eager.losses.front(), eager.losses.back());
    ASSERT_EQ(recorded.gradients.size(), eager.gradients.size());
    for (size_t i = 0; i < eager.gradients.size(); ++i) {
      EXPECT_TRUE(SameBits(recorded.gradients[i], eager.gradients[i])) << i;
    }
    for (size_t i = 0; i < eager.masters.size(); ++i) {
      EXPECT_TRUE(SameBits(recorded.masters[i], eager.masters[i])) << i;
    }
  }

  std::filesystem::path root_;
};

TEST_F(GraphsTest, AdaptersTrainTheSame) {
  for (const Batches batches : {&LongRagged, &LongDense, &Short}) {
    ExpectTheSameBits(kQwen3, Job(spec::Mode::kLora), batches);
    ExpectTheSameBits(kLlama, Job(spec::Mode::kLora), batches);
  }
}

TEST_F(GraphsTest, KeptQuantisedBlocksTrainTheSame) {
  for (const int bits : {4, 8}) {
    ExpectTheSameBits(kQwen3, Job(spec::Mode::kLora, bits), LongRagged);
    ExpectTheSameBits(kLlama, Job(spec::Mode::kLora, bits), Short);
  }
}

TEST_F(GraphsTest, WholeModelsTrainTheSame) {
  for (const Batches batches : {&LongRagged, &LongDense, &Short}) {
    ExpectTheSameBits(kQwen3, Job(spec::Mode::kFullFinetune), batches);
    ExpectTheSameBits(kLlama, Job(spec::Mode::kFullFinetune), batches);
  }
}

TEST_F(GraphsTest, RecomputationIsRecordedToo) {
  for (const Recompute level :
       {Recompute::kNorms, Recompute::kMlp, Recompute::kLinears, Recompute::kAll}) {
    ExpectTheSameBits(kQwen3, Job(spec::Mode::kLora), LongRagged, level);
  }
}

// DoRA's gains are written where the recording reads them; embedding and norms are trained, too.
TEST_F(GraphsTest, VariantsOfAdaptersTrainTheSame) {
  for (const int bits : {0, 4}) {
    spec::JobSpec job = Job(spec::Mode::kLora, bits);
    job.lora.use_dora = true;
    job.lora.loraplus_lr_ratio = 4.0;
    job.lora.modules_to_save = {"embed_tokens", "norm"};
    job.lora.ensure_weight_tying = true;
    job.hyperparameters.neftune_noise_alpha = 5.0;
    ExpectTheSameBits(kQwen3, job, LongRagged);
    ExpectTheSameBits(kLlama, job, Short, Recompute::kMlp);
  }
}

// Of a shape that is recorded, and of one that never is.
double Validate(TrainingModel& model, int step) {
  double sum = 0;
  for (const std::vector<int>& lengths : {LongRagged(step, 0), std::vector<int>{77, 31}}) {
    sum += model.Loss(Documents(lengths, 1000, kVocabulary)).item<double>();
  }
  return sum;
}

TEST_F(GraphsTest, ValidationBetweenStepsChangesNothing) {
  for (const spec::JobSpec& job : {Job(spec::Mode::kLora, 4), Job(spec::Mode::kFullFinetune)}) {
    ExpectTheSameBits(kQwen3, job, LongRagged, Recompute::kNothing, &Validate);
  }
}

// After the step in which shapes are recorded the weights of before it come back.
double RestoreFormer(TrainingModel& model, int step) {
  static std::vector<Tensor> former;
  if (step == 0) former = model.Snapshot();
  if (step == 2) model.Restore(former);
  if (step == 3) former.clear();
  return Validate(model, 0);
}

TEST_F(GraphsTest, RestoredWeightsAreSeen) {
  for (const spec::JobSpec& job : {Job(spec::Mode::kLora, 4), Job(spec::Mode::kFullFinetune)}) {
    ExpectTheSameBits(kLlama, job, LongRagged, Recompute::kNothing, &RestoreFormer);
  }
}

// On Hopper alone.
TEST_F(GraphsTest, ProductsInFp8TrainTheSame) {
  if (Plugin().devices->Properties(0).compute_major != 9) GTEST_SKIP() << "no Hopper GPU";
  spec::JobSpec job = Job(spec::Mode::kLora, 4);
  job.training.matmul = spec::Matmul::kFp8;
  ExpectTheSameBits(kQwen3, job, LongRagged);
  job = Job(spec::Mode::kFullFinetune);
  job.training.matmul = spec::Matmul::kFp8;
  ExpectTheSameBits(kQwen3, job, LongRagged);
}

TEST_F(GraphsTest, PlainProductsOfAttentionAreNotRecorded) {
  spec::JobSpec job = Job(spec::Mode::kLora);
  job.parallelism.compute_type = spec::ComputeType::kFp32;
  const auto comm = MakeLocalCommunicator(at::Device(at::kCUDA, 0));
  plan::ExecutionPlan run = Run(Recompute::kNothing);
  run.graphs = true;
  EXPECT_EQ(TrainingModel(job, DirOf(kLlama), *comm, run).decoder().graphs(), nullptr);
}

// The memory of recordings is that of the largest shape, in whatever order shapes come.
TEST_F(GraphsTest, ShapesShareTheirMemory) {
  const at::NoGradGuard no_grad;
  const auto comm = MakeLocalCommunicator(at::Device(at::kCUDA, 0));
  plan::ExecutionPlan run = Run(Recompute::kNothing);
  run.graphs = true;
  TrainingModel model(Job(spec::Mode::kLora), DirOf(kQwen3), *comm, run);
  const auto train = [&](int length) {
    for (int i = 0; i < 4; ++i) {
      model.BeginStep();
      model.ForwardBackward(WithPadding(Documents({length, length - 9}, i, kVocabulary)), 0, i,
                            true);
    }
    Plugin().devices->Synchronize(0);
    Plugin().devices->ReleaseCached(0);
    return Plugin().devices->Memory(0).reserved;
  };
  Plugin().devices->ReleaseCached(0);
  const int64_t before = Plugin().devices->Memory(0).reserved;
  const int64_t largest = train(1024) - before;
  for (const int length : {700, 500, 300}) train(length);
  EXPECT_EQ(model.decoder().graphs()->shapes(), 4U);
  // The allocator has small tensors apart from large ones.
  EXPECT_LE(train(700) - before, largest + largest / 2);
}

// What a recording throws goes through, and the next one can be made.
TEST_F(GraphsTest, ARecordingThatFailsLeavesTheDeviceUsable) {
  const auto recorder = MakeGraphRecorder(at::Device(at::kCUDA, 0));
  const Tensor x = at::zeros({64}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  x.add_(0.0);  // has its kernel loaded
  EXPECT_THROW(recorder->Record([&] {
    x.add_(1.0);
    TORCH_CHECK(false, "no");
  }),
               c10::Error);
  const auto graph = MakeGraphRecorder(x.device())->Record([&] { x.add_(2.0); });
  EXPECT_EQ(x.sum().item<float>(), 0.0f);
  graph->Replay();
  graph->Replay();
  EXPECT_EQ(x.sum().item<float>(), 256.0f);
}

}  // namespace
}  // namespace sft::engine
