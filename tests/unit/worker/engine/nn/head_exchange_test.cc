#include "worker/engine/nn/head_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kAllTokens = 48, kHeads = 12, kSize = 8;
constexpr double kScoreScale = 0.35;
const std::vector<int64_t> kLengths = {5, 20, 1, 22};  // across the borders of every share

ops::Documents DocumentsOf() {
  std::vector<int32_t> begins = {0};
  for (const int64_t length : kLengths) {
    begins.push_back(begins.back() + static_cast<int32_t>(length));
  }
  return {at::tensor(begins, at::kInt), kLengths};
}

// What attention makes of all tokens and heads, and its gradients.
struct Attended {
  Tensor out, dq, dk, dv;
};

Attended Attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) {
  Attended result{at::empty_like(q), at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const ops::Documents documents = DocumentsOf();
  const Tensor lse = ops::Attention(result.out, q, k, v, documents, kScoreScale, /*window=*/0);
  ops::AttentionBackward(result.dq, result.dk, result.dv, dout, q, k, v, result.out, lse, documents,
                         kScoreScale, /*window=*/0);
  return result;
}

// Ranks, and heads of keys: more of them, as many and fewer than ranks.
class HeadExchangeTest : public testing::TestWithParam<std::pair<int, int64_t>> {};

TEST_P(HeadExchangeTest, AttentionOfOwnHeadsHasTheBitsOfAttentionOfAll) {
  const auto [ranks, keys] = GetParam();
  const Tensor q = Random({kAllTokens, kHeads, kSize}, 1), k = Random({kAllTokens, keys, kSize}, 2),
               v = Random({kAllTokens, keys, kSize}, 3),
               dout = Random({kAllTokens, kHeads, kSize}, 4);
  const Attended expected = Attend(q, k, v, dout);
  RunRanks(ranks, [&](Communicator& comm) {
    const HeadExchange exchange(comm);
    const int64_t count = kAllTokens / ranks, first = comm.rank() * count;
    const auto share = [&](const Tensor& all) { return all.narrow(0, first, count); };
    const auto own = exchange.Gather(share(q), share(k), share(v));
    const Attended of_own = Attend(own.q, own.k, own.v, exchange.ToHeads(share(dout)));
    Tensor out = at::empty_like(share(q));
    exchange.ToTokens(of_own.out, out);
    EXPECT_TRUE(at::equal(out, share(expected.out)));

    const auto gradient = exchange.Empty(share(q), share(k));
    gradient.q.copy_(of_own.dq);
    gradient.k.copy_(of_own.dk);
    gradient.v.copy_(of_own.dv);
    Tensor dq = at::empty_like(share(q)), dk = at::empty_like(share(k)),
           dv = at::empty_like(share(v));
    exchange.Return(gradient, dq, dk, dv);
    EXPECT_TRUE(at::equal(dq, share(expected.dq)));
    // Where several ranks have a head of keys, its gradient is a sum of theirs.
    const double bound = keys < ranks ? 1e-5 : 0.0;
    EXPECT_LE((dk - share(expected.dk)).abs().max().item<double>(), bound);
    EXPECT_LE((dv - share(expected.dv)).abs().max().item<double>(), bound);
  });
}

// Heads of several kinds in one message, as a gated DeltaNet has them.
TEST(HeadExchangeTest, RowsOfAllHeadsAreGatheredAndReturned) {
  const std::vector<Tensor> all = {Random({kAllTokens, 6, 4}, 1), Random({kAllTokens, 12, 2}, 2),
                                   Random({kAllTokens, 3, 1}, 3)};
  RunRanks(3, [&](Communicator& comm) {
    const HeadExchange exchange(comm);
    const int64_t count = kAllTokens / 3, rank = comm.rank();
    std::vector<Tensor> share, own, back;
    for (const Tensor& x : all) {
      share.push_back(x.narrow(0, rank * count, count));
      own.push_back(x.narrow(1, rank * x.size(1) / 3, x.size(1) / 3).flatten(1));
      back.push_back(at::empty_like(share.back()));
    }
    const Tensor rows = exchange.GatherRows(share);
    const Tensor expected = at::cat(own, 1);
    EXPECT_EQ(rows.size(1) % 8, 0);
    EXPECT_TRUE(at::equal(rows.narrow(1, 0, expected.size(1)), expected));
    exchange.ReturnRows(rows, back);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(back[i], share[i]));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, HeadExchangeTest,
                         testing::Values(std::pair(1, 4), std::pair(2, 4), std::pair(2, 12),
                                         std::pair(3, 3), std::pair(4, 4), std::pair(4, 2),
                                         std::pair(3, 1), std::pair(6, 3)),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "With" +
                                  std::to_string(info.param.second) + "KeyHeads";
                         });

}  // namespace
}  // namespace sft::engine
