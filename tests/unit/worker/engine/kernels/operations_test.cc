// How operations are called: by the device of the first argument, through one table that the CUDA
// plugin shares.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/version.h"
#include "worker/engine/base/error.h"
#include "worker/engine/cuda/loader.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/kernels/table_fingerprint.h"

namespace sft::engine {
namespace {

using at::Tensor;

// The message of the c10::Error that `work` throws.
template <typename Work>
std::string ErrorOf(const Work& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(OperationsTest, WhatADeviceLacksIsSaidWithBothNames) {
  const ops::AdamWTensors tensors{.weights = {at::ones({2})}};
  EXPECT_EQ(ErrorOf([&] { ops::AdamWStep(tensors, Tensor(), {}); }),
            "sft::AdamWStep has no implementation for cpu");
  Tensor nowhere = at::empty({2}, at::kMeta);
  EXPECT_EQ(ErrorOf([&] { ops::Accumulate(nowhere, nowhere, true); }),
            "sft::Accumulate has no implementation for meta");
}

TEST(OperationsTest, AStepWithoutWeightsIsRefused) {
  EXPECT_EQ(ErrorOf([] { ops::AdamWStep({}, Tensor(), {}); }), "AdamWStep: no weights");
}

std::vector<std::string> seen;

TEST(OperationsTest, AProfileNamesThemAndTheirTensors) {
  seen.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (std::string(call.name()).starts_with("sft::")) {
          seen.emplace_back(call.name());
          EXPECT_GE(call.inputs().size(), 3U);
          EXPECT_TRUE(call.inputs()[1].isTensor());
        }
        return nullptr;
      }).needsInputs(true));
  Tensor sum = at::zeros({3});
  ops::Accumulate(sum, at::ones({3}), false);
  Tensor out = at::empty({1, 2});
  ops::Glu(out, at::ones({1, 4}), plan::ActivationKind::kSilu);
  at::removeCallback(handle);
  EXPECT_EQ(seen, (std::vector<std::string>{"sft::Accumulate", "sft::Glu"}));
  EXPECT_EQ(sum.sum().item<double>(), 3.0);
}

TEST(OperationsTest, APluginOfAnotherTableIsRefused) {
  CudaPlugin plugin{.version = kVersion, .operations = ops::TableFingerprint()};
  CheckSameBuild(plugin, "lib/libsft_cuda.so");
  ++plugin.operations;
  try {
    CheckSameBuild(plugin, "lib/libsft_cuda.so");
    FAIL() << "the plugin was taken";
  } catch (const InfrastructureError& error) {
    EXPECT_EQ(error.code(), "cuda_plugin_wrong");
    EXPECT_EQ(std::string(error.what()),
              "the CUDA plugin lib/libsft_cuda.so was built with another table of operations "
              "(worker/engine/kernels/operations.def) than this program");
  }
}

TEST(OperationsTest, APluginOfAnotherVersionIsRefused) {
  const CudaPlugin plugin{.version = "0.0.1", .operations = ops::TableFingerprint()};
  EXPECT_THROW(CheckSameBuild(plugin, "lib/libsft_cuda.so"), InfrastructureError);
}

}  // namespace
}  // namespace sft::engine
