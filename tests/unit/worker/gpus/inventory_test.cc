#include "worker/gpus/inventory.h"

#include <gtest/gtest.h>

namespace sft::worker {
namespace {

class InventoryTest : public testing::Test {
 protected:
  Inventory::Probe Probe() {
    return [this] { return answer_; };
  }
  absl::StatusOr<std::vector<GpuReading>> answer_ =
      std::vector<GpuReading>{{"NVIDIA H100 80GB HBM3", "GPU-a", 85'000'000'000, 1'000'000, 0},
                              {"NVIDIA H100 80GB HBM3", "GPU-b", 85'000'000'000, 2'000'000, 0}};
  FakeClock clock_;
};

TEST_F(InventoryTest, GpusComeFirstAndCpuSlotsAfterThem) {
  Inventory inventory(Probe(), {}, 2, clock_);
  const std::vector<v1::Slot> slots = inventory.Slots();
  ASSERT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots[1].gpu_type(), "H100");
  EXPECT_EQ(slots[1].uuid(), "GPU-b");
  EXPECT_EQ(slots[3].gpu_type(), "CPU");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(slots[i].index(), i);
  EXPECT_TRUE(inventory.IsGpu(1));
  EXPECT_FALSE(inventory.IsGpu(2));
  EXPECT_EQ(inventory.SlotsLike(0), 2);
  EXPECT_EQ(inventory.SlotsLike(3), 2);
}

TEST_F(InventoryTest, SimulatedGpusNeverAskTheDriverAndAreNotGpus) {
  Inventory inventory(
      []() -> absl::StatusOr<std::vector<GpuReading>> {
        ADD_FAILURE();
        return Internal("");
      },
      {"H100", 8}, 0, clock_);
  inventory.Refresh();
  EXPECT_TRUE(inventory.simulated());
  EXPECT_EQ(inventory.gpu_count(), 8);
  EXPECT_FALSE(inventory.IsGpu(0));
  EXPECT_EQ(inventory.Slots()[7].memory_bytes(), 80'000'000'000);
}

TEST_F(InventoryTest, ADriverThatHangsMakesItsGpusUnhealthyWithTheReasonUntilItAnswers) {
  Inventory inventory(Probe(), {}, 1, clock_);
  const auto good = answer_;
  answer_ = DeadlineExceeded("sft-worker did not end within 10000 ms");
  inventory.Refresh();
  EXPECT_FALSE(inventory.Slots()[0].healthy());
  EXPECT_EQ(inventory.Slots()[0].health_reason(), "NVML: sft-worker did not end within 10000 ms");
  EXPECT_TRUE(inventory.Slots()[2].healthy()) << "a CPU slot";
  answer_ = good;
  inventory.Refresh();
  EXPECT_TRUE(inventory.Slots()[0].healthy());
  EXPECT_EQ(inventory.Slots()[0].health_reason(), "");
}

TEST_F(InventoryTest, AGpuThatIsNoLongerListedIsUnhealthyAndTheOthersKeepTheirIndex) {
  Inventory inventory(Probe(), {}, 0, clock_);
  answer_->erase(answer_->begin());
  inventory.Refresh();
  EXPECT_FALSE(inventory.Slots()[0].healthy());
  EXPECT_TRUE(inventory.Slots()[1].healthy());
  EXPECT_EQ(inventory.Slots()[1].uuid(), "GPU-b");
}

TEST_F(InventoryTest, AGpuThatCannotBeReadIsUnhealthyAlone) {
  Inventory inventory(Probe(), {}, 0, clock_);
  const auto good = answer_;
  const MonoTime first = inventory.MemoryOf(0).at;
  clock_.Advance(std::chrono::seconds(5));
  (*answer_)[0] = GpuReading{};
  (*answer_)[0].error = "nvmlDeviceGetHandleByIndex_v2: GPU is lost";
  inventory.Refresh();
  EXPECT_FALSE(inventory.Slots()[0].healthy());
  EXPECT_EQ(inventory.Slots()[0].health_reason(),
            "NVML: nvmlDeviceGetHandleByIndex_v2: GPU is lost");
  EXPECT_EQ(inventory.MemoryOf(0).at, first);
  EXPECT_EQ(inventory.MemoryOf(0).unreadable_at, clock_.Mono());
  EXPECT_TRUE(inventory.Slots()[1].healthy());
  EXPECT_EQ(inventory.MemoryOf(1).at, clock_.Mono());
  answer_ = good;
  inventory.Refresh();
  EXPECT_TRUE(inventory.Slots()[0].healthy());
}

TEST_F(InventoryTest, AGpuThatCannotBeReadAtTheStartKeepsItsIndexAndIsTakenWhenItComesBack) {
  const auto good = answer_;
  (*answer_)[0] = GpuReading{};
  (*answer_)[0].error = "GPU is lost";
  Inventory inventory(Probe(), {}, 1, clock_);
  EXPECT_EQ(inventory.gpu_count(), 2);
  EXPECT_FALSE(inventory.Slots()[0].healthy());
  EXPECT_EQ(inventory.Slots()[0].gpu_type(), "GPU");
  EXPECT_EQ(inventory.Slots()[1].uuid(), "GPU-b");
  answer_ = good;
  inventory.Refresh();
  EXPECT_TRUE(inventory.Slots()[0].healthy());
  EXPECT_EQ(inventory.Slots()[0].uuid(), "GPU-a");
  EXPECT_EQ(inventory.Slots()[0].gpu_type(), "H100");
}

TEST_F(InventoryTest, MemoryCarriesTheTimeOfItsReading) {
  Inventory inventory(Probe(), {}, 0, clock_);
  const MonoTime first = inventory.MemoryOf(0).at;
  clock_.Advance(std::chrono::seconds(5));
  (*answer_)[0].memory_used_bytes = 9;
  inventory.Refresh();
  EXPECT_EQ(inventory.MemoryOf(0).used_bytes, 9);
  EXPECT_EQ(inventory.MemoryOf(0).at - first, std::chrono::seconds(5));
}

TEST(SimulatedGpusTest, TheTextIsTypeAndCount) {
  EXPECT_EQ(ParseSimulatedGpus("H100:8")->count, 8);
  EXPECT_EQ(ParseSimulatedGpus("H100:8")->gpu_type, "H100");
  for (const char* text :
       {"", "H100", "H100:", ":8", "H100:0", "H100:-1", "H100:65", "H100:8x", "H 100:8"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSimulatedGpus(text).status())) << text;
  }
}

}  // namespace
}  // namespace sft::worker
