#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "tests/unit/worker/engine/kernels/dropout_attention.h"
#include "tests/unit/worker/engine/kernels/last_queries.h"
#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

struct Case {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t heads, kv_heads, size, window;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

Tensor Offsets(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> ends = {0};
  for (int64_t length : lengths) ends.push_back(ends.back() + static_cast<int32_t>(length));
  return at::tensor(ends, at::kInt);
}

// [T, heads, D] whose tokens are heads * D + 5 elements apart; all of it is -7, the spare too.
Tensor Padded(int64_t tokens, int64_t heads, int64_t size) {
  const Tensor rows = at::full({tokens, heads * size + 5}, -7.0f);
  return rows.narrow(1, 0, heads * size).view({tokens, heads, size});
}

bool SpareIsUntouched(const Tensor& x) {
  const int64_t width = x.size(1) * x.size(2);
  return x.as_strided({x.size(0), 5}, {x.stride(0), 1}, width).eq(-7.0f).all().item<bool>();
}

// One score matrix over all tokens with a mask that says who sees whom.
std::tuple<Tensor, Tensor> PlainAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Case& c, double scale) {
  const int64_t tokens = q.size(0);
  Tensor mask = at::full({tokens, tokens}, -std::numeric_limits<float>::infinity());
  int64_t first = 0;
  for (int64_t length : c.lengths) {
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        if (c.window == 0 || i - j < c.window) mask[first + i][first + j] = 0;
      }
    }
    first += length;
  }
  const int64_t group = c.heads / c.kv_heads;
  const Tensor keys = k.repeat_interleave(group, 1).permute({1, 2, 0});
  const Tensor values = v.repeat_interleave(group, 1).permute({1, 0, 2});
  const Tensor scores = at::matmul(q.permute({1, 0, 2}), keys) * scale + mask;
  return {at::matmul(at::softmax(scores, -1), values).permute({1, 0, 2}),
          at::logsumexp(scores, {-1})};
}

// The first products of a process are off by up to 2e-5 in about one of a hundred, on a machine
// under load: MKL is being set up then. Ranks throw theirs away (worker/rank/device.cc).
class AttentionTest : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { at::bmm(Random({4, 64, 64}, 1), Random({4, 64, 64}, 2)); }
};

TEST_P(AttentionTest, EqualsMaskedAttentionOverAllTokensAndItsAutograd) {
  const Case& c = GetParam();
  const Tensor cu_seqlens = Offsets(c.lengths);
  const int64_t tokens = cu_seqlens[-1].item<int32_t>();
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.size));
  Tensor q = Random({tokens, c.heads, c.size}, 1).set_requires_grad(true);
  Tensor k = Random({tokens, c.kv_heads, c.size}, 2).set_requires_grad(true);
  Tensor v = Random({tokens, c.kv_heads, c.size}, 3).set_requires_grad(true);
  const Tensor dout = Random(q.sizes(), 4);
  const auto [expected, expected_lse] = PlainAttention(q, k, v, c, scale);
  const auto grads = torch::autograd::grad({expected}, {q, k, v}, {dout});

  const ops::Documents documents{cu_seqlens, c.lengths};
  const Tensor qd = q.detach(), kd = k.detach(), vd = v.detach();
  Tensor out = at::empty_like(qd);
  Tensor dq = at::empty_like(qd), dk = at::empty_like(kd), dv = at::empty_like(vd);
  const Tensor lse = ops::Attention(out, qd, kd, vd, documents, scale, c.window);
  ops::AttentionBackward(dq, dk, dv, dout, qd, kd, vd, out, lse, documents, scale, c.window);
  EXPECT_LT(RelativeError(out, expected.detach()), 2e-6);
  EXPECT_LT(RelativeError(lse, expected_lse.detach()), 2e-6);
  EXPECT_LT(RelativeError(dq, grads[0]), 5e-6);
  EXPECT_LT(RelativeError(dk, grads[1]), 5e-6);
  EXPECT_LT(RelativeError(dv, grads[2]), 5e-6);
}

TEST_P(AttentionTest, GivesTheSameInAndOutOfWiderRows) {
  const Case& c = GetParam();
  const Tensor cu_seqlens = Offsets(c.lengths);
  const int64_t tokens = cu_seqlens[-1].item<int32_t>();
  const ops::Documents documents{cu_seqlens, c.lengths};
  // q, k and v side by side in rows of a few elements more, as a fused projection leaves them.
  const Tensor qkv = Random({tokens, (c.heads + 2 * c.kv_heads) * c.size + 3}, 5);
  const auto heads = [&](int64_t first, int64_t count) {
    return qkv.narrow(1, first * c.size, count * c.size).view({tokens, count, c.size});
  };
  const Tensor q = heads(0, c.heads), k = heads(c.heads, c.kv_heads);
  const Tensor v = heads(c.heads + c.kv_heads, c.kv_heads);
  const Tensor dout = Random(q.sizes(), 6);
  Tensor out = Padded(tokens, c.heads, c.size), dq = Padded(tokens, c.heads, c.size);
  Tensor dk = Padded(tokens, c.kv_heads, c.size), dv = Padded(tokens, c.kv_heads, c.size);
  const Tensor lse = ops::Attention(out, q, k, v, documents, 0.3, c.window);
  Tensor dout_rows = Padded(tokens, c.heads, c.size);
  dout_rows.copy_(dout);
  ops::AttentionBackward(dq, dk, dv, dout_rows, q, k, v, out, lse, documents, 0.3, c.window);

  const Tensor qc = q.contiguous(), kc = k.contiguous(), vc = v.contiguous();
  Tensor dense = at::empty_like(qc), dense_dq = at::empty_like(qc);
  Tensor dense_dk = at::empty_like(kc), dense_dv = at::empty_like(vc);
  const Tensor dense_lse = ops::Attention(dense, qc, kc, vc, documents, 0.3, c.window);
  ops::AttentionBackward(dense_dq, dense_dk, dense_dv, dout, qc, kc, vc, dense, dense_lse,
                         documents, 0.3, c.window);
  // Not bit for bit: the products' library may choose by alignment and threads.
  EXPECT_LT(RelativeError(out, dense), 1e-6);
  EXPECT_LT(RelativeError(lse, dense_lse), 1e-6);
  EXPECT_LT(RelativeError(dq, dense_dq), 2e-6);
  EXPECT_LT(RelativeError(dk, dense_dk), 2e-6);
  EXPECT_LT(RelativeError(dv, dense_dv), 2e-6);
  for (const Tensor& written : {out, dq, dk, dv}) EXPECT_TRUE(SpareIsUntouched(written));
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         testing::Values(Case{"OneToken", {1}, 1, 1, 4, 0},
                                         Case{"OneDocument", {17}, 4, 2, 8, 0},
                                         Case{"ThreeDocuments", {5, 1, 30}, 6, 3, 16, 0},
                                         Case{"ShortWindow", {40, 9}, 4, 1, 8, 7},
                                         Case{"LongDocuments", {300, 270}, 2, 1, 8, 0},
                                         Case{"WindowOfSomeBlocks", {600}, 2, 2, 8, 100},
                                         Case{"WindowOfHalfTheDocument", {530}, 3, 1, 6, 300}),
                         [](const auto& info) { return std::string(info.param.name); });

// The last queries of each document alone, with all keys.
TEST_P(AttentionTest, OfTheLastQueriesIsTheEndOfThatOfAll) {
  const Case& c = GetParam();
  const Tensor cu_seqlens = Offsets(c.lengths);
  const int64_t tokens = cu_seqlens[-1].item<int32_t>();
  const auto [lengths, numbers] = LastQueries(c.lengths);
  const Tensor chosen = at::tensor(numbers, at::kLong);
  const auto last = [&](const Tensor& x) { return x.index_select(0, chosen); };
  const Tensor q = Random({tokens, c.heads, c.size}, 1),
               k = Random({tokens, c.kv_heads, c.size}, 2),
               v = Random({tokens, c.kv_heads, c.size}, 3);
  // What the others leave in the gradients of keys and values is nothing.
  const Tensor dout = at::zeros_like(q).index_copy(0, chosen, Random(last(q).sizes(), 4));
  const ops::Documents documents{cu_seqlens, c.lengths};
  const Tensor queries_end = Offsets(lengths);
  const ops::Documents of_last{queries_end, lengths, cu_seqlens, c.lengths};
  Tensor all = at::empty_like(q), all_dq = at::empty_like(q);
  Tensor all_dk = at::empty_like(k), all_dv = at::empty_like(v);
  const Tensor all_lse = ops::Attention(all, q, k, v, documents, 0.3, c.window);
  ops::AttentionBackward(all_dq, all_dk, all_dv, dout, q, k, v, all, all_lse, documents, 0.3,
                         c.window);
  Tensor out = at::empty_like(last(q)), dq = at::empty_like(out);
  Tensor dk = at::empty_like(k), dv = at::empty_like(v);
  const Tensor lse = ops::Attention(out, last(q), k, v, of_last, 0.3, c.window);
  ops::AttentionBackward(dq, dk, dv, last(dout), last(q), k, v, out, lse, of_last, 0.3, c.window);
  EXPECT_LT(RelativeError(out, last(all)), 2e-6);
  EXPECT_LT(RelativeError(lse, all_lse.index_select(1, chosen)), 2e-6);
  EXPECT_LT(RelativeError(dq, last(all_dq)), 5e-6);
  EXPECT_LT(RelativeError(dk, all_dk), 5e-6);
  EXPECT_LT(RelativeError(dv, all_dv), 5e-6);
}

TEST(AttentionTest, DocumentsDoNotSeeEachOther) {
  const Tensor q = Random({12, 2, 8}, 1), k = Random({12, 1, 8}, 2), v = Random({12, 1, 8}, 3);
  const std::vector<int64_t> lengths = {5, 7};
  const Tensor cu = Offsets(lengths);
  Tensor out = at::empty_like(q), changed = at::empty_like(q);
  ops::Attention(out, q, k, v, {cu, lengths}, 0.3, 0);
  Tensor k2 = k.clone(), v2 = v.clone();
  k2.narrow(0, 0, 5).add_(3);
  v2.narrow(0, 0, 5).add_(3);
  ops::Attention(changed, q, k2, v2, {cu, lengths}, 0.3, 0);
  EXPECT_TRUE(at::equal(out.narrow(0, 5, 7), changed.narrow(0, 5, 7)));
  EXPECT_FALSE(at::equal(out.narrow(0, 0, 5), changed.narrow(0, 0, 5)));
}

TEST(AttentionTest, RefusesResultsOfOtherSizes) {
  const Tensor q = Random({5, 2, 8}, 1), k = Random({5, 1, 8}, 2);
  const std::vector<int64_t> lengths = {5};
  const Tensor cu = Offsets(lengths);
  Tensor small = at::empty({4, 2, 8}), dq = at::empty_like(q), dk = at::empty_like(k);
  EXPECT_THROW(ops::Attention(small, q, k, k, {cu, lengths}, 0.3, 0), c10::Error);
  Tensor out = at::empty_like(q);
  const std::vector<int64_t> fewer = {4};
  const Tensor fewer_cu = Offsets(fewer), short_k = k.narrow(0, 0, 4);
  EXPECT_THROW(ops::Attention(out, q, short_k, short_k, {cu, lengths, fewer_cu, fewer}, 0.3, 0),
               c10::Error)
      << "more queries than keys";
  const Tensor lse = ops::Attention(out, q, k, k, {cu, lengths}, 0.3, 0);
  EXPECT_THROW(ops::AttentionBackward(small, dk, dk, q, q, k, k, out, lse, {cu, lengths}, 0.3, 0),
               c10::Error);
  EXPECT_THROW(ops::AttentionBackward(dq, dk, small, q, q, k, k, out, lse, {cu, lengths}, 0.3, 0),
               c10::Error);
}

TEST(DropoutAttentionTest, DropsProbabilitiesByASeedAndBackward) {
  ExpectDropoutAttention(at::kCPU, at::kFloat, 1e-5);
}

}  // namespace
}  // namespace sft::engine
