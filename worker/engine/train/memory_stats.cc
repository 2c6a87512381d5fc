#include "worker/engine/train/memory_stats.h"

#include <sys/resource.h>

#include <ATen/DeviceAccelerator.h>

namespace sft::engine {

int64_t PeakMemoryBytes(c10::Device device) {
  if (!device.is_cpu()) {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return at::accelerator::getDeviceStats(device.index()).reserved_bytes[kAll].peak;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  constexpr int64_t kKibibyte = 1024;
  return usage.ru_maxrss * kKibibyte;
}

}  // namespace sft::engine
