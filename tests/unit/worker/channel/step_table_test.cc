#include "worker/channel/step_table.h"

#include <gmock/gmock.h>

namespace sft::channel {
namespace {

TEST(StepTableTest, ATableIsReadAsItWasWritten) {
  const StepTable table{.rank = 3,
                        .device = "cpu",
                        .first_step = 12,
                        .steps = 2,
                        .seconds = 0.5,
                        .shares = {{"attention", 0.125}, {"host", 0.375}},
                        .hidden_communication = 0.25,
                        .step_before = 0.2,
                        .stall = 0.1,
                        .events = 7,
                        .events_left_out = 1,
                        .crc32 = 0xfedcba98,
                        .text_bytes = 1000,
                        .trace_bytes = 100,
                        .notes = {"a note"}};
  const StepTable read = ParseStepTable(ToJson(table)).value();
  EXPECT_EQ(ToJson(read), ToJson(table));
  EXPECT_EQ(read.crc32, 0xfedcba98);
  EXPECT_EQ(read.shares.at(1).seconds, 0.375);
}

TEST(StepTableTest, WhatIsNoTableIsRefused) {
  for (const char* text : {"", "[]", "{}", R"({"rank":"0"})", R"({"rank":0,"crc32":-1})",
                           R"({"rank":0,"shares":[1]})"}) {
    EXPECT_FALSE(ParseStepTable(text).ok()) << text;
  }
}

}  // namespace
}  // namespace sft::channel
