#include "worker/engine/nn/key_gather.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::ElementsAre;

constexpr int64_t kRowTokens = 96, kQueryHeads = 4, kHeadsOfKeys = 2, kHeadWidth = 8;
constexpr double kQueryScale = 0.35;

TEST(KeyGatherTest, ANodeHasAPieceFromEitherEnd) {
  EXPECT_THAT(TokensOfNode(8, 0, 2), ElementsAre(0, 1, 6, 7));
  EXPECT_THAT(TokensOfNode(8, 1, 2), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(TokensOfNode(4, 0, 1), ElementsAre(0, 1, 2, 3));
}

// Pairs of a query and a key: half of all for each of two nodes.
TEST(KeyGatherTest, NodesHaveAsMuchToDoOverOneDocument) {
  RunRanks(2, [](Communicator& nodes) {
    const KeyGather gather(nodes, {1024}, at::kCPU);
    int64_t pairs = 0;
    for (const KeyGather::Run& run : gather.runs()) {
      for (int64_t query = 1; query <= run.count; ++query) pairs += run.keys - run.count + query;
    }
    EXPECT_EQ(pairs, 1024 * 1025 / 4);
  });
}

TEST(KeyGatherTest, ARunSeesTheKeysOfItsDocumentsUpToItsLastQuery) {
  RunRanks(2, [](Communicator& nodes) {
    const KeyGather gather(nodes, {3, 4, 9}, at::kCPU);
    const KeyGather::Run& run = gather.runs()[1];
    if (nodes.rank() == 0) {  // tokens 12 to 15
      EXPECT_EQ(run.first, 4);
      EXPECT_EQ(run.first_key, 7);
      EXPECT_THAT(run.lengths, ElementsAre(4));
      EXPECT_THAT(run.key_lengths, ElementsAre(9));
      EXPECT_THAT(gather.runs()[0].key_lengths, ElementsAre(3, 1));
    } else {  // 4 to 7, and 8 to 11
      EXPECT_THAT(gather.runs()[0].lengths, ElementsAre(3, 1));
      EXPECT_THAT(gather.runs()[0].key_lengths, ElementsAre(4, 1));
      EXPECT_EQ(run.keys, 5);
    }
  });
}

struct NodeAttention {
  Tensor out, dq, dk, dv;
};

NodeAttention AttendAll(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout,
                        const std::vector<int64_t>& lengths, int64_t window) {
  std::vector<int32_t> ends = {0};
  for (const int64_t length : lengths) ends.push_back(ends.back() + static_cast<int32_t>(length));
  const ops::Documents documents{at::tensor(ends, at::kInt), lengths};
  NodeAttention all{at::empty_like(q), at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const Tensor lse = ops::Attention(all.out, q, k, v, documents, kQueryScale, window);
  ops::AttentionBackward(all.dq, all.dk, all.dv, dout, q, k, v, all.out, lse, documents,
                         kQueryScale, window);
  return all;
}

// What SelfAttention does with a node's tokens.
NodeAttention AttendOverNodes(const KeyGather& gather, const Tensor& q, const Tensor& k,
                              const Tensor& v, const Tensor& dout, int64_t window) {
  NodeAttention own{at::empty_like(q), at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const KeyGather::Keys all = gather.Gather(k, v), sum = gather.Zeros(k);
  for (const KeyGather::Run& run : gather.runs()) {
    const auto queries = [&](const Tensor& x) { return x.narrow(0, run.first, run.count); };
    const auto keys = [&](const Tensor& x) { return x.narrow(0, run.first_key, run.keys); };
    Tensor out = queries(own.out), dq = queries(own.dq);
    Tensor dk = at::empty(keys(all.k).sizes()), dv = at::empty_like(dk);
    const Tensor lse = ops::Attention(out, queries(q), keys(all.k), keys(all.v), run.documents(),
                                      kQueryScale, window);
    ops::AttentionBackward(dq, dk, dv, queries(dout), queries(q), keys(all.k), keys(all.v), out,
                           lse, run.documents(), kQueryScale, window);
    keys(sum.k).add_(dk);
    keys(sum.v).add_(dv);
  }
  gather.Return(sum, own.dk, own.dv);
  return own;
}

struct NodesCase {
  const char* name;
  int nodes;
  std::vector<int64_t> lengths;
  int64_t window;

  friend void PrintTo(const NodesCase& c, std::ostream* out) { *out << c.name; }
};

class KeyGatherAttentionTest : public testing::TestWithParam<NodesCase> {};

TEST_P(KeyGatherAttentionTest, EqualsThatOfAllTokens) {
  const NodesCase& c = GetParam();
  const Tensor q = Random({kRowTokens, kQueryHeads, kHeadWidth}, 1),
               k = Random({kRowTokens, kHeadsOfKeys, kHeadWidth}, 2),
               v = Random({kRowTokens, kHeadsOfKeys, kHeadWidth}, 3),
               dout = Random({kRowTokens, kQueryHeads, kHeadWidth}, 4);
  const NodeAttention expected = AttendAll(q, k, v, dout, c.lengths, c.window);
  RunRanks(c.nodes, [&](Communicator& nodes) {
    const KeyGather gather(nodes, c.lengths, at::kCPU);
    const Tensor numbers =
        at::tensor(TokensOfNode(kRowTokens, nodes.rank(), nodes.world()), at::kInt).to(at::kLong);
    const auto own = [&](const Tensor& x) { return x.index_select(0, numbers); };
    const NodeAttention actual =
        AttendOverNodes(gather, own(q), own(k), own(v), own(dout), c.window);
    EXPECT_LT(RelativeError(actual.out, own(expected.out)), 2e-6);
    EXPECT_LT(RelativeError(actual.dq, own(expected.dq)), 5e-6);
    EXPECT_LT(RelativeError(actual.dk, own(expected.dk)), 5e-6);
    EXPECT_LT(RelativeError(actual.dv, own(expected.dv)), 5e-6);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Nodes, KeyGatherAttentionTest,
    testing::Values(NodesCase{"OneNode", 1, {96}, 0}, NodesCase{"OneDocument", 2, {96}, 0},
                    NodesCase{"ThreeNodes", 3, {96}, 0},
                    NodesCase{"DocumentsAcrossPieces", 2, {5, 40, 1, 30, 20}, 0},
                    NodesCase{"DocumentsAtTheirBorders", 2, {24, 24, 48}, 0},
                    NodesCase{"ManyDocuments", 4, std::vector<int64_t>(32, 3), 0},
                    NodesCase{"Window", 3, {50, 46}, 7},
                    NodesCase{"WindowOverPieces", 2, {96}, 40}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::engine
