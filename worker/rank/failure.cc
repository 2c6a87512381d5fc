#include "worker/rank/failure.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

constexpr const char* kSmallerBatch =
    "Lower per_device_batch and raise gradient_accumulation_steps by the same factor: the global "
    "batch, and with it the result, stays the same. A shorter sequence_length, "
    "activation_checkpointing, use_qlora or more GPUs with sharding need less memory too.";

Failure Make(const char* domain, channel::ExitCode exit_code, const std::string& code,
             const std::string& message, const std::string& advice) {
  return {.event = {.domain = domain, .code = code, .message = message, .advice = advice},
          .exit_code = exit_code};
}

Failure OfEngine(const engine::Error& error) {
  const auto code = [&](const char* fallback) {
    return error.code().empty() ? std::string(fallback) : error.code();
  };
  if (dynamic_cast<const engine::UserError*>(&error) != nullptr) {
    return Make("user", channel::kExitUserError, code("user_error"), error.what(), error.advice());
  }
  if (dynamic_cast<const engine::InfrastructureError*>(&error) != nullptr) {
    return Make("infrastructure", channel::kExitInfrastructure, code("infrastructure"),
                error.what(), error.advice());
  }
  return Make("internal", channel::kExitInternal, code("internal_error"), error.what(),
              error.advice());
}

// LibTorch's messages go on with hints and a backtrace; the first line says what happened.
std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

Failure OfTorch(const c10::Error& error) {
  const std::string message = FirstLine(error.what_without_backtrace());
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return Make("user", channel::kExitUserError, "cuda_oom", message, kSmallerBatch);
  }
  if (message.find("DefaultCPUAllocator") != std::string::npos) {
    return Make("user", channel::kExitUserError, "host_oom", message, kSmallerBatch);
  }
  if (message.find("CUDA error") != std::string::npos ||
      message.find("CUDA driver error") != std::string::npos ||
      message.find("NCCL error") != std::string::npos) {
    return Make("infrastructure", channel::kExitInfrastructure, "cuda_error", message,
                "The GPU or its driver failed: see dmesg and nvidia-smi on the node.");
  }
  return Make("internal", channel::kExitInternal, "torch_error", message,
              "Please report this with the rank's log.");
}

}  // namespace

Failure DescribeFailure(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const engine::Error*>(&error)) return OfEngine(*ours);
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) return OfTorch(*torch);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Make("user", channel::kExitUserError, "host_oom", "this process ran out of memory",
                kSmallerBatch);
  }
  return Make("internal", channel::kExitInternal, "internal_error", error.what(),
              "Please report this with the rank's log.");
}

}  // namespace sft::rank
