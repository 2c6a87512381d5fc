#include "worker/rank/cache_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

using ::testing::HasSubstr;

CacheRoom Room(int64_t free_tokens, int64_t usable_tokens) {
  constexpr int64_t kTokenBytes = 1000;
  return {.free_bytes = free_tokens * kTokenBytes,
          .usable_bytes = usable_tokens * kTokenBytes,
          .token_bytes = kTokenBytes,
          .device = "cuda:0"};
}

TEST(CacheRoomTest, AllThatMayRunAtOnceHaveRoom) {
  EXPECT_EQ(CacheTokens(64, 2048, Room(1'000'000, 900'000)), 64 * 2048);
  // Each has whole pages.
  EXPECT_EQ(CacheTokens(64, 2041, Room(1'000'000, 900'000)), 64 * 2048);
  EXPECT_EQ(CacheTokens(1, 20, Room(1'000'000, 900'000)), 32);
}

TEST(CacheRoomTest, AsManyAsFitHaveRoomAndOneAtLeast) {
  EXPECT_EQ(CacheTokens(64, 2048, Room(100'000, 90'007)), 90'000);
  EXPECT_EQ(CacheTokens(64, 2048, Room(2'100, 500)), 2048);
}

TEST(CacheRoomTest, WhatCanNeverBeAnsweredIsRefused) {
  try {
    CacheTokens(64, 2048, Room(2'000, 1'800));
    FAIL() << "accepted";
  } catch (const engine::UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("2048 tokens"));
    EXPECT_THAT(error.what(), HasSubstr("2.05 MB"));
    EXPECT_THAT(error.what(), HasSubstr("cuda:0"));
    EXPECT_THAT(error.advice(), HasSubstr("generate.max_new_tokens"));
  }
}

TEST(CacheRoomTest, ASearchIsToldWithItsBeams) {
  try {
    CacheTokens(64, 8192, Room(2'000, 1'800), 4);
    FAIL() << "accepted";
  } catch (const engine::UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the search with 4 beams for its answer, 8192 tokens in "
                                        "all, need 8.19 MB"));
    EXPECT_THAT(error.advice(), HasSubstr("lower generate.num_beams or generate.max_new_tokens"));
  }
}

}  // namespace
}  // namespace sft::rank
