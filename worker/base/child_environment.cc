#include "worker/base/child_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

namespace sft::worker {
namespace {

// Locations of programs, libraries, homes and temporary folders; how text is shown; settings of the
// C library.
constexpr auto kNames = std::to_array<std::string_view>(
    {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "USER", "LOGNAME", "SHELL", "LANG",
     "LANGUAGE", "LOCPATH", "TZ", "TZDIR", "TMPDIR", "XDG_CACHE_HOME", "PYTHONPATH", "PYTHONHOME",
     "VIRTUAL_ENV", "CONDA_PREFIX", "GLIBC_TUNABLES"});

// Variables of CUDA and its libraries, collectives and their networks, threads and memory,
// LibTorch, the sanitizers and this service.
constexpr auto kPrefixes = std::to_array<std::string_view>(
    {"LC_",    "CUDA_",    "CUBLAS_", "CUBLASLT_", "CUDNN_",   "NVIDIA_", "NVSHMEM_", "NCCL_",
     "SHARP_", "GDRCOPY_", "GLOO_",   "UCX_",      "FI_",      "OFI_",    "IBV_",     "RDMAV_",
     "MLX4_",  "MLX5_",    "PSM_",    "PSM2_",     "PSM3_",    "HFI_",    "OMP_",     "GOMP_",
     "KMP_",   "MKL_",     "MALLOC_", "TORCH_",    "PYTORCH_", "ATEN_",   "KINETO_",  "ASAN_",
     "LSAN_",  "TSAN_",    "UBSAN_",  "SFT_"});

std::set<std::string, std::less<>>& More() {
  static std::set<std::string, std::less<>> more;
  return more;
}

std::string_view NameOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

bool IsPassedOn(std::string_view name) {
  if (name == "SFT_TOKEN") return false;  // a person's token, for sftctl
  return std::ranges::find(kNames, name) != kNames.end() || More().contains(name) ||
         std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void PassOnToo(const std::vector<std::string>& names) { More().insert(names.begin(), names.end()); }

std::vector<std::string> ChildEnvironment(const std::vector<std::string>& added) {
  // With two entries of one name, getenv uses the first and the dynamic loader the last.
  std::vector<std::string> result = added;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name = NameOf(*entry);
    const bool replaced =
        std::ranges::any_of(added, [&](const std::string& other) { return NameOf(other) == name; });
    if (!replaced && IsPassedOn(name)) result.emplace_back(*entry);
  }
  return result;
}

}  // namespace sft::worker
