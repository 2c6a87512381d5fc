#include "common/spec/toml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;

std::string Repeat(std::string_view piece, size_t bytes) {
  std::string text;
  text.reserve(bytes + piece.size());
  while (text.size() < bytes) text += piece;
  return text;
}

// The only problem of a text; empty if it was read.
std::string WhyNot(const std::string& text) {
  const auto read = ReadToml(text);
  const auto* error = std::get_if<ReadError>(&read);
  return error == nullptr ? "" : std::to_string(error->line) + ": " + error->message;
}

// The parser and code that walks its tree recurse as deep as the text does, and search lists that
// grow with its tables: 20,000 parts took 6 s and 1 GB, 24,000 exhausted the stack, and half a
// million would take hours.
TEST(TomlReaderTest, DeepOrWideTextIsRefusedBeforeItIsParsed) {
  EXPECT_THAT(WhyNot("x = 1\n" + Repeat("a.", 48'000) + "a = 1\n"),
              HasSubstr("2: has a key of more than 16 parts"));
  EXPECT_THAT(WhyNot("x = 1\n" + Repeat("a.", kMiB) + "a = 1\n"),
              HasSubstr("2: has a key of more than"));
  EXPECT_THAT(WhyNot(Repeat("'a' . ", kMiB) + "a = 1\n"), HasSubstr("1: has a key of more than"));
  EXPECT_THAT(WhyNot("[" + Repeat("a.", kMiB) + "a]\n"), HasSubstr("1: has a key of more than"));
  EXPECT_THAT(WhyNot("[[" + Repeat("a.", kMiB) + "a]]\n"), HasSubstr("1: has a key of more than"));
  EXPECT_THAT(WhyNot("x = { " + Repeat("a.", kMiB) + "a = 1 }\n"),
              HasSubstr("1: has a key of more than"));
  EXPECT_THAT(WhyNot("x = " + Repeat("[", kMiB)), HasSubstr("1: nests more than"));
  EXPECT_THAT(WhyNot("x = \n" + Repeat("{ a = ", kMiB)), HasSubstr("2: nests more than"));
  EXPECT_THAT(WhyNot("x = 1\n" + std::string(kMiB, 'k') + " = 1\n"),
              HasSubstr("2: has a name of more than 256 bytes"));
  EXPECT_THAT(WhyNot("[\"" + std::string(kMiB, '.') + "\"]\n"),
              HasSubstr("1: has a name of more than 256 bytes"));
  std::string wide;
  for (int i = 0; wide.size() < kMiB; ++i) {
    wide += "a" + std::to_string(i) + ".b = 1\na" + std::to_string(i) + ".c = 1\n";
  }
  EXPECT_THAT(WhyNot(wide), HasSubstr("4097: has more than 8192 names"));
}

// Strings, comments and values may hold as many dots, brackets and signs as they like.
TEST(TomlReaderTest, OnlyKeysAndBracketsCount) {
  const std::string dots = Repeat(".", 1000), open = Repeat("[{", 1000),
                    even = Repeat("= ", 20'000);
  for (const std::string& text : {
           "x = \"" + dots + open + even + "\\\"" + dots + "\"\n",
           "x = '" + dots + open + even + "\\'\n",
           "x = \"\"\"" + dots + "\n" + open + "\\\"\"\" " + even + "\"\"\"\"\"\n",
           "x = '''" + dots + "\n" + open + "'' " + even + "'''''\n",
           "# " + dots + open + even + "\n",
           "x = 1 # \"" + dots + open + even + "\n",
           "x = [\n  'a', # " + dots + "\n  'b',\n]\n",
           std::string("\"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s\" = 1.5\n"),
       }) {
    EXPECT_EQ(WhyNot(text), "") << text.substr(0, 80);
  }
  // Scanning continues after a string on the same line.
  for (const std::string before : {"''", "\"\"", "'''a'''''", "\"\"\"a\\\"\"\"\"\"\"", "'#'"}) {
    EXPECT_THAT(WhyNot("x = [" + before + ", " + Repeat("[", 100)), HasSubstr("nests more than"))
        << before;
  }
}

TEST(TomlReaderTest, AJobFileOfOneDeepKeyIsOneProblem) {
  const Resolution r = ResolveText(Minimal(Repeat("a.", 50'000) + "a = 1\n"));
  ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
  EXPECT_EQ(r.problems[0].line, 6);
  EXPECT_THAT(r.problems[0].message, HasSubstr("has a key of more than 16 parts"));
}

}  // namespace
}  // namespace sft::spec
