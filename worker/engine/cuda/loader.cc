#include "worker/engine/cuda/loader.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

#include "common/base/version.h"
#include "worker/engine/base/error.h"
#include "worker/engine/kernels/table_fingerprint.h"

namespace sft::engine {

std::filesystem::path DefaultCudaPluginPath() {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "lib" / "libsft_cuda.so";
}

void CheckSameBuild(const CudaPlugin& plugin, const std::filesystem::path& path) {
  if (std::string_view(plugin.version) != kVersion) {
    throw InfrastructureError(
        fmt::format("the CUDA plugin {} is of version {}, this program of version {}",
                    path.string(), plugin.version, kVersion),
        "cuda_plugin_wrong", "Install the program and its lib folder from one bundle.");
  }
  if (plugin.operations != ops::TableFingerprint()) {
    throw InfrastructureError(
        fmt::format("the CUDA plugin {} was built with another table of operations "
                    "(worker/engine/kernels/operations.def) than this program",
                    path.string()),
        "cuda_plugin_wrong",
        "Build both from one tree (targets sft_cuda and sft-rank), or install the program and its "
        "lib folder from one bundle.");
  }
}

const CudaPlugin& LoadCudaPlugin(const std::filesystem::path& path) {
  // Never closed: operations and LibTorch's allocator keep pointers into it.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw InfrastructureError(
        fmt::format("cannot open the CUDA plugin {}: {}", path.string(), dlerror()),
        "cuda_plugin_missing",
        "GPU jobs need the plugin of this build and the whole set of torch's CUDA wheels "
        "(deploy/bootstrap --cuda; in a bundle, the torch that --torch names).");
  }
  using Entry = const CudaPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kCudaPluginSymbol));
  if (entry == nullptr) {
    throw InfrastructureError(
        fmt::format("{} is not a CUDA plugin: it has no {}", path.string(), kCudaPluginSymbol),
        "cuda_plugin_wrong");
  }
  const CudaPlugin* plugin = entry();
  CheckSameBuild(*plugin, path);
  ops::RegisterCudaImplementations(*plugin->implementations);
  RegisterCommunicatorFactory("nccl", plugin->make_nccl_communicator);
  RegisterCudaGraphRecorder(plugin->make_graph_recorder);
  return *plugin;
}

}  // namespace sft::engine
