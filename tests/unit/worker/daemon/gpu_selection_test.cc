#include "worker/daemon/gpu_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sft::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GpuReading Gpu(std::string uuid) {
  GpuReading reading;
  reading.uuid = std::move(uuid);
  return reading;
}

std::vector<GpuReading> Four() {
  return {Gpu("GPU-aa1"), Gpu("GPU-aa2"), Gpu("GPU-b"), Gpu("GPU-c")};
}

std::vector<std::string> Chosen(GpuSelection& selection, std::vector<GpuReading> readings) {
  std::vector<std::string> uuids;
  const absl::StatusOr<std::vector<GpuReading>> chosen = selection.Choose(std::move(readings));
  if (!chosen.ok()) return {std::string(Message(chosen.status()))};
  for (const GpuReading& reading : *chosen) {
    uuids.push_back(reading.error.empty() ? reading.uuid : reading.error);
  }
  return uuids;
}

GpuSelection Open(const std::string& option, const std::optional<std::string>& visible = {}) {
  return GpuSelection::Open(option, visible).value();
}

TEST(GpuSelectionTest, AllWithoutAWord) {
  GpuSelection all = Open("");
  EXPECT_EQ(Chosen(all, Four()).size(), 4u);
  EXPECT_EQ(all.Text(), "");
}

TEST(GpuSelectionTest, NumbersRangesAndUuidsInTheOrderOfTheMachine) {
  GpuSelection numbers = Open(" 3, 0-1");
  EXPECT_THAT(Chosen(numbers, Four()), ElementsAre("GPU-aa1", "GPU-aa2", "GPU-c"));
  EXPECT_EQ(numbers.Text(), "--gpus 3,0,1");
  GpuSelection uuids = Open("GPU-b,GPU-aa2");
  EXPECT_THAT(Chosen(uuids, Four()), ElementsAre("GPU-aa2", "GPU-b"));
  GpuSelection none = Open("none");
  EXPECT_THAT(Chosen(none, Four()), IsEmpty());
}

TEST(GpuSelectionTest, TheVariableOfCudaCountsWhereTheOptionIsNotGiven) {
  GpuSelection visible = Open("", "2");
  EXPECT_THAT(Chosen(visible, Four()), ElementsAre("GPU-b"));
  EXPECT_EQ(visible.Text(), "CUDA_VISIBLE_DEVICES 2");
  GpuSelection option = Open("0", "2");
  EXPECT_THAT(Chosen(option, Four()), ElementsAre("GPU-aa1"));
  for (const char* none : {"", "-1", "NoDevFiles"}) {
    GpuSelection hidden = Open("", none);
    EXPECT_THAT(Chosen(hidden, Four()), IsEmpty()) << none;
    EXPECT_EQ(hidden.Text(), "CUDA_VISIBLE_DEVICES none");
  }
}

TEST(GpuSelectionTest, WhatFitsNoGpuIsNamed) {
  for (const char* text : {"1,", "x", "2-1", "1-", "-2", "0;1", "GPU-", "99999"}) {
    const auto opened = GpuSelection::Open(text, {});
    EXPECT_TRUE(absl::IsInvalidArgument(opened.status())) << text;
    EXPECT_THAT(Message(opened.status()), HasSubstr("--gpus: \"")) << text;
  }
  EXPECT_THAT(Message(GpuSelection::Open("", "MIG-1/2/3").status()),
              HasSubstr("CUDA_VISIBLE_DEVICES: \"MIG-1/2/3\" is no GPU"));
  GpuSelection fifth = Open("0,4");
  EXPECT_THAT(Chosen(fifth, Four()),
              ElementsAre("--gpus: there is no GPU 4: this machine has 4 (nvidia-smi -L)"));
  GpuSelection both = Open("GPU-aa");
  EXPECT_THAT(Chosen(both, Four()), ElementsAre("--gpus: 2 GPUs begin with GPU-aa"));
}

// NVML then counts those after it one lower.
TEST(GpuSelectionTest, AGpuOffTheBusDoesNotMoveTheOthersIn) {
  GpuSelection selection = Open("1,2");
  EXPECT_THAT(Chosen(selection, Four()), ElementsAre("GPU-aa2", "GPU-b"));
  std::vector<GpuReading> three = Four();
  three.erase(three.begin());
  EXPECT_THAT(Chosen(selection, three), ElementsAre("GPU-aa2", "GPU-b"));
  three.erase(three.begin());
  EXPECT_THAT(Chosen(selection, three), ElementsAre("GPU-b"));
}

TEST(GpuSelectionTest, AGpuThatCannotBeReadAtFirstIsKnownByItsPlaceUntilItCanBe) {
  GpuSelection selection = Open("1");
  std::vector<GpuReading> readings = Four();
  readings[1] = GpuReading{};
  readings[1].error = "GPU is lost";
  EXPECT_THAT(Chosen(selection, readings), ElementsAre("GPU is lost"));
  EXPECT_THAT(Chosen(selection, Four()), ElementsAre("GPU-aa2"));
  EXPECT_THAT(Chosen(selection, readings), ElementsAre("GPU is lost"));
}

}  // namespace
}  // namespace sft::worker
