#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/sinks.h"

namespace sft::engine::cpu {

using at::Tensor;

void AddSinks(Tensor& out, Tensor& lse, const Tensor& sinks, const ops::Documents& /*documents*/) {
  sinks::Scale(out, lse, sinks);
  sinks::Widen(lse, sinks);
}

Tensor SinkGradient(const Tensor& dout, const Tensor& out, const Tensor& lse, const Tensor& sinks,
                    const ops::Documents& /*documents*/) {
  return sinks::Gradient(dout, out, lse, sinks);
}

}  // namespace sft::engine::cpu
