#include "common/plan/gpu.h"

#include <cctype>

namespace sft::plan {
namespace {

// The rates of a type from its published peaks: dense bf16 and FP8 products with sums in fp32,
// memory, and the link to other GPUs, both directions together. The shares are what an H100 reaches
// of its own (989 and 1,979 Tflop/s, 3.35 TB/s, 900 GB/s).
constexpr GpuRates Estimated(std::string_view type, std::string_view name, double bf16, double fp8,
                             double memory, double link, bool cudnn_attention = false) {
  return {.type = type,
          .name = name,
          .gemm = 0.72 * bf16,
          .gemm_fp8 = 0.63 * fp8,
          .attention_forward = 0.61 * bf16,
          .attention_backward = 0.39 * bf16,
          .copy = 0.90 * memory,
          .bus = 0.38 * link,
          .cudnn_attention = cudnn_attention,
          .measured = false};
}

// The peaks are those of NVIDIA's data sheets and architecture papers.
constexpr GpuRates kGpus[] = {
    {.type = "H200",
     .name = "H200",
     .gemm = 700e12,
     .gemm_fp8 = 1250e12,
     .attention_forward = 610e12,
     .attention_backward = 400e12,
     .copy = 4.26e12,
     .bus = 340e9,
     .attention_in_turns = true},
    {.type = "H100",
     .name = "H100 80GB",
     .gemm = 710e12,
     .gemm_fp8 = 1240e12,
     .attention_forward = 600e12,
     .attention_backward = 390e12,
     .copy = 3.01e12,
     .bus = 340e9,
     .attention_in_turns = true},
    Estimated("B200", "B200", 2250e12, 4500e12, 8.0e12, 1800e9, true),
    Estimated("A100", "A100", 312e12, 0, 2.04e12, 600e9),
    Estimated("L40S", "L40S", 362e12, 733e12, 0.864e12, 64e9),
    Estimated("L4", "L4", 121e12, 242e12, 0.3e12, 64e9),
    Estimated("RTX5090", "RTX 5090", 209e12, 419e12, 1.79e12, 128e9),
    Estimated("RTX4090", "RTX 4090", 165e12, 330e12, 1.01e12, 64e9),
};

// True if `name` stands in `text` as words of its own: "L4" does not in "NVIDIA L40S".
bool HasWords(std::string_view text, std::string_view name) {
  const auto inside = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !inside(text[at - 1])) && (end == text.size() || !inside(text[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::span<const GpuRates> KnownGpus() { return kGpus; }

const GpuRates* FindGpu(std::string_view type_or_name) {
  for (const GpuRates& gpu : kGpus) {
    if (type_or_name == gpu.type || HasWords(type_or_name, gpu.name)) return &gpu;
  }
  return nullptr;
}

const GpuRates& NearestGpu(std::string_view type_or_name) {
  const GpuRates* found = FindGpu(type_or_name);
  return found != nullptr ? *found : kGpus[0];
}

}  // namespace sft::plan
