#include "worker/engine/data/preference_row.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/worker/engine/data/model_folder.h"

namespace sft::engine {
namespace {

using data::Learns;
using spec::LongRows;

class PreferenceRowTest : public ::testing::Test {
 protected:
  EncodedAnswers Encode(std::string_view row, Learns learns = Learns::kPairs,
                        LongRowRule rule = {.length = 1000}, bool prompt_too = false) const {
    data::Form form;
    return EncodeAnswers(encoder_, ParsePreference(row, {}, learns, &form), prompt_too, rule);
  }
  std::string Refusal(std::string_view row, Learns learns = Learns::kPairs,
                      LongRowRule rule = {.length = 1000}) const {
    try {
      Encode(row, learns, rule);
    } catch (const RowError& error) {
      return std::string(RowProblemName(error.problem())) + ": " + error.what();
    }
    return "accepted";
  }
  // The tokens with one of the marks, as text.
  std::string Marked(const EncodedRow& row, uint8_t mark) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      if ((row.loss[i] & mark) != 0) ids.push_back(row.tokens[i]);
    }
    return tokenizer_.tokenizer().Decode(ids, /*skip_special=*/true);
  }
  std::string Text(const EncodedRow& row) const {
    return tokenizer_.tokenizer().Decode(row.tokens, /*skip_special=*/true);
  }
  // "prompt|answer" of each document, answers of bad ones behind a minus.
  std::vector<std::string> Shown(const EncodedAnswers& encoded) const {
    std::vector<std::string> shown;
    for (const EncodedRow& row : encoded.documents) {
      const std::string answer = Marked(row, kPredicted), text = Text(row);
      const bool bad = !Marked(row, kOfBadAnswer).empty();
      shown.push_back(text.substr(0, text.size() - answer.size()) + (bad ? "-" : "|") + answer);
    }
    return shown;
  }

  const ModelFolder folder_{"chatml_tools", "<s>", "<|im_end|>"};
  const ChatTokenizer tokenizer_ = ChatTokenizer::Open(folder_.path());
  const RowEncoder encoder_{tokenizer_, spec::LossOn::kAssistant};
};

TEST_F(PreferenceRowTest, EveryFormOfATextPairIsTheSameTwoDocuments) {
  const std::vector<std::string> expected = {"a b|c d", "a b-e f"};
  for (const char* row : {R"({"prompt":"a b","chosen":" c d","rejected":" e f"})",
                          R"({"chosen":"a b c d","rejected":"a b e f"})"}) {
    const auto shown = Shown(Encode(row));
    ASSERT_EQ(shown.size(), 2u) << row;
    EXPECT_NE(shown[0].find("c d"), std::string::npos) << shown[0];
    EXPECT_NE(shown[1].find("-"), std::string::npos) << shown[1];
    EXPECT_EQ(shown, Shown(Encode(R"({"prompt":"a b","chosen":" c d","rejected":" e f"})"))) << row;
  }
}

TEST_F(PreferenceRowTest, EveryFormOfAConversationIsTheSameTwoDocuments) {
  const char* const u = R"({"role":"user","content":"hi"})";
  const char* const good = R"({"role":"assistant","content":"yes"})";
  const char* const bad = R"({"role":"assistant","content":"no"})";
  const std::string explicit_row =
      fmt::format(R"({{"prompt":[{}],"chosen":[{}],"rejected":[{}]}})", u, good, bad);
  const auto expected = Shown(Encode(explicit_row));
  EXPECT_EQ(Marked(Encode(explicit_row).documents[0], kPredicted), "yes");
  EXPECT_EQ(Marked(Encode(explicit_row).documents[1], kOfBadAnswer), "no");
  for (const std::string& row : {
           fmt::format(R"({{"chosen":[{0},{1}],"rejected":[{0},{2}]}})", u, good, bad),
           fmt::format(R"({{"prompt":"hi","chosen":[{0},{1}],"rejected":[{0},{2}]}})", u, good,
                       bad),
           fmt::format(R"({{"prompt":"hi","chosen":[{1}],"rejected":[{2}]}})", u, good, bad),
           fmt::format(R"({{"prompt":[{}],"chosen":"yes","rejected":"no"}})", u),
           fmt::format(R"({{"prompt":[{0}],"chosen":[{0},{1}],"rejected":[{0},{2}]}})", u, good,
                       bad),
           fmt::format(R"({{"input":{{"messages":[{}]}},"preferred_output":[{}],)"
                       R"("non_preferred_output":[{}]}})",
                       u, good, bad),
           std::string(R"({"question":"hi","chosen":"yes","rejected":"no"})"),
           std::string(R"({"instruction":"hi","input":"","chosen":"yes","rejected":"no"})"),
           std::string(
               R"({"conversations":[{"from":"human","value":"hi"}],)"
               R"("chosen":{"from":"gpt","value":"yes"},"rejected":{"from":"gpt","value":"no"}})"),
       }) {
    EXPECT_EQ(Shown(Encode(row)), expected) << row;
  }
}

TEST_F(PreferenceRowTest, AMarkedAnswerIsOneDocumentAndAPairIsTwo) {
  const char* const bad = R"({"prompt":"a","completion":" b","label":false})";
  EXPECT_EQ(Encode(bad, Learns::kMarked).documents.size(), 1u);
  EXPECT_NE(Marked(Encode(bad, Learns::kMarked).documents[0], kOfBadAnswer), "");
  const char* const tagged =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],)"
      R"("kto_tag":true})";
  EXPECT_EQ(Marked(Encode(tagged, Learns::kMarked).documents[0], kPredicted), "b");
  EXPECT_EQ(Marked(Encode(tagged, Learns::kMarked).documents[0], kOfBadAnswer), "");
  EXPECT_EQ(
      Encode(R"({"prompt":"a","chosen":" b","rejected":" c"})", Learns::kMarked).documents.size(),
      2u);
}

TEST_F(PreferenceRowTest, WithThePromptItsTokensOfTheGoodAnswerAreMarkedBesideIt) {
  const EncodedAnswers both =
      Encode(R"({"prompt":"a b","chosen":" c","rejected":" d"})", Learns::kPairs, {.length = 1000},
             /*prompt_too=*/true);
  EXPECT_NE(Marked(both.documents[0], kBesideAnswer), "");
  EXPECT_EQ(Marked(both.documents[1], kBesideAnswer), "");
  EXPECT_EQ(both.documents[0].loss[0], 0);
}

TEST_F(PreferenceRowTest, ALongPairLosesTheSameTokensOfBothPromptsAndNoneOfAnAnswer) {
  const std::string row =
      R"({"prompt":"one two three four five six","chosen":" yes","rejected":" no no no"})";
  const EncodedAnswers whole = Encode(row);
  const auto longest = static_cast<int64_t>(
      std::max(whole.documents[0].tokens.size(), whole.documents[1].tokens.size()));
  const LongRowRule rule{LongRows::kTruncateLeft, longest - 2};
  const EncodedAnswers cut = Encode(row, Learns::kPairs, rule);
  EXPECT_EQ(cut.cut_tokens, 4);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cut.documents[i].tokens.size() + 2, whole.documents[i].tokens.size());
    EXPECT_EQ(Marked(cut.documents[i], kPredicted), Marked(whole.documents[i], kPredicted));
  }
  EXPECT_NE(Refusal(row, Learns::kPairs, {LongRows::kSkip, longest - 2}).find("too long"),
            std::string::npos);
  EXPECT_NE(Refusal(row, Learns::kPairs, {LongRows::kTruncateLeft, 3}).find("of an answer"),
            std::string::npos);
}

TEST_F(PreferenceRowTest, WhatCannotBeComparedIsRefusedWithTheReason) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"prompt":"a","chosen":"b","rejected":"b"})", "two equal answers"},
      {R"({"prompt":"a","chosen":"b","rejected":[{"role":"assistant","content":"c"}]})",
       "both be text"},
      {R"({"chosen":[{"role":"assistant","content":"b"}],)"
       R"("rejected":[{"role":"assistant","content":"c"}]})",
       "begin differently"},
      {R"({"prompt":"a","chosen":"","rejected":"b"})", "empty"},
      {R"({"prompt":"a","completion":"b"})", "no preference pair"},
      {R"({"prompt":"a","chosen":null,"rejected":"b"})", "no preference pair"},
      {R"({"prompt":"a","chosen":[1],"rejected":[2]})", "not an object"},
      {R"({"prompt":"a","chosen":[{"role":7}],"rejected":[{"role":8}]})", "has no role"},
      {R"({"prompt":7,"chosen":"b","rejected":"c"})", "not a string"},
      {R"({"question":[],"chosen":"b","rejected":"c"})", "question is not a text"},
      {R"({"prompt":"a","chosen":[],"rejected":[]})", "two equal answers"},
  };
  for (const auto& [row, reason] : cases) {
    EXPECT_NE(Refusal(row).find(reason), std::string::npos) << row << ": " << Refusal(row);
  }
  EXPECT_NE(Refusal(R"({"messages":[{"role":"user","content":"a"}],"label":true})", Learns::kMarked)
                .find("without a question"),
            std::string::npos);
}

}  // namespace
}  // namespace sft::engine
