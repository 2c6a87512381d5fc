#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Half.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "common/io/file.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"
#include "worker/engine/export/gguf_file.h"
#include "worker/engine/export/gguf_model.h"
#include "worker/engine/export/gguf_tokenizer.h"

namespace sft::engine {
namespace {

using ::testing::HasSubstr;

template <typename T>
T At(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

TEST(GgufTest, AFileHasKeysTensorsReversedShapesAndAlignedData) {
  const TempDir dir;
  GgufKeys keys;
  keys.Set("general.name", "x");
  keys.SetInt("n", 7);
  const std::filesystem::path path = dir / "a.gguf";
  {
    GgufWriter writer(path, keys, {{"m", {2, 3}, GgmlType::kBf16}, {"v", {5}, GgmlType::kF32}});
    writer.Write("v", at::arange(5));
    writer.Write("m", at::ones({2, 3}));
    writer.Commit();
  }
  const std::string bytes = io::ReadFile(path.string()).value();
  EXPECT_EQ(bytes.substr(0, 4), "GGUF");
  EXPECT_EQ(At<uint32_t>(bytes, 4), 3u);
  EXPECT_EQ(At<uint64_t>(bytes, 8), 2u) << "tensors";
  EXPECT_EQ(At<uint64_t>(bytes, 16), 2u) << "keys";
  const size_t matrix = bytes.find('m', bytes.find("general.name") + 30);
  ASSERT_NE(matrix, std::string::npos);
  EXPECT_EQ(At<uint32_t>(bytes, matrix + 1), 2u);
  EXPECT_EQ(At<uint64_t>(bytes, matrix + 5), 3u) << "columns come first";
  EXPECT_EQ(At<uint64_t>(bytes, matrix + 13), 2u);
  EXPECT_EQ(bytes.size() % 32, 0u);
  const size_t data = bytes.size() - 64;
  EXPECT_EQ(At<uint16_t>(bytes, data), 0x3f80) << "1 in bf16";
  EXPECT_EQ(At<float>(bytes, data + 32 + 16), 4.0f);
}

TEST(GgufTest, WithoutCommitThereIsNoFile) {
  const TempDir dir;
  const std::filesystem::path path = dir / "a.gguf";
  {
    GgufWriter writer(path, {}, {{"v", {5}, GgmlType::kF32}});
    EXPECT_THROW(writer.Commit(), InternalError) << "a tensor is missing";
    EXPECT_THROW(writer.Write("v", at::ones({6})), InternalError);
    EXPECT_THROW(writer.Write("w", at::ones({5})), InternalError);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(GgufTest, Q8HasAScaleAndRoundedValuesForEach32) {
  at::Tensor values = at::arange(64).to(at::kFloat) - 32;
  values[32] = 254;  // the second block's largest: its scale is 2
  const std::string bytes = ToQ8(values);
  ASSERT_EQ(bytes.size(), 68u);
  c10::Half scale;
  std::memcpy(&scale.x, bytes.data() + 34, 2);
  EXPECT_EQ(static_cast<float>(scale), 2.0f);
  EXPECT_EQ(static_cast<int8_t>(bytes[36]), 127);
  EXPECT_EQ(static_cast<int8_t>(bytes[36 + 3]), 2) << "3 / 2 is rounded away from 0";
  EXPECT_EQ(static_cast<int8_t>(bytes[2]), -127);
  const std::string zeros = ToQ8(at::ones({32}) * 0);
  EXPECT_EQ(zeros, std::string(34, '\0'));
  EXPECT_TRUE(FitsQ8({3, 64}));
  EXPECT_FALSE(FitsQ8({3, 65}));
  EXPECT_FALSE(FitsQ8({64}));
}

TEST(GgufTest, FamiliesWithoutANameAreRefusedByName) {
  ModelConfig config;
  config.family = "phi3";
  try {
    CheckGguf("/none", config);
    FAIL() << "taken";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("family phi3 is not supported yet"));
    EXPECT_THAT(error.advice(), HasSubstr("convert_hf_to_gguf.py"));
  }
}

TEST(GgufTest, ATokenizerOfAnotherShapeIsRefusedAndNotAnErrorOfTheEngine) {
  const TempDir dir;
  for (const char* text :
       {"[]", "7", R"({"model":7})", R"({"model":{"type":7}})", R"({"model":{"type":"BPE"}})",
        R"({"model":{"type":"BPE"},"pre_tokenizer":{"type":"ByteLevel","use_regex":"yes"}})",
        R"({"model":{"type":"BPE"},"pre_tokenizer":{"type":"Sequence","pretokenizers":3}})"}) {
    ASSERT_TRUE(io::WriteFileAtomic((dir / "tokenizer.json").string(), text).ok());
    GgufKeys keys;
    EXPECT_THROW(AddTokenizer(dir / "", 8, keys), UserError) << text;
  }
}

}  // namespace
}  // namespace sft::engine
