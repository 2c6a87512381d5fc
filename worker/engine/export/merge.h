#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "worker/engine/weights/quant_format.h"

namespace sft::engine {

// What to merge, and into which weights of the base.
struct MergeOptions {
  std::filesystem::path model_dir;
  std::filesystem::path adapter_dir;
  std::filesystem::path target;  // replaced whole when it exists
  at::ScalarType type = at::kBFloat16;
  // The linear layers are what this format leaves of them, which is what an adapter on a quantised
  // base was trained beside; null: as the files have them.
  const QuantFormat* quantized = nullptr;
  std::map<std::string, std::string> metadata;  // of the files
  // Called before each tensor; what it throws ends the work. Null: nothing is called.
  std::function<void()> on_tensor;
};

// What merging did to the modules that the adapter changes.
struct MergeReport {
  int64_t modules = 0;
  // What rounding to the type changed, as a share of what the adapter added (root mean squares of a
  // module's weights): the mean over modules, and the module where it is largest.
  double mean_rounding = 0, largest_rounding = 0;
  std::string largest_module;
};

// Writes the model with the adapter in its weights: W + s B A, with DoRA that times the magnitudes
// over its rows' norms, worked out in fp32 from the adapter's factors and rounded once, tensor by
// tensor. A tied head stays tied. Tokenizer and template are the adapter's where it brings them.
// Throws UserError: the two do not belong together; InfrastructureError: the disk.
MergeReport MergeAdapter(const MergeOptions& options);

}  // namespace sft::engine
