#include "server/http/form_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace sft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a form holds, "name|file name|content" each, read in pieces of so many bytes; or its error.
std::vector<std::string> Read(const std::string& body, size_t piece,
                              const std::string& boundary = "b") {
  size_t at = 0;
  FormData form(boundary, [&]() -> absl::StatusOr<std::string> {
    std::string next = body.substr(std::min(at, body.size()), piece);
    at += piece;
    return next;
  });
  std::vector<std::string> parts;
  while (true) {
    const auto part = form.NextPart();
    if (!part.ok()) return {std::string(part.status().message())};
    if (!part->has_value()) return parts;
    std::string content;
    while (true) {
      const auto some = form.ReadSome();
      if (!some.ok()) return {std::string(some.status().message())};
      if (some->empty()) break;
      content += *some;
    }
    parts.push_back((*part)->name + "|" + (*part)->file_name.value_or("-") + "|" + content);
  }
}

std::string Part(const std::string& disposition, const std::string& content) {
  return "--b\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + content + "\r\n";
}

TEST(FormDataTest, ReadsItsPartsHoweverTheyAreCut) {
  const std::string rows = "{\"text\": \"--b\"}\r\n--a\r\n-\r\n--\r\n";
  const std::string body = Part("name=\"purpose\"", "fine-tune") +
                           Part("name=\"file\"; filename=\"a.jsonl\"", rows) +
                           Part("name=\"empty\"; filename=\"\"", "") + "--b--\r\nbehind";
  for (const size_t piece : {1, 2, 3, 7, 16, 1000}) {
    EXPECT_THAT(Read(body, piece),
                ElementsAre("purpose|-|fine-tune", "file|a.jsonl|" + rows, "empty||"))
        << piece;
  }
}

TEST(FormDataTest, NamesAreReadAsClientsWriteThem) {
  const auto name_of = [](const std::string& disposition) {
    return Read(Part(disposition, "x") + "--b--", 100).front();
  };
  EXPECT_EQ(name_of("name=file; filename=plain.jsonl"), "file|plain.jsonl|x");
  EXPECT_EQ(name_of("NAME=\"file\" ; FileName=\"a b;c=d.jsonl\""), "file|a b;c=d.jsonl|x");
  EXPECT_EQ(name_of("name=\"file\"; filename=\"a\\\"b\\\\c\""), "file|a\"b\\c|x");
  EXPECT_EQ(name_of("name=\"file\"; filename=\"a%22b\""), "file|a%22b|x");
  EXPECT_EQ(name_of("name=\"file\"; filename=\"x\"; filename*=utf-8''na%C3%AFve.jsonl"),
            "file|na\xc3\xafve.jsonl|x");
  EXPECT_EQ(name_of("name=\"file\"; filename*=utf-8''%ZZ"), "file|utf-8''%ZZ|x");
  EXPECT_EQ(name_of("name=\"file\"; filename=\"C:\\dir\\a.jsonl\""), "file|C:\\dir\\a.jsonl|x");
}

TEST(FormDataTest, WhatIsNoFormIsRefused) {
  const std::string part = Part("name=\"a\"", "x");
  for (const std::string& body :
       {std::string(), std::string("--b"), std::string("hello"), part, part + "--b",
        std::string("--c\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n--c--\r\n"),
        std::string("--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"),
        std::string("--b\r\n\r\nx\r\n--b--"), std::string("--bx\r\n\r\nx\r\n--b--"),
        std::string("--b\r\nno colon\r\n\r\nx\r\n--b--"), Part("name=\"a", "x") + "--b--",
        Part("name", "x") + "--b--"}) {
    for (const size_t piece : {1, 1000}) {
      EXPECT_THAT(Read(body, piece).front(), HasSubstr("no multipart/form-data")) << body;
    }
  }
  const std::string head = "--b\r\nX: " + std::string(FormData::kMostHead + 1, 'x');
  EXPECT_THAT(Read(head + "\r\n\r\nx\r\n--b--", 100).front(), HasSubstr("too large"));
  size_t at = 0;
  const std::string long_field = Part("name=\"a\"", std::string(100, 'x')) + "--b--";
  FormData form("b", [&]() -> absl::StatusOr<std::string> {
    return long_field.substr(std::exchange(at, long_field.size()));
  });
  ASSERT_TRUE(form.NextPart().ok());
  EXPECT_THAT(std::string(form.ReadText(99).status().message()), HasSubstr("99 bytes"));
}

TEST(FormDataTest, ABoundaryIsOneOfTheStandard) {
  EXPECT_EQ(BoundaryIn("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(BoundaryIn("Multipart/Form-Data; charset=x; Boundary=\"a b'c\""), "a b'c");
  for (const std::string& type :
       {std::string("multipart/form-data"), std::string("multipart/form-data; boundary="),
        std::string("application/json; boundary=abc"), std::string("multipart/mixed; boundary=abc"),
        std::string("multipart/form-data; boundary=\"a\xffz\""),
        std::string("multipart/form-data; boundary=\"a"),
        "multipart/form-data; boundary=" + std::string(71, 'a'), std::string()}) {
    EXPECT_EQ(BoundaryIn(type), "") << type;
  }
}

}  // namespace
}  // namespace sft::server
