#pragma once

#include <filesystem>

#include "worker/engine/cuda/plugin.h"

namespace sft::engine {

// Path of this program's plugin: lib/libsft_cuda.so beside the program's bin folder, in a
// build tree and in a bundle alike.
std::filesystem::path DefaultCudaPluginPath();

// Throws InfrastructureError unless the plugin, which `path` holds, is of this program's build: of
// its version, and compiled with its table of operations.
void CheckSameBuild(const CudaPlugin& plugin, const std::filesystem::path& path);

// Opens the plugin and registers the CUDA implementations of the engine's operations, the "nccl"
// communicator and the recorder of CUDA graphs. Call it
// once, from the main thread, before anything asks LibTorch about CUDA: LibTorch remembers the
// first answer. The plugin stays open until the process ends; what is returned lives as long.
//
// Throws InfrastructureError when the file or a library that it needs is missing or is of another
// build; finding no GPU is not an error here (CudaDevices::Count is 0).
const CudaPlugin& LoadCudaPlugin(const std::filesystem::path& path);

}  // namespace sft::engine
