#include "worker/engine/train/self_check.h"

#include "tests/gpu/small_training.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/kernels/batch_shape.h"

namespace sft::engine {
namespace {

using GpuSelfCheckTest = SmallTrainingTest;

TEST_F(GpuSelfCheckTest, PackedDocumentsStayApartInEachAttention) {
  const at::NoGradGuard no_grad;
  const auto rows = Dataset::FromDocuments({std::vector<int32_t>(300, 7), {11, 12, 13, 14}},
                                           {std::vector<uint8_t>(300, 1), {1, 1, 1, 1}});
  const auto comm = MakeLocalCommunicator(at::Device(at::kCUDA, 0));
  TrainingModel model(Job(spec::Mode::kLora), dir_, *comm);
  const LogitsOf logits = [&](const MicroBatch& batch, const std::vector<int64_t>& tokens) {
    return model.Logits(batch, tokens);
  };
  const ProbeDocuments little = MakeProbe(*rows);
  const std::optional<ProbeDocuments> longer = MakeLongProbe(*rows);
  ASSERT_TRUE(longer);
  EXPECT_LT(little.front().size(), static_cast<size_t>(kShortestForCudnn));
  EXPECT_LT(CheckPacking(logits, little), 0.1);
  EXPECT_LT(CheckPacking(logits, *longer), 0.1);
}

}  // namespace
}  // namespace sft::engine
