#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/training_model.h"

// The optimizer on the host beside the one on the GPU: five steps of a small model.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int kSteps = 5;
constexpr int kMicroBatches = 2;

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<Tensor> masters, changes;
  int64_t gpu_bytes = 0;
};

class OffloadTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ =
        std::filesystem::path(::testing::TempDir()) / (std::string("sft_offload_") + info->name());
    WriteTinyModel(dir_, Config());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Wide enough that one matrix goes to the host in several pieces.
  static std::string Config() {
    return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 20480,
      "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
      "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16"})";
  }

  static MicroBatch Rows(int seed) {
    constexpr int kTokens = 64;
    MicroBatch batch;
    for (int i = 0; i < kTokens; ++i) {
      batch.tokens.push_back((seed * 31 + i * 7) % 20480);
      batch.targets.push_back((seed * 31 + (i + 1) * 7) % 20480);
      batch.positions.push_back(i);
      batch.loss_rows.push_back(i);
    }
    batch.cu_seqlens = {0, kTokens};
    batch.max_seqlen = kTokens;
    return batch;
  }

  Outcome Train(spec::JobSpec job, bool on_host, double rate = 1e-3) const {
    const at::NoGradGuard no_grad;
    const auto comm = MakeLocalCommunicator(at::Device(at::kCUDA, 0));
    job.parallelism.offload_optimizer = on_host;
    const int64_t before = Plugin().devices->Memory(0).allocated;
    TrainingModel model(job, dir_, *comm);
    Outcome run;
    run.gpu_bytes = Plugin().devices->Memory(0).allocated - before;
    std::vector<Tensor> initial;
    for (const TrainablePart& part : model.store().parts()) {
      initial.push_back(part.master.cpu().clone());
    }
    const double scale = 1.0 / (64 * kMicroBatches);
    for (int step = 0; step < kSteps; ++step) {
      model.BeginStep();
      double sum = 0;
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        sum +=
            model.ForwardBackward(Rows(2 * step + micro), step, micro, micro + 1 == kMicroBatches)
                .item<double>();
      }
      run.losses.push_back(sum * scale);
      run.norms.push_back(model.ReduceGradients(scale));
      model.Update(rate, scale * ClipFactor(run.norms.back(), 1.0));
    }
    for (const TrainablePart& part : model.store().parts()) {
      run.masters.push_back(part.master.cpu().clone());
      run.changes.push_back(run.masters.back() - initial[run.changes.size()]);
    }
    return run;
  }

  static double Norm(const Tensor& tensor) { return tensor.norm().item<double>(); }

  static spec::JobSpec Job(spec::Mode mode) {
    spec::JobSpec job;
    job.training.mode = mode;
    job.quantization.bits = 0;
    job.hyperparameters.weight_decay = 0.1;
    return job;
  }

  std::filesystem::path dir_;
};

// Adapters' gradients go to the host as they are, and AdamW's arithmetic is the same on both.
TEST_F(OffloadTest, AdaptersGetTheSameBitsWhereverTheirOptimizerIs) {
  const spec::JobSpec job = Job(spec::Mode::kLora);
  const Outcome host = Train(job, true), gpu = Train(job, false);
  EXPECT_EQ(host.losses, gpu.losses);
  EXPECT_EQ(host.norms, gpu.norms);
  ASSERT_EQ(host.masters.size(), gpu.masters.size());
  for (size_t i = 0; i < host.masters.size(); ++i) {
    EXPECT_TRUE(SameBits(host.masters[i], gpu.masters[i])) << i;
  }
}

// Gradients of full fine-tuning are rounded to bf16 once, on their way: 2^-9 of each at most. The
// first loss and norm are of the same weights. The rate is small: at a hundred times it the
// model goes wild, and two runs that differ in one bit part. AdamW moves an element by its
// gradient's sign, so those whose gradient is near zero part from the second step on: what all
// elements did is compared by length and direction.
TEST_F(OffloadTest, FullFineTuningFollowsTheSameCurve) {
  for (const auto kind :
       {spec::Optimizer::kAdamW, spec::Optimizer::kAdamWBf16, spec::Optimizer::kAdamW8bit}) {
    SCOPED_TRACE(static_cast<int>(kind));
    spec::JobSpec job = Job(spec::Mode::kFullFinetune);
    job.hyperparameters.optimizer = kind;
    const Outcome host = Train(job, true, 1e-5), gpu = Train(job, false, 1e-5);
    EXPECT_EQ(host.losses[0], gpu.losses[0]);
    EXPECT_EQ(host.norms[0], gpu.norms[0]);
    for (int step = 1; step < kSteps; ++step) {
      EXPECT_NEAR(host.losses[step], gpu.losses[step], 2e-3 * gpu.losses[step]) << step;
      EXPECT_NEAR(host.norms[step], gpu.norms[step], 3e-2 * gpu.norms[step]) << step;
    }
    for (size_t i = 0; i < host.masters.size(); ++i) {
      EXPECT_LT(RelativeError(host.masters[i], gpu.masters[i]), 5e-3) << i;
      // States and weights of the others are rounded at random.
      if (kind != spec::Optimizer::kAdamW) continue;
      const double ours = Norm(host.changes[i]), theirs = Norm(gpu.changes[i]);
      EXPECT_NEAR(ours, theirs, 0.02 * theirs) << i;
      EXPECT_GT(at::dot(host.changes[i].flatten(), gpu.changes[i].flatten()).item<double>(),
                0.95 * ours * theirs)
          << i;
    }
  }
}

TEST_F(OffloadTest, TwoRunsGiveTheSameBits) {
  const spec::JobSpec job = Job(spec::Mode::kFullFinetune);
  const Outcome one = Train(job, true), two = Train(job, true);
  EXPECT_EQ(one.losses, two.losses);
  for (size_t i = 0; i < one.masters.size(); ++i) {
    EXPECT_TRUE(SameBits(one.masters[i], two.masters[i])) << i;
  }
}

TEST_F(OffloadTest, MastersAndStatesTakeNoMemoryOfTheGpu) {
  const spec::JobSpec job = Job(spec::Mode::kFullFinetune);
  int64_t elements = 0;
  const Outcome host = Train(job, true);
  for (const Tensor& master : host.masters) elements += master.numel();
  const int64_t saved = Train(job, false).gpu_bytes - host.gpu_bytes;
  // Less a buffer of 2^24 elements in bf16 at most.
  EXPECT_GE(saved, 12 * elements - (int64_t{1} << 25) - (int64_t{1} << 21));
}

}  // namespace
}  // namespace sft::engine
