#include "worker/engine/data/long_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/data/row_form.h"
#include "tests/unit/worker/engine/data/model_folder.h"

namespace sft::engine {
namespace {

using spec::LongRows;

class LongRowsTest : public ::testing::Test {
 protected:
  EncodedRow Whole(std::string_view row) const { return encoder_.Encode(ParseRow(row)); }

  // "problem: reason" where there are no documents.
  std::vector<EncodedRow> Fit(std::string_view text, LongRowRule rule, std::string* refusal) const {
    const Row row = ParseRow(text);
    try {
      std::vector<EncodedRow> rows =
          FitLongRow(encoder_, row, encoder_.Encode(row), rule).documents;
      for (const EncodedRow& document : rows) {
        EXPECT_LE(static_cast<int64_t>(document.tokens.size()), rule.length);
        EXPECT_EQ(document.tokens.size(), document.loss.size());
        EXPECT_GT(document.LossTokens(), 0);
        EXPECT_EQ(document.loss[0], 0);
      }
      return rows;
    } catch (const RowError& error) {
      *refusal = std::string(RowProblemName(error.problem())) + ": " + error.what();
      return {};
    }
  }
  std::vector<EncodedRow> Fit(std::string_view text, LongRowRule rule) const {
    std::string refusal;
    std::vector<EncodedRow> rows = Fit(text, rule, &refusal);
    EXPECT_EQ(refusal, "");
    return rows;
  }
  std::string Refusal(std::string_view text, LongRowRule rule) const {
    std::string refusal = "accepted";
    Fit(text, rule, &refusal);
    return refusal;
  }

  std::string Text(const EncodedRow& row) const {
    return tokenizer_.tokenizer().Decode(row.tokens, /*skip_special=*/true);
  }
  std::string Learnt(const EncodedRow& row) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      if (row.loss[i] != 0) ids.push_back(row.tokens[i]);
    }
    return tokenizer_.tokenizer().Decode(ids, /*skip_special=*/true);
  }

  const ModelFolder folder_{"chatml_tools", "<s>", "<|im_end|>"};
  const ChatTokenizer tokenizer_ = ChatTokenizer::Open(folder_.path());
  const RowEncoder encoder_{tokenizer_, spec::LossOn::kAssistant};
};

std::string Completion(int prompt, int completion) {
  return fmt::format(R"({{"prompt":"{}","completion":"{}"}})", std::string(prompt, '?'),
                     std::string(completion, '!'));
}

std::string Chat(int exchanges, int words = 1) {
  std::string row = R"({"messages":[{"role":"system","content":"sys"})";
  for (int i = 0; i < exchanges; ++i) {
    std::string answer;
    for (int word = 0; word < words; ++word) answer += fmt::format("a{}w{} ", i, word);
    row += fmt::format(
        R"(,{{"role":"user","content":"q{}"}},{{"role":"assistant","content":"{}"}})", i, answer);
  }
  return row + "]}";
}

// Whatever is cut or split: no count is negative, and with the loss of all tokens none counts
// twice.
TEST_F(LongRowsTest, WhatIsLostIsCounted) {
  const RowEncoder all(tokenizer_, spec::LossOn::kAll);
  for (const std::string& text : {Chat(6, 5), Completion(40, 40), Completion(90, 3)}) {
    for (const LongRows rule : {LongRows::kTruncateRight, LongRows::kTruncateLeft,
                                LongRows::kTruncateMiddle, LongRows::kSplit}) {
      const Row row = ParseRow(text);
      const EncodedRow whole = all.Encode(row);
      const FittedRow fitted =
          FitLongRow(all, row, whole, {.rule = rule, .length = 50, .overlap = 8});
      int64_t loss = 0;
      for (const EncodedRow& document : fitted.documents) loss += document.LossTokens();
      EXPECT_GE(fitted.cut_tokens, 0);
      EXPECT_LE(loss, whole.LossTokens());
      EXPECT_EQ(loss + fitted.cut_loss_tokens, whole.LossTokens());
      const auto size = static_cast<int64_t>(whole.tokens.size());
      if (rule == LongRows::kSplit) {
        EXPECT_EQ(fitted.cut_tokens, 0) << text;
      } else {
        EXPECT_EQ(fitted.cut_tokens,
                  size - static_cast<int64_t>(fitted.documents[0].tokens.size()));
      }
    }
  }
  // Pieces of a long prompt that no loss is in are left out, and said.
  const std::string long_prompt = Completion(200, 5);
  const Row row = ParseRow(long_prompt);
  const FittedRow split = FitLongRow(encoder_, row, encoder_.Encode(row),
                                     {.rule = LongRows::kSplit, .length = 50, .overlap = 8});
  EXPECT_GT(split.cut_tokens, 50);
  EXPECT_EQ(split.cut_loss_tokens, 0);
}

TEST_F(LongRowsTest, ATruncatedRowKeepsItsFirstOrItsLastTokens) {
  const std::string row = Completion(40, 40);
  const EncodedRow whole = Whole(row);
  const auto size = static_cast<int64_t>(whole.tokens.size());
  const int64_t length = size - 3;
  const EncodedRow right = Fit(row, {LongRows::kTruncateRight, length})[0];
  EXPECT_EQ(right.tokens, std::vector<int32_t>(whole.tokens.begin(), whole.tokens.end() - 3));
  EXPECT_EQ(right.LossTokens(), whole.LossTokens() - 3);
  const EncodedRow left = Fit(row, {LongRows::kTruncateLeft, length})[0];
  EXPECT_EQ(static_cast<int64_t>(left.tokens.size()), length);
  EXPECT_EQ(left.tokens.back(), whole.tokens.back());
  EXPECT_EQ(left.LossTokens(), whole.LossTokens());
  const EncodedRow middle = Fit(row, {LongRows::kTruncateMiddle, length})[0];
  EXPECT_EQ(middle.tokens.front(), whole.tokens.front());
  EXPECT_EQ(middle.tokens.back(), whole.tokens.back());
  EXPECT_EQ(static_cast<int64_t>(middle.tokens.size()), length);
}

TEST_F(LongRowsTest, ARowIsNotLeftWithoutATokenToLearnFrom) {
  const std::string row = Completion(200, 4);
  const int64_t length = static_cast<int64_t>(Whole(row).tokens.size()) - 20;
  EXPECT_EQ(Refusal(row, {LongRows::kTruncateRight, length}).find("no answer: "), 0U);
  EXPECT_EQ(Refusal(row, {LongRows::kTruncateLeft, length}), "accepted");
  EXPECT_EQ(Refusal(row, {LongRows::kError, length}).find("too long: "), 0U);
  EXPECT_EQ(Refusal(row, {LongRows::kSkip, length}).find("too long: "), 0U);
}

TEST_F(LongRowsTest, AConversationLosesWholeTurnsBetweenItsStartAndItsEnd) {
  const std::string row = Chat(6);
  const auto size = static_cast<int64_t>(Whole(row).tokens.size());
  const EncodedRow cut = Fit(row, {LongRows::kTruncateMiddle, size - 1})[0];
  EXPECT_EQ(cut.tokens, Whole(R"({"messages":[{"role":"system","content":"sys"},
      {"role":"user","content":"q0"},{"role":"assistant","content":"a0w0 "},
      {"role":"user","content":"q2"},{"role":"assistant","content":"a2w0 "},
      {"role":"user","content":"q3"},{"role":"assistant","content":"a3w0 "},
      {"role":"user","content":"q4"},{"role":"assistant","content":"a4w0 "},
      {"role":"user","content":"q5"},{"role":"assistant","content":"a5w0 "}]})")
                            .tokens);
  // Where the first exchange leaves no room for the last, it goes too.
  const EncodedRow last = Whole(R"({"messages":[{"role":"system","content":"sys"},
      {"role":"user","content":"q5"},{"role":"assistant","content":"a5w0 "}]})");
  const auto least = static_cast<int64_t>(last.tokens.size());
  EXPECT_EQ(Fit(row, {LongRows::kTruncateMiddle, least})[0].tokens, last.tokens);
  EXPECT_EQ(Refusal(row, {LongRows::kTruncateMiddle, least - 1}).find("too long: "), 0U);
}

TEST_F(LongRowsTest, ASplitConversationLearnsEachTurnOnce) {
  const std::string row = Chat(7, 3);
  const EncodedRow whole = Whole(row);
  const auto size = static_cast<int64_t>(whole.tokens.size());
  for (const int64_t length : {size - 1, size / 2, size / 3}) {
    const std::vector<EncodedRow> pieces = Fit(row, {LongRows::kSplit, length, 8});
    EXPECT_GT(pieces.size(), 1U);
    std::string learnt;
    int64_t loss = 0;
    for (const EncodedRow& piece : pieces) {
      EXPECT_NE(Text(piece).find("sys"), std::string::npos);
      learnt += Learnt(piece);
      loss += piece.LossTokens();
    }
    EXPECT_EQ(learnt, Learnt(whole));
    EXPECT_EQ(loss, whole.LossTokens());
  }
  EXPECT_NE(Refusal(row, {LongRows::kSplit, 8, 2}).find("message 1 alone is too long"),
            std::string::npos);
}

TEST_F(LongRowsTest, ASplitTextLearnsEachTokenOnceInWindowsThatEndAtParagraphs) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += fmt::format("word{}{}", i, i % 40 == 39 ? "\\n\\n" : i % 2 == 1 ? "\\n" : " ");
  }
  const std::string row = "{\"text\":\"" + text + "\"}";
  const EncodedRow whole = Whole(row);
  for (const int64_t overlap : {1, 16, 64, 127}) {
    const std::vector<EncodedRow> pieces = Fit(row, {LongRows::kSplit, 128, overlap});
    EXPECT_GT(pieces.size(), 3U);
    int64_t loss = 0;
    std::string learnt;
    for (const EncodedRow& piece : pieces) {
      loss += piece.LossTokens();
      learnt += Learnt(piece);
    }
    EXPECT_EQ(loss, whole.LossTokens()) << overlap;
    EXPECT_EQ(learnt, Learnt(whole)) << overlap;
  }
  // Each window but the last ends at a line, where its last quarter has one.
  const std::vector<EncodedRow> pieces = Fit(row, {LongRows::kSplit, 128, 16});
  for (size_t i = 0; i + 1 < pieces.size(); ++i) EXPECT_EQ(Text(pieces[i]).back(), '\n') << i;
}

}  // namespace
}  // namespace sft::engine
