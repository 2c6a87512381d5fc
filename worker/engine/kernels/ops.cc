#include "worker/engine/kernels/ops.h"

#include <ATen/Context.h>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine::ops {

namespace {

constexpr Implementations kCpu = {
#define SFT_OPERATION(Result, Name, ...) .Name = &cpu::Name,
#define SFT_CUDA_OPERATION(Result, Name, ...) .Name = nullptr,
#include "worker/engine/kernels/operations.def"
};
constexpr Implementations kNone;

const Implementations* cuda_implementations = nullptr;  // until the plugin is opened

}  // namespace

void RegisterCudaImplementations(const Implementations& cuda) { cuda_implementations = &cuda; }

namespace internal {

const Implementations& ImplementationsFor(c10::Device device) {
  if (device.is_cpu()) return kCpu;
  return device.is_cuda() && cuda_implementations != nullptr ? *cuda_implementations : kNone;
}

void ThrowMissing(const char* operation, c10::Device device) {
  TORCH_CHECK(!device.is_cuda() || cuda_implementations != nullptr, operation, " on ", device,
              ": the plugin libsft_cuda.so was not opened");
  TORCH_CHECK(false, operation, " has no implementation for ", device.type());
}

}  // namespace internal

void SetDeterministic(bool deterministic) {
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  // Else LibTorch fills every new tensor: 5 % of a step, for memory that is always written to.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace sft::engine::ops
