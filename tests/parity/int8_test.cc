#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/parity/golden_case.h"
#include "worker/engine/kernels/int8_format.h"
#include "worker/engine/kernels/ops.h"

// INT8 codes and values against the definition of tests/parity/int8.py.

namespace sft::engine {
namespace {

using at::Tensor;

class Int8ParityTest : public testing::Test {
 protected:
  GoldenTensors golden_{GoldenDir() / "int8/100x200.safetensors"};
  // The weights are stored once.
  Tensor weight_ = GoldenTensors(GoldenDir() / "nf4/100x200.safetensors").Get("weight");
};

TEST_F(Int8ParityTest, CodesAndScalesAreEqualBitForBit) {
  const Tensor weight = weight_.contiguous();
  const Tensor absmax = weight.to(at::kFloat).abs().amax({1});
  EXPECT_TRUE(at::equal(ops::Int8Quantize(weight, absmax), golden_.Get("codes")));
  EXPECT_TRUE(at::equal(absmax * kInt8Step, golden_.Get("scale")));
}

TEST_F(Int8ParityTest, DequantizedWeightIsEqualBitForBit) {
  const Tensor expected = golden_.Get("dequantized");
  Tensor out = at::empty(expected.sizes(), at::kBFloat16);
  ops::Int8Dequantize(out, golden_.Get("codes"), golden_.Get("scale"));
  EXPECT_TRUE(at::equal(out, expected));
}

}  // namespace
}  // namespace sft::engine
