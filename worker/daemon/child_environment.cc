#include "worker/daemon/child_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

namespace sft::worker {
namespace {

// Where programs, libraries, homes and temporary folders are; how text is shown.
constexpr std::array<std::string_view, 17> kNames = {
    "PATH",       "LD_LIBRARY_PATH", "HOME",           "USER",
    "LOGNAME",    "SHELL",           "LANG",           "LANGUAGE",
    "TZ",         "TMPDIR",          "XDG_CACHE_HOME", "PYTHONPATH",
    "PYTHONHOME", "VIRTUAL_ENV",     "CONDA_PREFIX",   "GOMP_SPINCOUNT",
    "LD_PRELOAD"};

// Of CUDA, its collectives and their networks, threads, LibTorch, the sanitizers and this service.
constexpr std::array<std::string_view, 20> kPrefixes = {
    "LC_",  "CUDA_", "NVIDIA_", "NCCL_", "GLOO_",  "UCX_",     "FI_",   "OFI_",  "IBV_",   "MLX5_",
    "OMP_", "GOMP_", "KMP_",    "MKL_",  "TORCH_", "PYTORCH_", "ATEN_", "ASAN_", "UBSAN_", "SFT_"};

std::set<std::string, std::less<>>& More() {
  static std::set<std::string, std::less<>> more;
  return more;
}

std::string_view NameOf(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

bool IsPassedOn(std::string_view name) {
  if (name == "SFT_TOKEN") return false;  // a person's, for sftctl
  return std::ranges::find(kNames, name) != kNames.end() || More().contains(name) ||
         std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void PassOnToo(const std::vector<std::string>& names) { More().insert(names.begin(), names.end()); }

std::vector<std::string> ChildEnvironment(const std::vector<std::string>& added) {
  // Of two entries of one name, getenv takes the first and the dynamic loader the last.
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
