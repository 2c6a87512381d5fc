#include "worker/engine/data/data_report.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/worker/engine/data/model_folder.h"

namespace sft::engine {
namespace {

std::shared_ptr<const Dataset> OfLengths(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> loss;
  for (const int64_t length : lengths) {
    tokens.emplace_back(static_cast<size_t>(length), 1);
    loss.emplace_back(static_cast<size_t>(length), 1);
  }
  return Dataset::FromDocuments(tokens, loss);
}

TEST(DataReportTest, QuantilesAreLengthsOfRows) {
  std::vector<int64_t> lengths(200);
  std::iota(lengths.rbegin(), lengths.rend(), 1);
  const DataReport report = ReportOn(*OfLengths(lengths), 100, 4);
  EXPECT_EQ(report.shortest, 1);
  EXPECT_EQ(report.median, 100);
  EXPECT_EQ(report.p90, 180);
  EXPECT_EQ(report.p99, 198);
  EXPECT_EQ(report.longest, 200);
  EXPECT_EQ(report.longer.front().limit, 100);
  EXPECT_EQ(report.longer.front().rows, 100);
  EXPECT_EQ(report.longer.back().rows, 0);
  EXPECT_EQ(ReportOn(*OfLengths({5}), 100, 4).p99, 5);
}

TEST(DataReportTest, FillingIsCountedForBatchesAndForPackedSequences) {
  // Two batches: 10 and 2 take 20; 4 and 8 take 16. Packed: 10 | 8 + 2 | 4 of 10.
  const DataReport report = ReportOn(*OfLengths({10, 2, 4, 8}), 10, 2);
  EXPECT_DOUBLE_EQ(report.padded_share, 1.0 - 24.0 / 36.0);
  EXPECT_DOUBLE_EQ(report.packed_share, 1.0 - 24.0 / 30.0);
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.packed_steps, 2);
  // A row that is too long counts as cut.
  EXPECT_DOUBLE_EQ(ReportOn(*OfLengths({1000, 10}), 10, 2).padded_share, 0);
}

TEST(DataReportTest, APairIsOneRowAsLongAsItsLongerAnswer) {
  const DataReport report = ReportOn(*OfLengths({10, 2, 4, 8, 6, 30}), 20, 2, /*pairs=*/true);
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.shortest, 8);
  EXPECT_EQ(report.longest, 30);
  EXPECT_EQ(report.longer.front().rows, 1);
  EXPECT_EQ(report.trained_tokens, 10 + 2 + 4 + 8 + 6 + 20);
}

TEST(DataReportTest, MarksStandAroundWhatIsLearnt) {
  const ModelFolder folder("chatml_tools", "<s>", "<|im_end|>");
  const ChatTokenizer tokenizer = ChatTokenizer::Open(folder.path());
  PrepareOptions options;
  options.data = folder.Write("rows.jsonl", R"({"prompt": "2+2? ", "completion": "It is 4."})");
  options.cache_dir = folder.path() / "cache";
  const auto dataset = PrepareDataset(tokenizer, options).dataset;
  const std::string text = MarkedText(dataset->Get(0), tokenizer.tokenizer(), "[", "]");
  EXPECT_NE(text.find("2+2? [It is 4.<|im_end|>]"), std::string::npos) << text;
}

}  // namespace
}  // namespace sft::engine
