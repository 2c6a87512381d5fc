#include "worker/engine/kernels/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace sft::engine {

void AdviseHugePages(const at::Tensor& tensor) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  if (!tensor.is_cpu() || tensor.nbytes() < 4 * kHugePage) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + tensor.nbytes()) / kHugePage * kHugePage;
  // Where the kernel has no huge pages it says so, and small ones serve.
  static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE));
}

}  // namespace sft::engine
