#include "worker/engine/train/tensor_reader.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_xor.h>

#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/checkpoint/safetensors_writer.h"

// Files on their way to a GPU.

namespace sft::engine {
namespace {

using at::Tensor;

using TensorReaderGpuTest = GpuTest;

// Buffers are far smaller than what passes through them, so that each is filled again while the
// GPU may still copy from it; the destination was freed by work that the GPU has not done yet.
TEST_F(TensorReaderGpuTest, BringsTheFilesBytes) {
  constexpr int64_t kElements = int64_t{24} << 20;
  const TempDir dir;
  const Tensor values = at::arange(kElements, at::kInt).bitwise_xor(0x5bd1e995);
  WriteSafetensors(dir / "model.safetensors", std::vector<NamedTensor>{{"a", values}});
  const auto file = SafetensorsFile::Open(dir / "model.safetensors");
  const at::Device gpu(at::kCUDA, 0);
  TensorReader reader(gpu, (int64_t{3} << 20) + 4);
  const Tensor kept = ToGpu(values);
  for (const int64_t first : {int64_t{0}, int64_t{12'345}, kElements - 1}) {
    const int64_t count = kElements - first;
    {
      Tensor freed = kept.narrow(0, first, count).clone();
      for (int i = 0; i < 20; ++i) freed.add_(i);
    }
    const Tensor read = reader.Read(*file, "a", first, count);
    EXPECT_EQ(read.device(), gpu);
    EXPECT_TRUE(read.equal(kept.narrow(0, first, count))) << "from " << first;
  }
}

}  // namespace
}  // namespace sft::engine
