#include "worker/gpus/gpu_probe.h"

#include <gtest/gtest.h>

namespace sft::worker {
namespace {

TEST(GpuProbeTest, AProductNameBecomesTheTypeThatVariantsName) {
  EXPECT_EQ(GpuTypeOf("NVIDIA H100 80GB HBM3"), "H100");
  EXPECT_EQ(GpuTypeOf("NVIDIA H100 PCIe"), "H100");
  EXPECT_EQ(GpuTypeOf("NVIDIA H200"), "H200");
  EXPECT_EQ(GpuTypeOf("NVIDIA B200"), "B200");
  EXPECT_EQ(GpuTypeOf("NVIDIA A100-SXM4-80GB"), "A100");
  EXPECT_EQ(GpuTypeOf("Tesla V100-SXM2-16GB"), "V100");
  EXPECT_EQ(GpuTypeOf("NVIDIA GeForce RTX 4090"), "RTX4090");
  EXPECT_EQ(GpuTypeOf("NVIDIA RTX PRO 6000 Blackwell"), "RTXPRO6000");
  EXPECT_EQ(GpuTypeOf("NVIDIA L40S"), "L40S");
  EXPECT_EQ(GpuTypeOf(""), "GPU");
}

TEST(GpuProbeTest, TheProbesLineBecomesReadings) {
  const auto readings = ParseGpuProbe(
      R"({"gpus":[{"name":"NVIDIA H200","uuid":"GPU-1","memory":150,"used":7,"utilization":3,)"
      R"("milliwatts":412500,"celsius":61},{"uuid":"GPU-2"}]})");
  ASSERT_TRUE(readings.ok()) << readings.status();
  ASSERT_EQ(readings->size(), 2u);
  EXPECT_EQ((*readings)[0].uuid, "GPU-1");
  EXPECT_EQ((*readings)[0].memory_bytes, 150);
  EXPECT_EQ((*readings)[0].memory_used_bytes, 7);
  EXPECT_EQ((*readings)[0].utilization_percent, 3);
  EXPECT_EQ((*readings)[0].power_watts, 412.5);
  EXPECT_EQ((*readings)[0].temperature_celsius, 61);
  EXPECT_EQ((*readings)[1].power_watts, 0) << "a driver that does not tell it";
}

TEST(GpuProbeTest, AGpuThatCannotBeReadDoesNotHideTheOthers) {
  const auto readings = ParseGpuProbe(
      R"({"gpus":[{"error":"nvmlDeviceGetHandleByIndex_v2: GPU is lost"},{"uuid":"GPU-2"}]})");
  ASSERT_TRUE(readings.ok()) << readings.status();
  ASSERT_EQ(readings->size(), 2u);
  EXPECT_EQ((*readings)[0].error, "nvmlDeviceGetHandleByIndex_v2: GPU is lost");
  EXPECT_EQ((*readings)[1].error, "");
  EXPECT_EQ((*readings)[1].uuid, "GPU-2");
}

TEST(GpuProbeTest, AnNvmlErrorIsAnError) {
  EXPECT_TRUE(absl::IsUnavailable(
      ParseGpuProbe(R"({"gpus":[],"error":"nvmlInit_v2: Unknown Error"})").status()));
  EXPECT_TRUE(absl::IsUnavailable(ParseGpuProbe("Segmentation fault").status()));
}

TEST(GpuProbeTest, AProbeThatDoesNotStartIsAnError) {
  EXPECT_FALSE(ProbeGpus("/nowhere/sft-worker").ok());
}

}  // namespace
}  // namespace sft::worker
