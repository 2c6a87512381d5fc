#include "worker/rank/answer_exchange.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

constexpr int kRanks = 4;  // two on each of two nodes
constexpr int64_t kAllRows = 10;
constexpr char kRun[] = "{\"seed\":3}";

// A store whose server ends with rank 0's process.
class MortalStore : public c10d::HashStore {
 public:
  void End() { ended_ = true; }
  void set(const std::string& key, const std::vector<uint8_t>& data) override {
    Reach();
    c10d::HashStore::set(key, data);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    Reach();
    return c10d::HashStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    Reach();
    return c10d::HashStore::check(keys);
  }

 private:
  void Reach() const {
    if (ended_) throw std::runtime_error("Connection reset by peer\nframe #0");
  }
  bool ended_ = false;
};

// A store in which somebody takes a key away right after it was seen to be there.
class EmptiedStore : public c10d::HashStore {
 public:
  void Empty() { empties_ = true; }
  bool check(const std::vector<std::string>& keys) override {
    const bool there = c10d::HashStore::check(keys);
    if (there && empties_) deleteKey(keys.front());
    return there;
  }

 private:
  bool empties_ = false;
};

// Both nodes of an attempt, stepped by hand.
class AnswerExchangeTest : public testing::Test {
 protected:
  AnswerExchangeTest() { dir_ = *io::MakeTempDir("exchange"); }
  ~AnswerExchangeTest() override { EXPECT_TRUE(io::RemoveAll(dir_).ok()); }

  std::string Out(int node) const { return fmt::format("{}/{}/answers.jsonl", dir_, node); }
  static RowShare Share(int rank) { return {rank, kRanks, kAllRows}; }
  static std::string Line(int64_t row) { return fmt::format("{{\"row\":{}}}", row); }
  static std::string AllLines() {
    std::string lines;
    for (int64_t row = 0; row < kAllRows; ++row) lines += Line(row) + "\n";
    return lines;
  }
  static AnswerPart Open(const std::string& out, int rank, const std::string& run = kRun) {
    auto part = AnswerPart::Open(out, Share(rank), run);
    EXPECT_TRUE(part.ok()) << part.status();
    return *std::move(part);
  }
  static void Append(AnswerPart& part, int rank, int64_t most) {
    const RowShare share = Share(rank);
    for (; most > 0 && part.answered() < share.size(); --most) {
      EXPECT_TRUE(part.Append(Line(share.begin() + part.answered())).ok());
    }
  }
  // Leaves so many lines of a rank's part in a node's folder.
  void Leave(int node, int rank, int64_t lines) const {
    AnswerPart part = Open(Out(node), rank);
    Append(part, rank, lines);
  }

  // One attempt: ranks 2 and 3 are elsewhere. Rank 0's node has answered all of its own rows. Each
  // of the others answers until `most` lines are there. Returns whether rank 0 could join.
  bool Attempt(int64_t most, int first = 0, int second = 1, const std::string& theirs = kRun) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    answered_ = 0;
    AnswerPart own = Open(Out(first), 0);
    AnswerReceiver receiver(*store, Out(first), Share(0), 2, kRun,
                            fmt::format("attempt-{}", ++attempts_));
    std::vector<AnswerPart> parts;
    std::vector<std::unique_ptr<AnswerSender>> senders;
    for (int rank = 2; rank < kRanks; ++rank) {
      parts.push_back(Open(Out(second), rank, theirs));
      senders.push_back(std::make_unique<AnswerSender>(*store, Out(second), Share(rank), theirs));
      EXPECT_FALSE(receiver.Meet());
      EXPECT_EQ(senders.back()->Meet(parts.back()), first == second);
    }
    EXPECT_TRUE(receiver.Meet());
    for (int rank = 2; rank < kRanks; ++rank) {
      AnswerPart& part = parts[rank - 2];
      AnswerSender& sender = *senders[rank - 2];
      EXPECT_TRUE(sender.Meet(part));
      shared_ = sender.shared();
      if (sender.all_joined()) continue;
      while (part.answered() < std::min(most, Share(rank).size())) {
        const std::string line = Line(Share(rank).begin() + part.answered());
        EXPECT_TRUE(part.Append(line).ok());
        sender.Add(line);
        ++answered_;
      }
      sender.Send();
    }
    const bool all = receiver.Receive();
    for (const auto& sender : senders) EXPECT_TRUE(sender->AllTaken());
    if (!all) return false;
    EXPECT_FALSE(receiver.AllLeft());
    for (int rank = 1; rank < kRanks; ++rank) SayGoodbye(*store, rank);
    EXPECT_TRUE(receiver.AllLeft());
    Append(own, 0, kAllRows);
    Leave(first, 1, kAllRows);
    return *own.Finish();
  }

  std::string dir_;
  int attempts_ = 0;
  int64_t answered_ = 0;  // by ranks 2 and 3 in the last attempt
  bool shared_ = false;
};

TEST_F(AnswerExchangeTest, PartsOfAnotherNodeAreJoinedInOrder) {
  EXPECT_TRUE(Attempt(kAllRows));
  EXPECT_EQ(io::ReadFile(Out(0)).value(), AllLines());
  EXPECT_FALSE(shared_);
}

TEST_F(AnswerExchangeTest, AnAttemptGoesOnBehindWhatTheLastOneSent) {
  EXPECT_FALSE(Attempt(1));
  EXPECT_EQ(answered_, 2);
  EXPECT_TRUE(Attempt(kAllRows));
  EXPECT_EQ(answered_, Share(2).size() + Share(3).size() - 2);
  EXPECT_EQ(io::ReadFile(Out(0)).value(), AllLines());
}

TEST_F(AnswerExchangeTest, WhoHasMoreOfAPartGivesItToTheOther) {
  Leave(1, 2, 2);  // rank 0's node knows nothing of it: it was not sent
  Leave(0, 3, 1);  // and of this the other node: its disk is new
  EXPECT_TRUE(Attempt(kAllRows));
  EXPECT_EQ(answered_, Share(2).size() + Share(3).size() - 3);
  EXPECT_EQ(io::ReadFile(Out(0)).value(), AllLines());
}

TEST_F(AnswerExchangeTest, NothingIsAnsweredAgainWhereAllIsJoined) {
  EXPECT_TRUE(Attempt(kAllRows));
  EXPECT_TRUE(Attempt(kAllRows));
  EXPECT_EQ(answered_, 0);
  EXPECT_EQ(io::ReadFile(Out(0)).value(), AllLines());
}

TEST_F(AnswerExchangeTest, ANodeThatJoinedAllSendsItsPartsToTheNextRankZero) {
  EXPECT_TRUE(Attempt(kAllRows, 0, 1));
  EXPECT_TRUE(Attempt(kAllRows, 1, 0)) << "the nodes change places";
  EXPECT_EQ(answered_, 0);
  EXPECT_EQ(io::ReadFile(Out(1)).value(), AllLines());
  EXPECT_TRUE(Attempt(kAllRows, 2, 0)) << "a node that has nothing";
  EXPECT_EQ(answered_, 0);
  EXPECT_EQ(io::ReadFile(Out(2)).value(), AllLines());
}

TEST_F(AnswerExchangeTest, ARankThatLeavesWithAnswersMissingIsNotWaitedFor) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  AnswerPart own = Open(Out(0), 0);
  AnswerReceiver receiver(*store, Out(0), Share(0), 3, kRun, "attempt");
  AnswerPart part = Open(Out(1), 3);
  AnswerSender sender(*store, Out(1), Share(3), kRun);
  EXPECT_FALSE(sender.Meet(part));
  EXPECT_TRUE(receiver.Meet());
  EXPECT_TRUE(sender.Meet(part));
  sender.Add(Line(Share(3).begin()));
  sender.Send();
  EXPECT_FALSE(receiver.Receive());
  SayGoodbye(*store, 3);
  EXPECT_THROW(receiver.Receive(), engine::InfrastructureError);
}

TEST_F(AnswerExchangeTest, NothingIsSentWithinASharedFolder) {
  EXPECT_TRUE(Attempt(kAllRows, 0, 0));
  EXPECT_TRUE(shared_);
  EXPECT_EQ(io::ReadFile(Out(0)).value(), AllLines());
}

TEST_F(AnswerExchangeTest, RankZeroIsThereUntilTheOthersReadItsStoreNoMore) {
  auto store = c10::make_intrusive<MortalStore>();
  AnswerPart own = Open(Out(0), 0);
  AnswerReceiver receiver(*store, Out(0), {0, 2, kAllRows}, 1, kRun, "attempt");
  auto part = AnswerPart::Open(Out(1), {1, 2, kAllRows}, kRun);
  ASSERT_TRUE(part.ok());
  AnswerSender sender(*store, Out(1), {1, 2, kAllRows}, kRun);
  EXPECT_FALSE(sender.Meet(*part));
  EXPECT_TRUE(receiver.Meet());
  EXPECT_TRUE(sender.Meet(*part));
  for (int64_t row = 5; row < kAllRows; ++row) sender.Add(Line(row));
  sender.Send();
  EXPECT_TRUE(receiver.Receive());
  EXPECT_FALSE(receiver.AllLeft()) << "it does not know yet that all was taken";
  EXPECT_TRUE(sender.AllTaken());
  SayGoodbye(*store, 1);
  EXPECT_TRUE(receiver.AllLeft());
  store->End();
  SayGoodbye(*store, 1);  // to one that had no more patience
  try {
    sender.AllTaken();
    FAIL() << "the store answers";
  } catch (const engine::InfrastructureError& error) {
    EXPECT_THAT(error.what(), testing::EndsWith("Connection reset by peer"));
    EXPECT_EQ(error.code(), "collective_failed") << "another node is to blame, if any";
  }
}

TEST_F(AnswerExchangeTest, WhatIsTakenWhileItIsLookedForIsNotWaitedFor) {
  auto store = c10::make_intrusive<EmptiedStore>();
  store->setTimeout(std::chrono::milliseconds(100));
  AnswerPart own = Open(Out(0), 0);
  AnswerReceiver receiver(*store, Out(0), {0, 2, kAllRows}, 1, kRun, "attempt");
  auto part = AnswerPart::Open(Out(1), {1, 2, kAllRows}, kRun);
  ASSERT_TRUE(part.ok());
  AnswerSender sender(*store, Out(1), {1, 2, kAllRows}, kRun);
  EXPECT_FALSE(sender.Meet(*part));
  EXPECT_TRUE(receiver.Meet());
  EXPECT_TRUE(sender.Meet(*part));
  sender.Add(Line(5));
  sender.Send();
  store->Empty();
  EXPECT_FALSE(sender.AllTaken());
  EXPECT_TRUE(sender.AllTaken());
}

TEST_F(AnswerExchangeTest, ANodeWithAnotherModelIsRefused) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  AnswerPart own = Open(Out(0), 0);
  AnswerReceiver receiver(*store, Out(0), Share(0), 2, kRun, "attempt");
  const std::string other = "{\"seed\":4}";
  AnswerPart part = Open(Out(1), 2, other);
  AnswerSender sender(*store, Out(1), Share(2), other);
  try {
    sender.Meet(part);
    FAIL() << "taken";
  } catch (const engine::UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("seed is 4, was 3"));
  }
}

}  // namespace
}  // namespace sft::rank
