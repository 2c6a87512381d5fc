#pragma once

#include <cstdint>
#include <string>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/kernels/graph.h"
#include "worker/engine/kernels/ops.h"

// The interface of libsft_cuda.so to the process that opens it (loader.h).
//
// Nothing here names a CUDA type: the engine is compiled without CUDA's headers.

namespace sft::engine {

// Name and capacities of one GPU.
struct CudaDeviceProperties {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int64_t total_bytes = 0;
  int multiprocessors = 0;
  int compute_major = 0;
  int compute_minor = 0;
};

// The caching allocator's view of one device, in bytes. Peaks count from ResetPeaks.
struct CudaMemory {
  int64_t allocated = 0;
  int64_t reserved = 0;  // held from the driver, free blocks of the cache included
  int64_t peak_allocated = 0;
  int64_t peak_reserved = 0;
};

// One device's memory as the driver reports it, in bytes, over all processes.
struct CudaDriverMemory {
  int64_t free = 0;
  int64_t total = 0;
};

// The GPUs that this process sees (CUDA_VISIBLE_DEVICES applies), numbered from 0. Calls throw
// InfrastructureError when the driver fails. Thread-safe.
class CudaDevices {
 public:
  virtual ~CudaDevices() = default;
  // 0 without a driver or a GPU.
  virtual int Count() const = 0;
  // Makes `device` the calling thread's current one: what at::kCUDA without an index then means.
  virtual void Select(int device) const = 0;
  virtual CudaDeviceProperties Properties(int device) const = 0;
  virtual CudaMemory Memory(int device) const = 0;
  virtual void ResetPeaks(int device) const = 0;
  virtual CudaDriverMemory DriverMemory(int device) const = 0;
  // The allocator holds no more than `bytes` of the device from now on: where it would, it gives
  // back what it caches, and then fails with c10::OutOfMemoryError.
  virtual void LimitMemory(int device, int64_t bytes) const = 0;
  // Gives what the allocator caches back to the driver.
  virtual void ReleaseCached(int device) const = 0;
  // Waits for all work of the device; errors of earlier kernels come out here.
  virtual void Synchronize(int device) const = 0;
};

// Everything the plugin gives; it and what it points to live until the process ends.
struct CudaPlugin {
  const char* version;  // of the build; equal to the opening process's
  uint64_t operations;  // ops::TableFingerprint() as the plugin was compiled; equal likewise
  const CudaDevices* devices;
  const ops::Implementations* implementations;
  CommunicatorFactory make_nccl_communicator;
  GraphRecorderFactory make_graph_recorder;
};

// The plugin's one exported C function, by this name: `const CudaPlugin* sft_cuda_plugin()`.
inline constexpr char kCudaPluginSymbol[] = "sft_cuda_plugin";

}  // namespace sft::engine
