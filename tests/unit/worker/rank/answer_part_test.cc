#include "worker/rank/answer_part.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/io/file.h"

namespace sft::rank {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 11;

class AnswerPartTest : public testing::Test {
 protected:
  AnswerPartTest() { dir_ = *io::MakeTempDir("answers"); }
  ~AnswerPartTest() override { EXPECT_TRUE(io::RemoveAll(dir_).ok()); }

  std::string Out() const { return dir_ + "/out.jsonl"; }
  absl::StatusOr<AnswerPart> Open(int rank, int ranks, const std::string& run = "run") const {
    return AnswerPart::Open(Out(), {rank, ranks, kRows}, run);
  }
  static std::string Line(int64_t row) { return fmt::format("{{\"row\":{}}}", row); }
  // Answers rows from where the part stands, `most` of them at most; finishes when all are there.
  bool Work(int rank, int ranks, int64_t most) const {
    auto part = Open(rank, ranks);
    EXPECT_TRUE(part.ok()) << part.status();
    const RowShare share{rank, ranks, kRows};
    for (; part->answered() < share.size() && most > 0; --most) {
      EXPECT_TRUE(part->Append(Line(share.begin() + part->answered())).ok());
    }
    if (part->answered() < share.size()) return false;
    const auto joined = part->Finish();
    EXPECT_TRUE(joined.ok()) << joined.status();
    return *joined;
  }
  static std::string Whole() {
    std::string text;
    for (int64_t row = 0; row < kRows; ++row) text += Line(row) + "\n";
    return text;
  }

  std::string dir_;
};

TEST_F(AnswerPartTest, SharesCoverAllRowsOnceInOrder) {
  for (int ranks = 1; ranks <= 14; ++ranks) {
    int64_t next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const RowShare share{rank, ranks, kRows};
      EXPECT_EQ(share.begin(), next);
      next = share.end();
    }
    EXPECT_EQ(next, kRows);
  }
}

TEST_F(AnswerPartTest, AnyNumberOfProcessesMakeTheSameFile) {
  for (const int ranks : {1, 2, 4, 13}) {
    for (int rank = ranks; rank-- > 0;) EXPECT_EQ(Work(rank, ranks, kRows), rank == 0);
    EXPECT_EQ(*io::ReadFile(Out()), Whole()) << ranks;
    ASSERT_TRUE(io::RemoveAll(Out()).ok() && io::RemoveAll(Out() + ".parts").ok());
  }
}

TEST_F(AnswerPartTest, AKilledProcessGoesOnBehindItsLastWholeLine) {
  EXPECT_FALSE(Work(0, 2, 2));
  const std::string path = Out() + ".parts/part-00000-of-00002.jsonl";
  {
    auto file = io::AppendFile::Open(path);
    ASSERT_TRUE(file.ok() && file->Append("{\"row\":").ok());  // killed within a line
  }
  EXPECT_FALSE(Work(1, 2, kRows));
  EXPECT_EQ(Open(0, 2)->answered(), 2);
  EXPECT_TRUE(Work(0, 2, kRows));
  EXPECT_EQ(*io::ReadFile(Out()), Whole());
}

TEST_F(AnswerPartTest, TwoProcessesDoNotWriteOnePart) {
  {
    const auto first = Open(0, 2);
    EXPECT_THAT(std::string(Message(Open(0, 2).status())), HasSubstr("another process writes"));
    EXPECT_TRUE(Open(1, 2).ok());
  }
  EXPECT_TRUE(Open(0, 2).ok());
}

TEST_F(AnswerPartTest, AProcessThatStartsAgainAfterTheEndHasNothingToDo) {
  EXPECT_TRUE(Work(0, 1, kRows));
  EXPECT_EQ(Open(0, 1)->answered(), kRows);
  EXPECT_TRUE(Work(0, 1, kRows));
  EXPECT_EQ(*io::ReadFile(Out()), Whole());
}

TEST_F(AnswerPartTest, AnswersOfAnotherRunAreNotMixedIn) {
  EXPECT_FALSE(Work(0, 2, 2));
  const auto other = Open(0, 2, "other run");
  EXPECT_TRUE(absl::IsAlreadyExists(other.status()));
  EXPECT_THAT(std::string(Message(other.status())), HasSubstr("answers of another run"));
  ASSERT_TRUE(io::RemoveAll(Out() + ".parts").ok());
  ASSERT_TRUE(io::WriteFileAtomic(Out(), "mine").ok());
  EXPECT_THAT(std::string(Message(Open(0, 1).status())), HasSubstr("is there already"));
  EXPECT_EQ(*io::ReadFile(Out()), "mine");
}

TEST_F(AnswerPartTest, WhatDiffersFromTheOtherRunIsNamed) {
  const std::string run = "{\"adapter\":\"aa\",\"seed\":3,\"stop\":[]}";
  EXPECT_TRUE(Open(0, 2, run).ok());
  const auto message = [&](const std::string& other) {
    return std::string(Message(Open(1, 2, other).status()));
  };
  EXPECT_THAT(message("{\"adapter\":\"aa\",\"seed\":4,\"stop\":[]}"),
              HasSubstr("another run (seed is 4, was 3): remove it"));
  EXPECT_THAT(message("{\"adapter\":\"bb\",\"seed\":3,\"stop\":[\"x\"]}"),
              HasSubstr("(adapter differs, stop is [\"x\"], was [])"));
}

TEST_F(AnswerPartTest, AnswersOfAllProcessesAreCountedWhileTheyCome) {
  const RowShare share{0, 2, kRows};
  AnswerCount count(Out(), share);
  EXPECT_EQ(count.Look()->answers, 0);
  auto first = Open(0, 2), second = Open(1, 2);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(first->Append(R"({"answer":"a","answer_tokens":3})").ok());
  ASSERT_TRUE(second->Append(R"({"answer":"","error":"NaN","answer_tokens":2})").ok());
  AnswerCount::Sums sums = *count.Look();
  EXPECT_EQ(sums.answers, 2);
  EXPECT_EQ(sums.tokens, 5);
  EXPECT_EQ(sums.errors, 1);
  EXPECT_EQ(sums.first_error, kRows / 2) << "the first row of the second process";
  ASSERT_TRUE(first->Append(R"({"answer":"b","answer_tokens":4})").ok());
  sums = *count.Look();
  EXPECT_EQ(sums.answers, 3);
  EXPECT_EQ(sums.tokens, 9);
  while (first->answered() < share.size()) ASSERT_TRUE(first->Append("{}").ok());
  while (second->answered() < kRows - share.size()) ASSERT_TRUE(second->Append("{}").ok());
  ASSERT_TRUE(first->Finish().ok() && *second->Finish());
  EXPECT_EQ(count.Look()->answers, kRows) << "joined";
  EXPECT_EQ(count.Look()->tokens, 9);
  ASSERT_TRUE(CopyFile(Out(), dir_ + "/copy").ok());
  EXPECT_EQ(*io::ReadFile(dir_ + "/copy"), *io::ReadFile(Out()));
}

}  // namespace
}  // namespace sft::rank
