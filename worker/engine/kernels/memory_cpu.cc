#include <ATen/ops/empty.h>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine::cpu {

at::Tensor EmptyBytes(const at::Tensor& like, int64_t bytes) {
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

}  // namespace sft::engine::cpu
