#include "worker/engine/train/weight_reader.h"

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

TEST(WeightReaderTest, ReadsPartsThroughBuffersThatAreSmallerThanThey) {
  const TempDir dir;
  const Tensor half = at::arange(3'000'001, at::kFloat).to(at::kBFloat16);
  const Tensor whole = at::randn({700'001});
  WriteSafetensors(dir / "model.safetensors",
                   std::vector<NamedTensor>{{"half", half}, {"whole", whole}});
  const ModelFiles files = ModelFiles::Open(dir.path());
  // Two pieces and a bit.
  WeightReader reader(at::kCPU, (int64_t{2} << 20) + 10);
  EXPECT_TRUE(reader.Read(files, "half", 0, half.numel()).equal(half));
  EXPECT_TRUE(reader.Read(files, "whole", 0, whole.numel()).equal(whole));
  EXPECT_TRUE(
      reader.Read(files, "half", 1'234'567, 1'500'000).equal(half.narrow(0, 1'234'567, 1'500'000)));
  EXPECT_TRUE(reader.Read(files, "whole", 700'000, 1).equal(whole.narrow(0, 700'000, 1)));
  EXPECT_EQ(reader.Read(files, "half", 5, 0).numel(), 0);
  EXPECT_THROW(reader.Read(files, "half", 1, half.numel()), InternalError);
  EXPECT_THROW(reader.Read(files, "other", 0, 1), UserError);
}

TEST(WeightReaderTest, SaysThatAFileBecameShorter) {
  const TempDir dir;
  WriteSafetensors(dir / "model.safetensors",
                   std::vector<NamedTensor>{{"a", at::ones({4'000'000})}});
  const ModelFiles files = ModelFiles::Open(dir.path());
  std::filesystem::resize_file(dir / "model.safetensors", 9'000'000);
  WeightReader reader(at::kCPU);
  EXPECT_EQ(reader.Read(files, "a", 0, 2'000'000).numel(), 2'000'000);
  try {
    reader.Read(files, "a", 0, 4'000'000);
    FAIL() << "it was read";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("it ended within \"a\" while it was read"));
    EXPECT_EQ(error.code(), "truncated_file");
  }
}

}  // namespace
}  // namespace sft::engine
