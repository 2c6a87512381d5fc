// Kernels that start before the previous one of their stream has ended, where the GPU can (from
// Hopper on): what does not depend on it, such as loading weights, is done meanwhile.
#pragma once

#include <cuda_runtime_api.h>

namespace sft::engine::cuda {

// Called by a kernel that was launched early before it reads or writes what any kernel before it
// may. Waits until those have ended.
__device__ __forceinline__ void WaitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start, if it is launched early, when every block of this one has called it.
__device__ __forceinline__ void LetNextStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What a launch asks of the current device; asked once for each thread.
struct DeviceFacts {
  int device = -1, major = 0, multiprocessors = 1;
  int block_shared_bytes = 0;  // the most that a block may ask for
};
inline const DeviceFacts& CurrentDevice() {
  thread_local DeviceFacts facts;
  int current = 0;
  if (cudaGetDevice(&current) == cudaSuccess && current != facts.device) {
    facts.device = current;
    cudaDeviceGetAttribute(&facts.major, cudaDevAttrComputeCapabilityMajor, current);
    cudaDeviceGetAttribute(&facts.multiprocessors, cudaDevAttrMultiProcessorCount, current);
    cudaDeviceGetAttribute(&facts.block_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                           current);
  }
  return facts;
}
inline int Multiprocessors() { return CurrentDevice().multiprocessors; }

// Launches a kernel that calls WaitForPrevious.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchEarly(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                        size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = CurrentDevice().major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace sft::engine::cuda
