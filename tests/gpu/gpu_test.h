#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "worker/engine/cuda/loader.h"

namespace sft::engine {

// Opens the plugin once for all tests of the process and skips a test, with the reason, where there
// are fewer than GpusNeeded() GPUs. Each test begins deterministic.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
  virtual int GpusNeeded() const { return 1; }
  static const CudaPlugin& Plugin();
};

// Normal values from a seed, made on the CPU, so that both devices get the same.
at::Tensor Normal(at::IntArrayRef sizes, uint64_t seed, double scale = 1.0);

at::Tensor ToGpu(const at::Tensor& tensor);

// |actual - expected| / |expected| over all elements, in fp64 on the CPU; infinite when an element
// of `actual` is not finite.
double RelativeError(const at::Tensor& actual, const at::Tensor& expected);

// A temporary folder of this process alone, not made yet: several may run the same tests.
std::filesystem::path OwnFolder(const std::string& name);

// Equal as bytes: tells -0 from 0.
bool SameBits(const at::Tensor& a, const at::Tensor& b);

}  // namespace sft::engine
