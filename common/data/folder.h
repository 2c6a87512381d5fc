#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::data {

// A folder with a data set as it is written: "FOLDER", "FOLDER#CONFIG", "FOLDER#CONFIG:SPLIT" or
// "FOLDER#:SPLIT".
struct FolderName {
  std::string path, config, split;
};
FolderName ParseFolderName(std::string_view text);

// The files of a folder in the order in which their rows are read.
struct FolderFiles {
  std::vector<std::string> paths;
  std::string chosen;  // "config en, split train"
};

// Finds the data files of a folder: those that a README.md of the Hugging Face hub names for the
// config and split, those that `save_to_disk` wrote, or else those whose names say that they are of
// the split ("train" where none is asked for), as the hub tells it: all, where no name says
// anything. INVALID_ARGUMENT lists configs or splits where there is a choice to be made.
absl::StatusOr<FolderFiles> FilesOfFolder(const FolderName& folder);

}  // namespace sft::data
