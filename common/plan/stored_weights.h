#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/plan/config_reader.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

// The form in which a checkpoint holds the weights of its linear layers: the quantization_config of
// config.json, as transformers writes it.

namespace sft::plan {

enum class StoredForm {
  kPlain,
  kNf4,    // bitsandbytes, 4 bits: packed codes with their scales, for QLoRA as they are
  kFp8,    // e4m3 with a scale for each block or each tensor: de-quantised when loaded
  kMxfp4,  // stacks of experts in MXFP4: de-quantised when loaded, exactly
};

// What stands in the files beside a weight stored so, behind its name: bitsandbytes' description of
// one in 4 bits, the scales of one in FP8; and, behind the name of its module, scales of
// activations, which are for products in FP8 and not read.
inline constexpr const char* kNf4State = ".quant_state.bitsandbytes__nf4";
inline constexpr const char* kFp8Scales = "_scale_inv";
inline constexpr std::string_view kFp8Unused[] = {".activation_scale", ".input_scale"};

// MXFP4: instead of a stack, blocks of 32 values along the inputs, two codes of E2M1 in a byte, the
// first in its low half, and a power of two for each (E8M0): value = code * 2^(scale - 127).
inline constexpr const char* kMxfp4Blocks = "_blocks";
inline constexpr const char* kMxfp4Scales = "_scales";
inline constexpr int64_t kMxfp4Block = 32;
// The ends of the names and the shapes of the two, of a stack [experts * outputs, inputs].
std::vector<std::pair<std::string, std::vector<int64_t>>> Mxfp4Shapes(
    const std::vector<int64_t>& shape, int64_t experts);

// How the files hold the weights of linear layers, but for those of skipped modules.
struct StoredWeights {
  StoredForm form = StoredForm::kPlain;
  bool double_quant = false;  // kNf4: the scales of the 4-bit blocks are quantised too
  // kFp8: rows and columns of a block of one scale; 0: the whole tensor has one.
  int64_t block = 0;
  std::vector<std::string> skipped;  // modules whose weights are plain

  // True if the weight of a linear layer is stored so. Names of modules as in the checkpoint, with
  // the model's prefix (ModelShape::prefix); `skipped` has them so or as they are at run time.
  bool Holds(std::string_view prefix, std::string_view module) const;
};

// Reads "quantization_config" of `config`, if there is one. A form that is not read fails with the
// key, and with what to use in its place.
StoredWeights ReadStoredWeights(const ConfigReader& config);

// A request of the job that weights stored so cannot meet, or nullopt: weights in 4 bits are for
// QLoRA alone.
std::optional<spec::Problem> CheckStored(const StoredWeights& stored, const spec::JobSpec& job);

}  // namespace sft::plan
