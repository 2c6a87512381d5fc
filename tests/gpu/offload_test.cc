#include "tests/gpu/small_training.h"

// The optimizer and the weights on the host beside those on the GPU.

namespace sft::engine {
namespace {

using at::Tensor;

class OffloadTest : public SmallTrainingTest {
 protected:
  Outcome TrainOn(spec::JobSpec job, bool host, double rate = 1e-3) const {
    job.parallelism.offload_optimizer = host;
    return Train(job, rate);
  }
};

// Adapters' gradients go to the host as they are, and AdamW's arithmetic is the same on both.
TEST_F(OffloadTest, AdaptersGetTheSameBitsWhereverTheirOptimizerIs) {
  const spec::JobSpec job = Job(spec::Mode::kLora);
  const Outcome host = TrainOn(job, true), gpu = TrainOn(job, false);
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
    const Outcome host = TrainOn(job, true, 1e-5), gpu = TrainOn(job, false, 1e-5);
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
  const Outcome one = TrainOn(job, true), two = TrainOn(job, true);
  EXPECT_EQ(one.losses, two.losses);
  for (size_t i = 0; i < one.masters.size(); ++i) {
    EXPECT_TRUE(SameBits(one.masters[i], two.masters[i])) << i;
  }
}

TEST_F(OffloadTest, WeightsOfTheHostGiveTheSameBits) {
  for (const auto mode : {spec::Mode::kLora, spec::Mode::kFullFinetune}) {
    for (const int bits : {0, 4, 8}) {
      if (bits != 0 && mode == spec::Mode::kFullFinetune) continue;
      SCOPED_TRACE(testing::Message() << static_cast<int>(mode) << " " << bits);
      spec::JobSpec job = Job(mode);
      job.training.use_qlora = bits != 0;
      job.quantization.bits = bits;
      job.parallelism.offload_optimizer = mode == spec::Mode::kFullFinetune;
      const Outcome gpu = Train(job);
      job.parallelism.offload_param = true;
      const Outcome host = Train(job);
      EXPECT_EQ(host.losses, gpu.losses);
      EXPECT_EQ(host.norms, gpu.norms);
      for (size_t i = 0; i < gpu.masters.size(); ++i) {
        EXPECT_TRUE(SameBits(host.masters[i], gpu.masters[i])) << i;
      }
      EXPECT_LT(host.gpu_bytes, gpu.gpu_bytes);
    }
  }
}

TEST_F(OffloadTest, MastersAndStatesTakeNoMemoryOfTheGpu) {
  const spec::JobSpec job = Job(spec::Mode::kFullFinetune);
  int64_t elements = 0;
  const Outcome host = TrainOn(job, true);
  for (const Tensor& master : host.masters) elements += master.numel();
  const int64_t saved = TrainOn(job, false).gpu_bytes - host.gpu_bytes;
  // Less a buffer of 2^24 elements in bf16 at most.
  EXPECT_GE(saved, 12 * elements - (int64_t{1} << 25) - (int64_t{1} << 21));
}

}  // namespace
}  // namespace sft::engine
