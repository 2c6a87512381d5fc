#include "common/grade/match.h"

#include <gtest/gtest.h>

#include <string>

#include "common/grade/rouge.h"
#include "common/grade/words.h"

namespace sft::grade {
namespace {

TEST(MatchTest, ExactMatchMindsAllButWhiteSpaceAtTheEnds) {
  EXPECT_TRUE(ExactMatch(" 42\n", "42"));
  EXPECT_TRUE(ExactMatch("\u00a042\u3000", "42"));
  EXPECT_FALSE(ExactMatch("4 2", "42"));
  EXPECT_FALSE(ExactMatch("Yes", "yes"));
}

TEST(MatchTest, BytesThatAreNotUtf8AreStrippedAndSplitWithoutHarm) {
  EXPECT_EQ(Strip("\x80 \xff"), "\x80 \xff");
  EXPECT_EQ(Strip(" \xe2\x80"), "\xe2\x80");
  EXPECT_EQ(WordF1("\xff\xfe", "\xff\xfe"), 1);
  EXPECT_TRUE(RougeL("\xc3(", "\xc3(").ok());
}

TEST(MatchTest, TheNumberIsTheLastOrTheOneAfterTheMark) {
  EXPECT_EQ(*NumberIn("first 3, then 1,234.5."), 1234.5);
  EXPECT_EQ(*NumberIn("12 + 30\n#### 42 apples of 7"), 42);
  EXPECT_EQ(*NumberIn("it is -5"), -5);
  EXPECT_EQ(*NumberIn("7-5"), 5);
  EXPECT_EQ(*NumberIn("-.5"), -0.5);
  EXPECT_EQ(*NumberIn("2e3"), 2000);
  EXPECT_EQ(*NumberIn("3 eggs"), 3);
  EXPECT_FALSE(NumberIn("none").ok());
  EXPECT_FALSE(NumberIn("").ok());
  EXPECT_TRUE(*SameNumber("so 1,000,000.5", "1000000"));
  EXPECT_FALSE(*SameNumber("1001", "1000"));
  EXPECT_FALSE(*SameNumber("no idea", "1000"));
  EXPECT_FALSE(*SameNumber("1e999", "1e999"));
  EXPECT_TRUE(*SameNumber("0", "-0"));
  EXPECT_TRUE(absl::IsFailedPrecondition(SameNumber("1", "no number").status()));
}

TEST(MatchTest, JsonIsComparedByValue) {
  EXPECT_TRUE(*SameJson("```json\n{\"b\": 1.0, \"a\": [1]}\n```", R"({"a":[1],"b":1})"));
  EXPECT_FALSE(*SameJson("{\"a\": 1", R"({"a":1})"));
  EXPECT_FALSE(*SameJson("[2,1]", "[1,2]"));
  EXPECT_FALSE(IsJson(""));
  EXPECT_FALSE(IsJson("``````"));
  EXPECT_FALSE(IsJson("Here it is: {}"));
  EXPECT_FALSE(IsJson(std::string(1 << 20, '[')));
  EXPECT_TRUE(absl::IsFailedPrecondition(SameJson("1", "{").status()));
}

TEST(MatchTest, APatternIsSearchedAndItsGroupCompared) {
  const auto word = Pattern::Make("(?i)\\byes\\b");
  EXPECT_TRUE(word->Passes("Well, YES!", ""));
  EXPECT_FALSE(word->Passes("yesterday", ""));
  const auto group = Pattern::Make("(?s).*answer is \\(?([A-D])\\)?");
  EXPECT_TRUE(group->Passes("the answer is A. No:\nthe answer is (B)", " B "));
  EXPECT_FALSE(group->Passes("the answer is (B)", "A"));
  const auto absent = Pattern::Make("x|y(z)");
  EXPECT_TRUE(absent->Passes("x", ""));
  EXPECT_FALSE(absent->Passes("x", "z"));
}

TEST(MatchTest, TheLastMatchOfAGroupIsTaken) {
  const auto score = Pattern::Make("Score: ([0-9.]+)");
  ASSERT_TRUE(score.ok());
  EXPECT_TRUE(score->has_group());
  EXPECT_EQ(score->Last("Score: 1 at first, then Score: 2.5"), "2.5");
  EXPECT_EQ(score->Last("no score"), std::nullopt);
  const auto empty = Pattern::Make("(x*)");
  EXPECT_EQ(empty->Last("axxb"), "");
  EXPECT_EQ(empty->Last(""), "");
  const auto absent = Pattern::Make("a|b(c)");
  EXPECT_EQ(absent->Last("bca"), "") << "the group took no part in the last match";
  EXPECT_FALSE(Pattern::Make("a")->has_group());
}

TEST(MatchTest, APatternThatWouldRunAwayElsewhereEndsInTime) {
  const auto pattern = Pattern::Make("(?:(?:a+)+)+$");
  EXPECT_FALSE(pattern->Passes(std::string(1 << 20, 'a') + "b", ""));
}

TEST(MatchTest, PatternsThatCannotBeUsedAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Pattern::Make("(").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Pattern::Make("(?=a)").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Pattern::Make("(a)(b)").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Pattern::Make("((a{100}){100}){100}").status()));
}

TEST(MatchTest, RougeLRefusesTextsWhoseTableWouldBeHuge) {
  std::string text;
  for (size_t i = 0; i <= kMostRougeWords; ++i) text += "w ";
  EXPECT_TRUE(absl::IsOutOfRange(RougeL(text, "w").status()));
  EXPECT_TRUE(absl::IsOutOfRange(RougeLsum("w", text).status()));
}

}  // namespace
}  // namespace sft::grade
