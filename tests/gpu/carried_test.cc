#include "tests/gpu/small_training.h"
#include "worker/engine/kernels/ops.h"

// De-quantised weights that blocks carry from a backward to the next forward.

namespace sft::engine {
namespace {

using at::Tensor;

using CarriedTest = SmallTrainingTest;

TEST_F(CarriedTest, GiveTheSameBitsAsWeightsWrittenForEachPass) {
  for (const bool prefetch : {true, false}) {
    for (const int kept : {0, 1}) {
      SCOPED_TRACE(testing::Message() << "prefetch " << prefetch << " kept " << kept);
      spec::JobSpec job = Job(spec::Mode::kLora);
      job.training.use_qlora = true;
      job.quantization.bits = 4;
      plan::ExecutionPlan run = plan::Unplanned(job, plan::Device::kGpu);
      run.prefetch = prefetch;
      run.kept = kept;
      const Outcome plain = Train(job, 1e-3, run);
      run.carried = 4 - kept;
      const Outcome carried = Train(job, 1e-3, run);
      EXPECT_GT(carried.between_bytes, plain.between_bytes) << "copies stay between steps";
      EXPECT_EQ(plain.losses, carried.losses);
      EXPECT_EQ(plain.norms, carried.norms);
      for (size_t i = 0; i < plain.masters.size(); ++i) {
        EXPECT_TRUE(SameBits(plain.masters[i], carried.masters[i])) << i;
      }
    }
  }
}

// The free piece stays one, below.
TEST_F(CarriedTest, MemoryComesFromTheUpperEndOfTheLargestFreePiece) {
  constexpr int64_t kPart = int64_t{64} << 20;
  const auto options = at::TensorOptions(at::kByte).device(at::kCUDA);
  const CudaDevices& devices = *Plugin().devices;
  devices.ReleaseCached(0);
  const Tensor like = at::empty({1}, options);
  { const Tensor all = at::empty({8 * kPart}, options); }
  const int64_t reserved = devices.Memory(0).reserved;
  const Tensor end = ops::EmptyAtTheEnd(like, kPart);
  const Tensor below = ops::EmptyAtTheEnd(like, kPart);
  const Tensor rest = at::empty({6 * kPart}, options);
  EXPECT_LT(rest.data_ptr(), below.data_ptr());
  EXPECT_LT(below.data_ptr(), end.data_ptr());
  EXPECT_EQ(devices.Memory(0).reserved, reserved);
}

}  // namespace
}  // namespace sft::engine
