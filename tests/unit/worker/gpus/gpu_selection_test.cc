#include "worker/gpus/gpu_selection.h"

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

TEST(GpuSelectionTest, AllGpusWithoutAnOption) {
  GpuSelection all = Open("");
  EXPECT_EQ(Chosen(all, Four()).size(), 4u);
  EXPECT_EQ(all.Text(), "");
}

TEST(GpuSelectionTest, NumbersRangesAndUuidsInTheOrderInWhichTheyAreNamed) {
  GpuSelection numbers = Open(" 3, 0-1, 3");
  EXPECT_THAT(Chosen(numbers, Four()), ElementsAre("GPU-c", "GPU-aa1", "GPU-aa2"));
  EXPECT_EQ(numbers.Text(), "--gpus 3,0,1");
  GpuSelection uuids = Open("GPU-b,GPU-aa2");
  EXPECT_THAT(Chosen(uuids, Four()), ElementsAre("GPU-b", "GPU-aa2"));
  GpuSelection none = Open("none");
  EXPECT_THAT(Chosen(none, Four()), IsEmpty());
}

TEST(GpuSelectionTest, CudaVisibleDevicesCountsWithoutTheOption) {
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

// The variable is set on many machines that have no GPU.
TEST(GpuSelectionTest, GpusNamedByTheVariableNeedNotExist) {
  GpuSelection visible = Open("", "1,7");
  EXPECT_THAT(Chosen(visible, Four()), ElementsAre("GPU-aa2"));
  GpuSelection without = Open("", "0");
  EXPECT_THAT(Chosen(without, {}), IsEmpty());
}

TEST(GpuSelectionTest, AWrongGpuIsNamed) {
  for (const char* text : {"1,", "x", "2-1", "1-", "-2", "0;1", "GPU-", "99999"}) {
    const auto opened = GpuSelection::Open(text, {});
    EXPECT_TRUE(absl::IsInvalidArgument(opened.status())) << text;
    EXPECT_THAT(Message(opened.status()), HasSubstr("--gpus: \"")) << text;
  }
  EXPECT_THAT(Message(GpuSelection::Open("", "MIG-1/2/3").status()),
              HasSubstr("CUDA_VISIBLE_DEVICES: \"MIG-1/2/3\" is no GPU"));
  GpuSelection fifth = Open("4-5");
  EXPECT_THAT(
      Chosen(fifth, Four()),
      ElementsAre("--gpus 4,5: this machine has 4 GPUs, and none of these (nvidia-smi -L)"));
  GpuSelection twice = Open("1,GPU-aa2");
  EXPECT_THAT(Chosen(twice, Four()), ElementsAre("--gpus: 1 and GPU-aa2 are one GPU"));
  GpuSelection both = Open("GPU-aa");
  EXPECT_THAT(Chosen(both, Four()), ElementsAre("--gpus: several GPUs begin with GPU-aa"));
}

// Otherwise one lost GPU would keep the worker of the others from starting.
TEST(GpuSelectionTest, AMissingGpuKeepsItsPlace) {
  std::vector<GpuReading> three = Four();
  three.pop_back();
  GpuSelection uuids = Open("GPU-c,GPU-b");
  EXPECT_THAT(Chosen(uuids, three),
              ElementsAre("GPU GPU-c is not listed (nvidia-smi -L)", "GPU-b"));
  EXPECT_THAT(Chosen(uuids, Four()), ElementsAre("GPU-c", "GPU-b"));
  GpuSelection numbers = Open("0-3");
  EXPECT_THAT(Chosen(numbers, three),
              ElementsAre("GPU-aa1", "GPU-aa2", "GPU-b", "GPU 3 is not listed (nvidia-smi -L)"));
}

// The GPUs after it then have a number one higher than at the start.
TEST(GpuSelectionTest, AGpuThatComesBackIsNotTakenForAnotherThatIsOffered) {
  std::vector<GpuReading> three = Four();
  three.erase(three.begin());
  GpuSelection selection = Open("0-3");
  const std::string gone = "GPU 3 is not listed (nvidia-smi -L)";
  EXPECT_THAT(Chosen(selection, three), ElementsAre("GPU-aa2", "GPU-b", "GPU-c", gone));
  EXPECT_THAT(Chosen(selection, Four()), ElementsAre("GPU-aa2", "GPU-b", "GPU-c", gone));
}

// NVML then counts the GPUs after it one lower.
TEST(GpuSelectionTest, AGpuOffTheBusMovesNeitherTheOthersNorTheirPlaces) {
  GpuSelection selection = Open("1,2");
  EXPECT_THAT(Chosen(selection, Four()), ElementsAre("GPU-aa2", "GPU-b"));
  std::vector<GpuReading> three = Four();
  three.erase(three.begin());
  EXPECT_THAT(Chosen(selection, three), ElementsAre("GPU-aa2", "GPU-b"));
  three.erase(three.begin());
  EXPECT_THAT(Chosen(selection, three),
              ElementsAre("no longer listed: it fell off the bus or was reset", "GPU-b"));
}

TEST(GpuSelectionTest, AGpuThatCannotBeReadIsKnownByItsPlace) {
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
