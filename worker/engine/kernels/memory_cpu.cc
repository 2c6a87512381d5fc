#include <ATen/ops/empty.h>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine::cpu {

// Any memory: a CPU's is where it is, and pinned for it.
at::Tensor EmptyAtTheEnd(const at::Tensor& like, int64_t bytes) {
  return at::empty({bytes}, like.options().dtype(at::kByte));
}
at::Tensor EmptyPinned(const at::Tensor& like, int64_t bytes) { return EmptyAtTheEnd(like, bytes); }

}  // namespace sft::engine::cpu
