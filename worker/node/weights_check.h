#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace sft::worker {

// Names in a model's folder: of its weights in one file, and of the index of several.
inline constexpr char kSingleWeights[] = "model.safetensors";
inline constexpr char kWeightsIndex[] = "model.safetensors.index.json";

// The weight files of a model's folder: one file, else those of the index, as ranks and
// transformers choose. An error says what is wrong with the index, or that there are none.
struct WeightFiles {
  std::vector<std::string> names;
  std::string index_text;  // empty where there is one file
};
absl::StatusOr<WeightFiles> FindWeightFiles(const std::string& dir);

// Reads the headers of the files and compares their tensors with config.json: OK when ranks would
// take them, else the words in which ranks would refuse (common/plan/checkpoint_names.h). A
// config.json of a family that is not supported is compared with nothing.
//
// What was found is kept by size and time of each file, so that a look at a folder in which nothing
// changed reads none: for 1,024 folders in the process. May be called from any thread.
absl::Status CheckWeightFiles(const std::string& dir, const WeightFiles& files,
                              const std::string& config);

}  // namespace sft::worker
