#include "worker/engine/train/padding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "common/base/round.h"
#include "worker/engine/data/pack.h"
#include "worker/engine/kernels/batch_shape.h"
#include "worker/engine/model/block_graphs.h"

namespace sft::engine {
namespace {

std::vector<int64_t> Padded(std::vector<int64_t> lengths) {
  const std::vector<int64_t> padding = PaddingFor(lengths);
  lengths.insert(lengths.end(), padding.begin(), padding.end());
  return lengths;
}

// Rows of up to `tokens`, packed of documents as chats have them.
std::vector<std::vector<int64_t>> PackedRows(int64_t tokens, int documents) {
  std::mt19937 random(5);
  std::lognormal_distribution<double> length(5.5, 0.8);
  std::vector<int64_t> lengths;
  for (int i = 0; i < documents; ++i) {
    lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(length(random)), 8, tokens));
  }
  std::vector<std::vector<int64_t>> rows;
  for (const auto& bin : PackFirstFitDecreasing(lengths, tokens)) {
    rows.emplace_back();
    for (const uint32_t item : bin) rows.back().push_back(lengths[item]);
  }
  std::shuffle(rows.begin(), rows.end(), random);
  return rows;
}

TEST(PaddingTest, BringsEveryBatchToAShapeWithoutChangingItsLongest) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const auto count = std::uniform_int_distribution<int>(1, 40)(random);
    const auto most = std::uniform_int_distribution<int64_t>(1, 3000)(random);
    std::vector<int64_t> lengths;
    for (int j = 0; j < count; ++j) {
      lengths.push_back(std::uniform_int_distribution<int64_t>(1, most)(random));
    }
    const std::vector<int64_t> padded = Padded(lengths);
    const BatchShape before = ShapeOf(lengths), after = ShapeOf(padded);
    ASSERT_EQ(after.tokens, RoundTokens(before.tokens));
    ASSERT_EQ(RoundLongest(after.longest), RoundLongest(before.longest));
    ASSERT_GE(*std::min_element(padded.begin(), padded.end()), 1);
    ASSERT_TRUE(std::equal(lengths.begin(), lengths.end(), padded.begin()));
    ASSERT_TRUE(PaddingFor(padded).empty());
  }
}

TEST(PaddingTest, DocumentsBecomeARoundNumberWhereThereAreTokensForThem) {
  EXPECT_EQ(Padded({1000, 400, 300, 200, 90}).size(), 6U);
  EXPECT_EQ(Padded({1990}).size(), 2U);
  EXPECT_EQ(Padded({1000, 1047}), (std::vector<int64_t>{1000, 1047, 1}));
}

TEST(PaddingTest, FullBatchesStayAsTheyAre) {
  EXPECT_TRUE(PaddingFor({2048}).empty());
  EXPECT_TRUE(PaddingFor({2048, 2048, 2048, 2048, 2048}).empty());
  EXPECT_TRUE(PaddingFor({1024, 512, 256, 200, 56}).empty());
}

// Recorded after the second of a shape, as long as there is room.
TEST(PaddingTest, MostPackedRowsAreOfShapesThatAreRecorded) {
  std::map<BatchShape, int64_t> seen;
  std::set<BatchShape> recorded;
  int64_t replayed = 0;
  const auto rows = PackedRows(2048, 20000);
  for (const std::vector<int64_t>& row : rows) {
    const BatchShape shape = ShapeOf(Padded(row));
    replayed += recorded.contains(shape) ? 1 : 0;
    if (++seen[shape] == 2 && recorded.size() < BlockGraphs::kMostShapes) recorded.insert(shape);
  }
  RecordProperty("shapes", static_cast<int>(seen.size()));
  EXPECT_GT(replayed * 10, static_cast<int64_t>(rows.size()) * 9)
      << seen.size() << " shapes of " << rows.size() << " rows, " << replayed << " replayed";
}

TEST(PaddingTest, PaddingHasNoTargetsAndCountsItsPositionsAnew) {
  MicroBatch batch;
  batch.tokens = {5, 6, 7};
  batch.targets = {6, 7, MicroBatch::kIgnore};
  batch.positions = {0, 1, 2};
  batch.cu_seqlens = {0, 3};
  batch.loss_rows = {0, 1};
  batch.max_seqlen = 3;
  const MicroBatch padded = WithPadding(batch);
  ASSERT_EQ(padded.size(), 64);
  EXPECT_EQ(padded.cu_seqlens, (std::vector<int32_t>{0, 3, 64}));
  EXPECT_EQ(padded.loss_rows, batch.loss_rows);
  EXPECT_EQ(padded.max_seqlen, 61);
  for (size_t i = 3; i < 64; ++i) {
    EXPECT_EQ(padded.targets[i], MicroBatch::kIgnore);
    EXPECT_EQ(padded.positions[i], static_cast<int32_t>(i) - 3);
  }
}

TEST(PaddingTest, AnEmptyMicroBatchBecomesPaddingAlone) {
  const MicroBatch padded = WithPadding({});
  EXPECT_EQ(padded.cu_seqlens, (std::vector<int32_t>{0, 64}));
  EXPECT_EQ(padded.loss_tokens(), 0);
}

}  // namespace
}  // namespace sft::engine
