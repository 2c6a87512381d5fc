#include "worker/engine/checkpoint/tensor_hash.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace sft::engine {
namespace {

using at::Tensor;

std::string HashOf(const std::vector<Tensor>& tensors) {
  TensorHasher hasher;
  for (const Tensor& tensor : tensors) hasher.Add(tensor);
  return hasher.Finish();
}

TEST(TensorHasherTest, IsThatOfTheTensorsHashesInOrder) {
  std::vector<Tensor> tensors;
  io::Sha256 expected;
  // More than are hashed at a time, the first ones the largest.
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(at::randn({(40 - i) * 1000}));
    io::Sha256 one;
    one.Update(tensors.back().const_data_ptr(), tensors.back().nbytes());
    const io::Sha256::Digest digest = one.Finish();
    expected.Update(digest.data(), digest.size());
  }
  EXPECT_EQ(HashOf(tensors), expected.FinishHex());
}

TEST(TensorHasherTest, CountsElementsInTheirOrderWhateverTheStrides) {
  const Tensor a = at::arange(12, at::kFloat).view({3, 4}), b = at::ones({5}, at::kByte);
  EXPECT_EQ(HashOf({a.t()}), HashOf({a.t().contiguous()}));
  EXPECT_NE(HashOf({a.t()}), HashOf({a}));
  EXPECT_NE(HashOf({a, b}), HashOf({b, a}));
  EXPECT_NE(HashOf({a}), HashOf({a, at::empty({0})}));
  Tensor other = a.clone();
  other[2][3] = 11.000001F;
  EXPECT_NE(HashOf({a}), HashOf({other}));
}

}  // namespace
}  // namespace sft::engine
