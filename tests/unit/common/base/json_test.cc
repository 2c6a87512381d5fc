#include "common/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sft {
namespace {

using ::testing::HasSubstr;

std::string Repeat(std::string_view piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

std::string WideObject(int keys) {
  std::string text = "{";
  for (int i = 0; i < keys; ++i)
    text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  return text;
}

// Writing, copying or comparing a document takes a stack frame per level.
TEST(JsonTest, ADeepTextIsRefused) {
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    const auto nested = [&](int levels) {
      return Repeat(open, levels) + "1" + Repeat(close, levels);
    };
    JsonProblem problem;
    EXPECT_EQ(DumpJson(ParseJson(nested(kMaxJsonDepth))), nested(kMaxJsonDepth));
    EXPECT_EQ(DumpJson(ParseOrderedJson(nested(kMaxJsonDepth))), nested(kMaxJsonDepth));
    EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth + 1)).is_discarded());
    EXPECT_TRUE(ParseOrderedJson(nested(kMaxJsonDepth + 1), {}, &problem).is_discarded());
    EXPECT_EQ(problem.kind, JsonProblem::kDepth);
    EXPECT_EQ(problem.text, "nested more than 100 levels deep");
    EXPECT_TRUE(ParseJson(Repeat(open, 5'000'000)).is_discarded());
    EXPECT_TRUE(ParseOrderedJson(Repeat(open, 5'000'000)).is_discarded());
  }
}

// Comparing half a million keys with one another would take ten minutes.
TEST(JsonTest, AWideObjectIsParsedInLinearTime) {
  const std::string text = WideObject(500'000);
  EXPECT_EQ(DumpJson(ParseOrderedJson(text)), text);
  EXPECT_EQ(ParseJson(text).size(), 500'000u);
  const std::string empty = "[" + Repeat("{},", 1'000'000) + "{}]";
  EXPECT_EQ(ParseOrderedJson(empty).size(), 1'000'001u);
}

TEST(JsonTest, ADuplicateKeyKeepsItsFirstPlaceAndItsLastValue) {
  for (const int others : {0, 100}) {
    std::string text = WideObject(others + 1);
    text.pop_back();
    text += ",\"k0\":{\"x\":[7]},\"last\":null}";
    const auto ordered = ParseOrderedJson(text);
    EXPECT_EQ(ordered.size(), others + 2u);
    EXPECT_EQ(ordered.begin().key(), "k0");
    EXPECT_EQ(DumpJson(ordered["k0"]), R"({"x":[7]})");
    EXPECT_EQ(DumpJson(ParseJson(text)["k0"]), R"({"x":[7]})");
    JsonProblem problem;
    EXPECT_TRUE(ParseOrderedJson(text, {.keys_once = true}, &problem).is_discarded());
    EXPECT_EQ(problem.kind, JsonProblem::kTwice);
    EXPECT_EQ(problem.text, "\"k0\" stands there twice");
    EXPECT_TRUE(ParseJson(text, {.keys_once = true}).is_discarded());
  }
}

TEST(JsonTest, TextThatIsNotJsonGivesAShortReason) {
  JsonProblem problem;
  EXPECT_TRUE(ParseJson("{\"a\": ", {}, &problem).is_discarded());
  EXPECT_EQ(problem.kind, JsonProblem::kSyntax);
  EXPECT_THAT(problem.text, HasSubstr("parse error at line 1, column"));
  EXPECT_TRUE(ParseJson("[\"" + std::string(1'000'000, 'x'), {}, &problem).is_discarded());
  EXPECT_LT(problem.text.size(), 400u);
  EXPECT_TRUE(ParseJson("[1] // a").is_discarded());
  EXPECT_EQ(DumpJson(ParseJson("[1] // a", {.comments = true})), "[1]");
  for (const char* scalar : {"1", "-1", "1.5", "true", "null", "\"a\"", "{}", "[]"}) {
    EXPECT_EQ(DumpJson(ParseJson(scalar)), scalar);
    EXPECT_EQ(DumpJson(ParseOrderedJson(scalar)), scalar);
  }
}

}  // namespace
}  // namespace sft
