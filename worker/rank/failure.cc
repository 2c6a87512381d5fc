#include "worker/rank/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <new>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/spec/visit.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

// "per_device_batch (now 4)"
std::string Key(const char* name, const std::string& value) {
  return value.empty() ? std::string(name) : fmt::format("{} (now {})", name, value);
}
std::string Key(const char* name, int value) {
  return Key(name, value > 0 ? std::to_string(value) : std::string("auto"));
}
std::string Key(const char* name, bool value) {
  return Key(name, std::string(value ? "true" : "false"));
}

// What needs less memory, by the method of the job; the remedies that cost nothing first.
std::string LessMemory(const FailureContext& context) {
  if (context.spec == nullptr) {
    return "Lower per_device_batch and raise gradient_accumulation_steps by the same factor: the "
           "global batch, and with it the result, stays the same. A shorter sequence_length, "
           "activation_checkpointing, use_qlora or more GPUs with sharding need less memory too.";
  }
  const spec::JobSpec& spec = *context.spec;
  if (spec.exports()) return "Use a GPU with more memory, or compute.gpu_type = \"CPU\".";
  if (spec.generates()) {
    return fmt::format(
        "Lower {}, which changes no answer, or {}; or use GPUs with more memory.",
        Key("generate.batch", spec.generate.batch),
        Key("generate.max_new_tokens", static_cast<int>(spec.generate.max_new_tokens)));
  }
  const auto& hyper = spec.hyperparameters;
  const std::string batch = fmt::format(
      "lower {} and raise {} by the same factor: the global batch, and with it the "
      "result, stays the same",
      Key("per_device_batch", hyper.per_device_batch),
      Key("gradient_accumulation_steps", hyper.gradient_accumulation_steps));
  const std::string length =
      fmt::format("shorten {}", Key("sequence_length", hyper.sequence_length));
  const std::string gpus = fmt::format(
      "raise {} and shard over them with fsdp = true or DeepSpeed ZeRO (now {})",
      Key("gpu_count", spec.compute.gpu_count), spec::EnumName(spec.parallelism.sharding));
  std::string advice = spec.full_finetune()
                           ? fmt::format("One of: {}; {}; {}", length, gpus, batch)
                           : fmt::format("One of: {}; {}; {}", batch, length, gpus);
  if (!spec.parallelism.activation_checkpointing) {
    advice += fmt::format("; set {}", Key("activation_checkpointing (gradient_checkpointing)",
                                          spec.parallelism.activation_checkpointing));
  }
  if (!spec.full_finetune() && !spec.qlora()) {
    advice += fmt::format("; set {} to keep the base in 4 bits",
                          Key("use_qlora (load_in_4bit)", spec.training.use_qlora));
  }
  return advice + ".";
}

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

// The text of the seed's documents first, who and how much after it.
Failure CudaOutOfMemory(const std::string& message, const FailureContext& context) {
  constexpr std::string_view kText = "CUDA out of memory";
  std::string text =
      message.find(kText) == std::string::npos ? fmt::format("{}: {}", kText, message) : message;
  if (context.rank >= 0) text += fmt::format(" (rank {}", context.rank);
  if (context.rank >= 0 && context.peak_memory_bytes > 0) {
    text += fmt::format(", peak {}", BytesText(context.peak_memory_bytes));
  }
  if (context.rank >= 0) text += ")";
  return Make("user", channel::kExitUserError, "cuda_oom", text, LessMemory(context));
}

Failure OfTorch(const c10::Error& error, const FailureContext& context) {
  const std::string message = FirstLine(error.what_without_backtrace());
  // NCCL, cuBLAS and cuDNN take memory beside the allocator.
  const bool cuda =
      message.find("CUDA") != std::string::npos || message.find("NCCL") != std::string::npos;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      (cuda && message.find("out of memory") != std::string::npos)) {
    return CudaOutOfMemory(message, context);
  }
  if (message.find("DefaultCPUAllocator") != std::string::npos ||
      message.find("EmptyPinned") != std::string::npos) {
    return Make("user", channel::kExitUserError, "host_oom", message, LessMemory(context));
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

std::string TraceOf(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  if (torch == nullptr) return {};
  const std::string whole = torch->what();
  const size_t message = std::string_view(torch->what_without_backtrace()).size();
  return whole.size() > message ? whole.substr(message) : std::string();
}

Failure DescribeFailure(const std::exception& error, const FailureContext& context) {
  if (const auto* ours = dynamic_cast<const engine::Error*>(&error)) return OfEngine(*ours);
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) return OfTorch(*torch, context);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Make("user", channel::kExitUserError, "host_oom", "this process ran out of memory",
                LessMemory(context));
  }
  return Make("internal", channel::kExitInternal, "internal_error", error.what(),
              "Please report this with the rank's log.");
}

}  // namespace sft::rank
