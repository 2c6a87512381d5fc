#include "worker/engine/train/tensor_reader.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors_writer.h"

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

TEST(TensorReaderTest, ReadsPartsThroughBuffersThatAreSmallerThanThey) {
  const TempDir dir;
  const Tensor half = at::arange(3'000'001, at::kFloat).to(at::kBFloat16);
  const Tensor whole = at::randn({700'001});
  WriteSafetensors(dir / "model.safetensors",
                   std::vector<NamedTensor>{{"half", half}, {"whole", whole}});
  const auto file = SafetensorsFile::Open(dir / "model.safetensors");
  // Two pieces and a bit.
  TensorReader reader(at::kCPU, (int64_t{2} << 20) + 10);
  EXPECT_TRUE(reader.Read(*file, "half", 0, half.numel()).equal(half));
  EXPECT_TRUE(reader.Read(*file, "whole", 0, whole.numel()).equal(whole));
  EXPECT_TRUE(
      reader.Read(*file, "half", 1'234'567, 1'500'000).equal(half.narrow(0, 1'234'567, 1'500'000)));
  EXPECT_TRUE(reader.Read(*file, "whole", 700'000, 1).equal(whole.narrow(0, 700'000, 1)));
  EXPECT_EQ(reader.Read(*file, "half", 5, 0).numel(), 0);
  const Tensor to = at::zeros({100'000}, at::kFloat);
  reader.Read(*file, "half", 2'900'001, to.narrow(0, 1, 99'999));
  EXPECT_EQ(to[0].item<float>(), 0.0F);
  EXPECT_TRUE(to.narrow(0, 1, 99'999).equal(half.narrow(0, 2'900'001, 99'999).to(at::kFloat)));
  reader.Read(*file, "whole", 17, to.narrow(0, 50'000, 3));
  EXPECT_TRUE(to.narrow(0, 50'000, 3).equal(whole.narrow(0, 17, 3)));
  EXPECT_THROW(reader.Read(*file, "half", 1, half.numel()), InternalError);
  EXPECT_THROW(reader.Read(*file, "other", 0, 1), UserError);
}

TEST(TensorReaderTest, SaysThatAFileBecameShorter) {
  const TempDir dir;
  WriteSafetensors(dir / "model.safetensors",
                   std::vector<NamedTensor>{{"a", at::ones({4'000'000})}});
  const auto file = SafetensorsFile::Open(dir / "model.safetensors");
  std::filesystem::resize_file(dir / "model.safetensors", 9'000'000);
  TensorReader reader(at::kCPU);
  EXPECT_EQ(reader.Read(*file, "a", 0, 2'000'000).numel(), 2'000'000);
  try {
    reader.Read(*file, "a", 0, 4'000'000);
    FAIL() << "it was read";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it ended within \"a\" while it was read"));
    EXPECT_EQ(error.code(), "truncated_file");
  }
}

}  // namespace
}  // namespace sft::engine
