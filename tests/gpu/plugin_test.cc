#include <dlfcn.h>

#include <filesystem>
#include <fstream>

#include "tests/gpu/gpu_test.h"
#include "tests/gpu/probe.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

// Found where the plugin lies; opened after it, so that both share one LibTorch.
template <typename... Arguments>
const char* Probe(const char* name, Arguments&... arguments) {
  static void* library =
      dlopen((DefaultCudaPluginPath().parent_path() / "libsft_gpu_probe.so").c_str(), RTLD_NOW);
  if (library == nullptr) return dlerror();
  const auto probe = reinterpret_cast<const char* (*)(Arguments&...)>(dlsym(library, name));
  return probe == nullptr ? "no such probe" : probe(arguments...);
}

TEST_F(GpuTest, PluginNamesTheDeviceAndItsMemory) {
  const CudaDevices& devices = *Plugin().devices;
  const auto properties = devices.Properties(0);
  EXPECT_FALSE(properties.name.empty());
  EXPECT_GT(properties.multiprocessors, 0);
  EXPECT_GE(properties.compute_major, 8) << properties.name;
  devices.ResetPeaks(0);
  const CudaMemory before = devices.Memory(0);
  {
    const at::Tensor big =
        at::empty({int64_t{1} << 28}, at::TensorOptions(at::kByte).device(at::kCUDA));
    EXPECT_EQ(devices.Memory(0).allocated, before.allocated + big.numel());
  }
  const CudaMemory after = devices.Memory(0);
  EXPECT_EQ(after.allocated, before.allocated);
  EXPECT_GE(after.peak_allocated, before.allocated + (int64_t{1} << 28));
  EXPECT_GE(after.peak_reserved, after.peak_allocated);
  EXPECT_LE(after.peak_reserved, properties.total_bytes);
}

TEST_F(GpuTest, CudaGraphsAreCapturedFromALibraryOpenedAtRunTime) {
  const char* problem = Probe("sft_probe_cuda_graph", *Plugin().implementations);
  EXPECT_EQ(problem, nullptr) << problem;
}

TEST_F(GpuTest, NcclRunsFromALibraryOpenedAtRunTime) {
  const char* problem = Probe("sft_probe_nccl_alone");
  EXPECT_EQ(problem, nullptr) << problem;
}

TEST(CudaLoader, SaysWhichPluginIsMissing) {
  try {
    LoadCudaPlugin("/nonexistent/libsft_cuda.so");
    FAIL();
  } catch (const InfrastructureError& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/libsft_cuda.so"), std::string::npos);
    EXPECT_EQ(error.code(), "cuda_plugin_missing");
  }
}

TEST(CudaLoader, RefusesALibraryThatIsNoPlugin) {
  EXPECT_THROW(LoadCudaPlugin("libm.so.6"), InfrastructureError);
}

}  // namespace
}  // namespace sft::engine
