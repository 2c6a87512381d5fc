#include "worker/rank/device.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/cuda/loader.h"

namespace sft::rank {

std::string Device::Name() const {
  if (cuda == nullptr) return "cpu";
  return fmt::format("cuda:{} {}", static_cast<int>(torch.index()),
                     cuda->devices->Properties(torch.index()).name);
}

double Device::PeakFlops() const {
  if (cuda == nullptr) return 0;
  // From NVIDIA's data sheets, without sparsity; the longer names first.
  constexpr std::pair<std::string_view, double> kPeaks[] = {
      {"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12},
      {"H200", 989e12},      {"A100", 312e12},     {"L40S", 362e12},
  };
  const std::string name = cuda->devices->Properties(torch.index()).name;
  for (const auto& [part, peak] : kPeaks) {
    if (name.find(part) != std::string::npos) return peak;
  }
  return 0;
}

namespace {

// The first products of a process on a CPU set up MKL, and were off by 2e-5 in about one of a
// hundred processes on a machine under load: these are thrown away.
void SetUpProducts() {
  const at::Tensor x = at::ones({4, 64, 64});
  at::bmm(x, x);
  at::mm(x.select(0, 0), x.select(0, 1));
}

}  // namespace

Device OpenDevice(const std::string& kind, int index) {
  if (kind == "cpu") {
    SetUpProducts();
    return {};
  }
  const engine::CudaPlugin& plugin = engine::LoadCudaPlugin(engine::DefaultCudaPluginPath());
  const int count = plugin.devices->Count();
  if (index >= count) {
    throw engine::InfrastructureError(
        fmt::format("GPU {} was asked for, this process sees {}", index, count), "no_gpu",
        "Check nvidia-smi on the node, and CUDA_VISIBLE_DEVICES.");
  }
  plugin.devices->Select(index);
  constexpr int kOldest = 8;
  const auto properties = plugin.devices->Properties(index);
  if (properties.compute_major < kOldest) {
    throw engine::UserError(
        fmt::format("this GPU, {}, has compute capability {}.{}: the engine needs {}.0 or newer",
                    properties.name, properties.compute_major, properties.compute_minor, kOldest),
        "old_gpu", "Choose a variant of newer GPUs: A100, RTX 3090 or newer.");
  }
  return {.torch = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)), .cuda = &plugin};
}

Device OpenDevice(const std::string& name) {
  const size_t colon = name.find(':');
  int index = 0;
  if (colon != std::string::npos) {
    std::from_chars(name.data() + colon + 1, name.data() + name.size(), index);
  }
  return OpenDevice(name.substr(0, colon), index);
}

}  // namespace sft::rank
