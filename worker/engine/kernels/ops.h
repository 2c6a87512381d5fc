#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "worker/engine/kernels/op_types.h"

// The engine's own operations, called as ops::NAME(arguments). The table operations.def has their
// signatures and contracts; this header makes it callable. CPU implementations are in this folder;
// libsft_cuda.so brings those for CUDA when a rank opens it (cuda/loader.h).

namespace sft::engine::ops {

// One device's implementations, by the names of the table; null where it has none.
struct Implementations {
#define SFT_OPERATION(Result, Name, ...) Result (*Name)(__VA_ARGS__) = nullptr;
#include "worker/engine/kernels/operations.def"
};

// Makes the plugin's implementations those of CUDA tensors; they stay for the process's life. Not
// safe to call beside an operation.
void RegisterCudaImplementations(const Implementations& cuda);

namespace internal {

// The implementations for the kind of device; an empty struct where there are none.
const Implementations& ImplementationsFor(c10::Device device);
[[noreturn]] void ThrowMissing(const char* operation, c10::Device device);

// The first argument decides.
c10::Device DeviceOf(const at::Tensor& first, const auto&...) { return first.device(); }
c10::Device DeviceOf(const AdamWTensors& first, const auto&...) {
  TORCH_CHECK(!first.weights.empty(), "AdamWStep: no weights");
  return first.weights[0].device();
}

// An argument as a profile shows it: tensors alone.
inline c10::IValue Shown(const at::Tensor& argument) { return argument; }
inline c10::IValue Shown(const Fp8Rows& argument) { return argument.values; }
c10::IValue Shown(const auto&) { return {}; }

void Announce(at::RecordFunction& span, const char* operation, const auto&... arguments) {
  if (!span.needsInputs()) return span.before(operation);
  const c10::IValue inputs[] = {Shown(arguments)...};
  span.before(operation, c10::ArrayRef<const c10::IValue>(inputs, sizeof...(arguments)));
}

template <typename Function>
class Operation;
// Calls one line of the table on the device of the first argument. LibTorch's profiler sees the
// call as it sees LibTorch's own. Throws c10::Error, which names operation and device, where the
// device has no implementation.
template <typename Result, typename... Parameters>
class Operation<Result (*)(Parameters...)> {
 public:
  using Function = Result (*)(Parameters...);

  constexpr Operation(Function Implementations::*line, const char* name)
      : line_(line), name_(name) {}

  Result operator()(Parameters... arguments) const {
    const c10::Device device = DeviceOf(arguments...);
    const Function implementation = ImplementationsFor(device).*line_;
    if (implementation == nullptr) ThrowMissing(name_, device);
    at::RecordFunction span;
    if (span.isActive()) Announce(span, name_, arguments...);
    return implementation(std::forward<Parameters>(arguments)...);
  }

  // Without rows in FP8, where they are the last parameter.
  template <typename... Given>
    requires std::is_invocable_v<Function, Given..., const Fp8Rows&>
  Result operator()(Given&&... given) const {
    return (*this)(std::forward<Given>(given)..., Fp8Rows());
  }

 private:
  Function Implementations::*line_;
  const char* name_;
};

}  // namespace internal

#define SFT_OPERATION(Result, Name, ...)                                      \
  inline constexpr internal::Operation<decltype(Implementations::Name)> Name{ \
      &Implementations::Name, "sft::" #Name};
#include "worker/engine/kernels/operations.def"

// Turns deterministic sums on or off for this process: operations that sum in parallel, LibTorch's
// too, keep a fixed order and so give the same bits each time. Call it before any thread computes.
// Ours on a CPU are always deterministic.
void SetDeterministic(bool deterministic);

}  // namespace sft::engine::ops
