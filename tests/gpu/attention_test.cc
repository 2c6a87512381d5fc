#include <algorithm>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t query_heads, key_heads, head_size, window;
};

class AttentionGpuTest : public GpuTest, public ::testing::WithParamInterface<Case> {};

struct Result {
  at::Tensor out, lse, dq, dk, dv;
};

at::Tensor Offsets(const std::vector<int64_t>& lengths) {
  std::vector<int> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + static_cast<int>(length));
  return at::tensor(offsets, at::kInt);
}

// q, k and v are slices of one projection, as a fused one gives them.
Result Attend(const Case& c, const at::Tensor& qkv, const at::Tensor& dout) {
  const int64_t tokens = qkv.size(0);
  const ops::Documents documents{Offsets(c.lengths).to(qkv.device()), c.lengths};
  int64_t column = 0;
  const auto heads = [&](int64_t count) {
    const at::Tensor slice = qkv.narrow(1, column, count * c.head_size);
    column += count * c.head_size;
    return slice.view({tokens, count, c.head_size});
  };
  const at::Tensor q = heads(c.query_heads), k = heads(c.key_heads), v = heads(c.key_heads);
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.head_size));
  const auto [out, lse] = ops::Attention(q, k, v, documents, scale, c.window);
  const auto [dq, dk, dv] =
      ops::AttentionBackward(dout, q, k, v, out, lse, documents, scale, c.window);
  return {out, lse, dq, dk, dv};
}

// Whether no query sees a key other than its own.
bool SeesOneKey(const Case& c) {
  return c.window == 1 || std::all_of(c.lengths.begin(), c.lengths.end(),
                                      [](int64_t length) { return length <= 1; });
}

TEST_P(AttentionGpuTest, ForwardAndGradientsEqualTheReference) {
  const Case& c = GetParam();
  const int64_t tokens = Offsets(c.lengths)[-1].item<int64_t>();
  const at::Tensor qkv = Normal({tokens, (c.query_heads + 2 * c.key_heads) * c.head_size}, 21);
  const at::Tensor dout = Normal({tokens, c.query_heads, c.head_size}, 22);
  for (const auto& [type, tolerance] :
       {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 1e-2)}) {
    const Result expected = Attend(c, qkv.to(type).to(at::kFloat), dout.to(type).to(at::kFloat));
    const Result actual = Attend(c, ToGpu(qkv.to(type)), ToGpu(dout.to(type)));
    EXPECT_LT(RelativeError(actual.out, expected.out), tolerance) << type;
    EXPECT_LT(RelativeError(actual.lse, expected.lse), tolerance) << type;
    EXPECT_LT(RelativeError(actual.dv, expected.dv), tolerance) << type;
    if (SeesOneKey(c)) {
      // The softmax of one score is constant: dq and dk are zero but for rounding.
      const double scale = expected.dv.norm().item<double>();
      EXPECT_LT(actual.dq.cpu().to(at::kDouble).norm().item<double>(), tolerance * scale) << type;
      EXPECT_LT(actual.dk.cpu().to(at::kDouble).norm().item<double>(), tolerance * scale) << type;
      continue;
    }
    EXPECT_LT(RelativeError(actual.dq, expected.dq), tolerance) << type;
    EXPECT_LT(RelativeError(actual.dk, expected.dk), tolerance) << type;
  }
}

TEST_P(AttentionGpuTest, RepeatsBitForBit) {
  const Case& c = GetParam();
  const int64_t tokens = Offsets(c.lengths)[-1].item<int64_t>();
  const at::Tensor qkv =
      ToGpu(Normal({tokens, (c.query_heads + 2 * c.key_heads) * c.head_size}, 23))
          .to(at::kBFloat16);
  const at::Tensor dout = ToGpu(Normal({tokens, c.query_heads, c.head_size}, 24)).to(at::kBFloat16);
  const Result first = Attend(c, qkv, dout);
  for (int i = 0; i < 5; ++i) {
    const Result again = Attend(c, qkv, dout);
    EXPECT_TRUE(SameBits(first.out, again.out));
    EXPECT_TRUE(SameBits(first.dq, again.dq));
    EXPECT_TRUE(SameBits(first.dk, again.dk));
    EXPECT_TRUE(SameBits(first.dv, again.dv));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionGpuTest,
                         ::testing::Values(Case{"one_token", {1}, 2, 1, 64, 0},
                                           Case{"one_document", {300}, 4, 2, 128, 0},
                                           Case{"ragged", {5, 1, 130, 64, 257}, 6, 2, 64, 0},
                                           Case{"many_heads", {700, 324}, 16, 2, 128, 0},
                                           Case{"window", {200, 33, 90}, 4, 4, 64, 16},
                                           Case{"window_of_one", {40, 9}, 2, 2, 64, 1},
                                           Case{"window_beyond_the_rows", {40, 9}, 2, 1, 64, 4096},
                                           Case{"size_of_no_flash_kernel", {50, 70}, 4, 2, 20, 0},
                                           Case{"size_80", {50, 70}, 4, 2, 80, 0}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sft::engine
