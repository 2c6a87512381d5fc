#include "tests/gpu/gpu_test.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <limits>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

const CudaPlugin& GpuTest::Plugin() {
  static const CudaPlugin& plugin = LoadCudaPlugin(DefaultCudaPluginPath());
  return plugin;
}

void GpuTest::SetUp() {
  const int count = Plugin().devices->Count();
  if (count < GpusNeeded()) {
    GTEST_SKIP() << "needs " << GpusNeeded() << " GPUs, this machine shows " << count;
  }
  Plugin().devices->Select(0);
  ops::SetDeterministic(true);
}

at::Tensor Normal(at::IntArrayRef sizes, uint64_t seed, double scale) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty(sizes, at::kFloat).normal_(0.0, scale, generator);
}

at::Tensor ToGpu(const at::Tensor& tensor) { return tensor.to(at::Device(at::kCUDA, 0)); }

double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.cpu().to(at::kDouble), b = expected.cpu().to(at::kDouble);
  if (!a.isfinite().all().item<bool>()) return std::numeric_limits<double>::infinity();
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

std::filesystem::path OwnFolder(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / (name + "_" + std::to_string(getpid()));
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

}  // namespace sft::engine

namespace {

bool HasGpu() {
  try {
    return sft::engine::LoadCudaPlugin(sft::engine::DefaultCudaPluginPath()).devices->Count() > 0;
  } catch (const std::exception&) {
    return true;  // the tests say what is wrong
  }
}

}  // namespace

// Without a GPU only what needs none begins: many others make what they compare with before they
// are skipped.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!GTEST_FLAG_GET(list_tests) && !HasGpu()) {
    fmt::print("tests on a GPU are left out: this machine shows 0\n");
    GTEST_FLAG_SET(filter, "CudaLoader.*");
  }
  return RUN_ALL_TESTS();
}
