#include "worker/engine/cuda/plugin.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/env.h>
#include <fmt/format.h>

#include <algorithm>

#include "common/base/version.h"
#include "worker/engine/base/error.h"
#include "worker/engine/cuda/graph_recorder.h"
#include "worker/engine/cuda/nccl_communicator.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/table_fingerprint.h"

namespace sft::engine::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

void Check(cudaError_t error, const char* what, int device) {
  if (error == cudaSuccess) return;
  throw InfrastructureError(
      fmt::format("{} of GPU {} failed: {}", what, device, cudaGetErrorString(error)),
      "cuda_failed", "Look at the node's kernel log (dmesg, Xid) and at nvidia-smi.");
}

class Devices : public CudaDevices {
 public:
  int Count() const override { return c10::cuda::device_count(); }

  void Select(int device) const override {
    Check(c10::cuda::SetDevice(static_cast<c10::DeviceIndex>(device)), "selection", device);
  }

  CudaDeviceProperties Properties(int device) const override {
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, device), "query", device);
    return {properties.name, static_cast<int64_t>(properties.totalGlobalMem),
            properties.multiProcessorCount, properties.major, properties.minor};
  }

  CudaMemory Memory(int device) const override {
    PrepareAllocator();
    using c10::CachingAllocator::StatType;
    const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto& allocated = stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    const auto& reserved = stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    return {allocated.current, reserved.current, allocated.peak, reserved.peak};
  }

  void ResetPeaks(int device) const override {
    PrepareAllocator();
    allocator::resetPeakStats(static_cast<c10::DeviceIndex>(device));
  }

  CudaDriverMemory DriverMemory(int device) const override {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    size_t free = 0, total = 0;
    Check(cudaMemGetInfo(&free, &total), "memory query", device);
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }

  void LimitMemory(int device, int64_t bytes) const override {
    PrepareAllocator();
    const auto total = static_cast<double>(DriverMemory(device).total);
    allocator::setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / total),
                                 static_cast<c10::DeviceIndex>(device));
  }

  void ReleaseCached(int device) const override {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    allocator::emptyCache();
  }

  void Synchronize(int device) const override {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    Check(cudaDeviceSynchronize(), "work", device);
  }

 private:
  // The allocator knows no device before LibTorch's first CUDA tensor.
  static void PrepareAllocator() { at::globalContext().lazyInitDevice(c10::DeviceType::CUDA); }
};

// Segments that grow, so that what a step frees in some pieces it can take in others: blocks'
// weights where activations were (QuantizedSource). What the environment says of the allocator
// stands.
void ConfigureAllocator() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    if (c10::utils::has_env(name)) return;
  }
  allocator::setAllocatorSettings("expandable_segments:True");
}

const Devices kDevices;

const ops::Implementations kImplementations = {
#define SFT_OPERATION(Result, Name, ...) .Name = &cuda::Name,
#include "worker/engine/kernels/operations.def"
};

const CudaPlugin kPlugin = {.version = kVersion,
                            .operations = ops::TableFingerprint(),
                            .devices = &kDevices,
                            .implementations = &kImplementations,
                            .make_nccl_communicator = &MakeNcclCommunicator,
                            .make_graph_recorder = &MakeGraphRecorder};

}  // namespace
}  // namespace sft::engine::cuda

extern "C" __attribute__((visibility("default"))) const sft::engine::CudaPlugin* sft_cuda_plugin() {
  static const bool configured = (sft::engine::cuda::ConfigureAllocator(), true);
  static_cast<void>(configured);
  return &sft::engine::cuda::kPlugin;
}
