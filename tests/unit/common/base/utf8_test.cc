#include "common/base/utf8.h"

#include <gtest/gtest.h>

namespace sft {
namespace {

TEST(Utf8Test, TextOfEveryLengthIsValid) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
}

TEST(Utf8Test, TheFirstBadByteIsFound) {
  EXPECT_EQ(FindInvalidUtf8("ab\xff"), 2u);
  EXPECT_EQ(FindInvalidUtf8("\x80"), 0u);
  EXPECT_EQ(FindInvalidUtf8("a\xc3"), 1u) << "cut short";
  EXPECT_EQ(FindInvalidUtf8("\xc0\xaf"), 0u) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("\xe0\x80\xaf"), 0u) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("\xed\xa0\x80"), 0u) << "a surrogate";
  EXPECT_EQ(FindInvalidUtf8("\xf4\x90\x80\x80"), 0u) << "above U+10FFFF";
}

TEST(Utf8Test, EachBadByteIsReplacedAndTheRestStays) {
  EXPECT_EQ(ToUtf8("a\xff\xc3\xa9\xe2\x82"), "a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Utf8Test, TheBeginOfACharacterIsToldFromAWholeOne) {
  for (const std::string_view whole :
       {"", "a", "\xc3\xa9", "\xe6\xbc\xa2", "\xf0\x9f\x99\x82", "\x80\x80\x80\x80"}) {
    EXPECT_EQ(BytesOfBegunCharacter(whole), 0U) << whole;
  }
  const std::string_view emoji = "a\xf0\x9f\x99\x82";
  for (size_t bytes = 1; bytes < 4; ++bytes) {
    EXPECT_EQ(BytesOfBegunCharacter(emoji.substr(0, 1 + bytes)), bytes);
  }
}

TEST(Utf8Test, HiddenCharactersAreNamed) {
  EXPECT_EQ(FindHidden("run 7, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xe2\x9d\xa4\xef\xb8\x8f"),
            "");
  EXPECT_EQ(FindHidden(std::string_view("a\0b", 3)), "U+0000");
  EXPECT_EQ(FindHidden("a\x1b[31m"), "U+001B");
  EXPECT_EQ(FindHidden("a\x7f"), "U+007F");
  EXPECT_EQ(FindHidden("a\xc2\x9b"
                       "31m"),
            "U+009B")
      << "a control sequence in one character";
  EXPECT_EQ(FindHidden("good\xe2\x80\xaegnp.exe"), "U+202E");
  EXPECT_EQ(FindHidden("a\xe2\x81\xa6"
                       "b"),
            "U+2066");
  EXPECT_EQ(FindHidden("a\xe2\x80\x8b"
                       "b"),
            "U+200B");
  EXPECT_EQ(FindHidden("a\xf3\xa0\x81\x81"), "U+E0041");
  EXPECT_EQ(FindHidden("a\xff"), "the byte 0xff");
}

}  // namespace
}  // namespace sft
