#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/model_config.h"

// What the tensors of a checkpoint are called, and what in them contradicts config.json. Ranks
// refuse a model by it when they load it, and workers when they list it: both in the same words.

namespace sft::plan {

// The names that files may have, as far as they differ from those of TensorsOf. A plain value.
struct CheckpointNames {
  std::string prefix;               // ModelShape::prefix
  std::string optional_prefix;      // which files may leave out (TensorNames)
  std::vector<std::string> blocks;  // of all layers
  std::vector<std::string> unused;  // modules that files may hold and that are not read: beyond the
                                    // last layer too
  std::string other_part;           // TensorNames'; empty: none

  // True for a tensor that is no part of the decoder: of a vision tower, say.
  bool IsOtherPart(std::string_view name) const;
  // True for a tensor that may stand in the files beside those of the model: of a head that is
  // tied, a table or mask that is computed, a module that is not used, another part.
  bool MayBeExtra(std::string_view name) const;
  // The name of a tensor in files of which `contains` tells the names.
  template <typename Contains>
  std::string InFiles(const std::string& name, const Contains& contains) const {
    const bool shortens =
        !optional_prefix.empty() && !contains(name) && name.starts_with(optional_prefix);
    return shortens ? name.substr(optional_prefix.size()) : name;
  }
};
CheckpointNames NamesInFiles(const ModelShape& shape);

// The sentences about a tensor. `name`: in the files.
std::string NoSuchTensor(std::string_view name);
std::string UnknownTensor(std::string_view name);
std::string OtherShape(std::string_view name, const std::vector<int64_t>& shape,
                       const std::vector<int64_t>& expected);
std::string OtherType(std::string_view name, std::string_view type);
std::string NoScales(std::string_view name, std::string_view scales);  // of a weight in FP8
// The error for a tensor `name` that shows an expert's weight to be stored in 4 bits (kNf4State),
// which is not read, in whatever layout of files; empty for all other tensors.
std::string ExpertInFourBits(std::string_view name);
std::string HeldTwice(std::string_view file, std::string_view other, std::string_view name);
std::string NotInItsShard(std::string_view index, std::string_view name, std::string_view shard);

// A tensor by the header of its file.
struct HeaderTensor {
  std::string type;  // "BF16"
  std::vector<int64_t> shape;
  std::string file;
};
using HeaderTensors = std::map<std::string, HeaderTensor, std::less<>>;

// The first contradiction between the description and the tensors, where a rank would find it;
// empty where there is none. Of weights in 4 bits, whose shapes are in the files' data, it knows
// only whether they are there.
std::string FindContradiction(const ModelShape& shape, const HeaderTensors& tensors);

}  // namespace sft::plan
