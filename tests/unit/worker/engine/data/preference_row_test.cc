#include "worker/engine/data/preference_row.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
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

TEST_F(PreferenceRowTest, APromptThatTheAnswersRepeatInOtherWordsIsAskedOnce) {
  const auto row = [](std::string_view columns, std::string_view before) {
    return fmt::format(R"({{{0}"chosen":[{1}{{"role":"assistant","content":"yes"}}],)"
                       R"("rejected":[{1}{{"role":"assistant","content":"no"}}]}})",
                       columns, before);
  };
  const char* const u = R"({"role":"user","content":"hi"},)";
  const char* const s = R"({"role":"system","content":"Be brief."},)";
  const char* const prompt = R"("prompt":[{"role":"user","content":"hi"}],)";
  const auto asked = Shown(Encode(row(prompt, "")));
  for (const std::string& same : {
           row(R"("prompt":" hi\n",)", u),
           row(R"("prompt":[{"content":"hi ","role":"user","name":null}],)", u),
           row(R"("prompt":[],)", u),
           row(R"("prompt":"",)", u),
       }) {
    EXPECT_EQ(Shown(Encode(same)), asked) << same;
  }
  const std::string told_row = row(
      R"("prompt":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}],)", "");
  const auto told = Shown(Encode(told_row));
  ASSERT_NE(told, asked);
  const std::string system = R"("system":"Be brief.",)";
  for (const std::string& same : {
           row(prompt, std::string(s) + u),
           row(R"("prompt":"hi",)", std::string(s) + u),
           row(system + prompt, u),
           row(system + prompt, ""),
           row(system + R"("prompt":"hi",)", u),
           row(system, u),
           row(system + prompt, std::string(s) + u),
       }) {
    EXPECT_EQ(Shown(Encode(same)), told) << same;
  }
  // Turns that both answers have behind the prompt are part of the question.
  const std::string more =
      std::string(u) + R"({"role":"assistant","content":"yes?"},{"role":"user","content":"no?"},)";
  const EncodedAnswers longer = Encode(row(prompt, more));
  EXPECT_EQ(Marked(longer.documents[0], kPredicted), "yes");
  for (const std::string& other : {
           row(R"("prompt":"hi and more",)", u),
           row(R"("prompt":[{"role":"user","content":"hi"},{"role":"user","content":"you"}],)", u),
           row(prompt, s),
       }) {
    EXPECT_NE(Refusal(other).find("another question than the prompt"), std::string::npos)
        << other << ": " << Refusal(other);
  }
  EXPECT_NE(Refusal(row(R"("system":"Be long.",)", std::string(s) + u)).find("another system"),
            std::string::npos);
  const std::string one_sided =
      R"({"prompt":"hi","chosen":[{"role":"user","content":"hi"},)"
      R"({"role":"assistant","content":"yes"}],"rejected":[{"role":"assistant","content":"no"}]})";
  EXPECT_NE(Refusal(one_sided).find("the same prompt"), std::string::npos) << Refusal(one_sided);
}

TEST_F(PreferenceRowTest, TextsWithoutBlanksAreCutAtCharactersAndOthersAtWords) {
  const auto prompt = [&](std::string_view chosen, std::string_view rejected) {
    const std::string row = fmt::format(R"({{"chosen":"{}","rejected":"{}"}})", chosen, rejected);
    data::Form form;
    const auto answers = ParsePreference(row, {}, Learns::kPairs, &form);
    return std::get<CompletionRow>(answers[0].row).prompt;
  };
  EXPECT_EQ(prompt("二加二是多少？四", "二加二是多少？五"), "二加二是多少？");
  // These begin with the same two bytes of three.
  EXPECT_EQ(prompt("问一", "问丁"), "问");
  EXPECT_EQ(prompt("Say it: there", "Say it: then"), "Say it:");
  EXPECT_NE(Refusal(R"({"chosen":"4","rejected":"5"})").find("no common start"), std::string::npos);
  EXPECT_NE(Refusal(R"({"chosen":"there","rejected":"then"})").find("no common start"),
            std::string::npos);
  EXPECT_NE(Refusal(R"({"prompt":"","chosen":"4","rejected":"5"})").find("no common start"),
            std::string::npos);
}

TEST_F(PreferenceRowTest, AMarkedAnswerMayStandInEveryFormOfARow) {
  const auto expected = Shown(
      Encode(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],)"
             R"("label":false})",
             Learns::kMarked));
  for (const char* row : {
           R"({"prompt":"a","completion":[{"role":"assistant","content":"b"}],"label":false})",
           R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],)"
           R"("label":false})",
           R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],)"
           R"("label":"bad","kto_tag":false})",
           R"({"instruction":"a","input":"","output":"b","kto_tag":false})",
           R"({"instruction":"a","output":"b","label":false})",
           R"({"question":"a","answer":"b","kto_tag":false})",
           R"({"prompt":[{"role":"user","content":"a"}],"label":false,)"
           R"("completion":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})",
       }) {
    EXPECT_EQ(Shown(Encode(row, Learns::kMarked)), expected) << row;
  }
  EXPECT_NE(Refusal(R"({"text":"a","label":true})", Learns::kMarked).find("\"messages\""),
            std::string::npos);
  EXPECT_NE(Refusal(R"({"prompt":"a","completion":"b"})", Learns::kMarked)
                .find("\"messages\" with \"label\""),
            std::string::npos);
}

TEST_F(PreferenceRowTest, AJobThatComparesNothingReadsTheGoodAnswers) {
  const auto read = [&](std::string_view row) {
    data::Form form;
    const EncodedRow encoded = encoder_.Encode(ParseChosen(row, {}, &form));
    return Text(encoded) + "|" + Marked(encoded, kPredicted);
  };
  const std::string expected = read(R"({"prompt":"a","completion":" b"})");
  EXPECT_EQ(read(R"({"prompt":"a","chosen":" b","rejected":" c"})"), expected);
  EXPECT_EQ(read(R"({"prompt":"a","completion":" b","label":true})"), expected);
  EXPECT_THROW(read(R"({"prompt":"a","completion":" b","label":false})"), RowError);
  EXPECT_THROW(read(R"({"prompt":"a"})"), RowError);
}

TEST_F(PreferenceRowTest, AlpacasHistoryIsPartOfTheQuestion) {
  const EncodedAnswers encoded =
      Encode(R"({"history":[["early","late"]],"instruction":"a","chosen":"b","rejected":"c"})");
  EXPECT_NE(Text(encoded.documents[0]).find("early"), std::string::npos);
  EXPECT_EQ(Marked(encoded.documents[0], kPredicted), "b");
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

TEST(StanfordPreferenceTest, ThePromptIsStanfordsText) {
  data::RowNames names;
  names.stanford = true;
  data::Form form = data::Form::kUnknown;
  const auto answers =
      ParsePreference(R"({"instruction":"Add","input":"2 2","chosen":" 4","rejected":" 5"})", names,
                      data::Learns::kPairs, &form);
  ASSERT_EQ(answers.size(), 2U);
  const auto& row = std::get<CompletionRow>(answers[0].row);
  EXPECT_THAT(row.prompt, testing::EndsWith("### Input:\n2 2\n\n### Response:"));
  EXPECT_EQ(row.completion, " 4");
}

}  // namespace
}  // namespace sft::engine
