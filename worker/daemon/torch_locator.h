#pragma once

#include <string>

#include "common/base/status.h"

namespace sft::worker {

// The folder with LibTorch's libraries that ranks need in LD_LIBRARY_PATH, empty when the rank
// program starts without: that of `torch_dir` (a torch package's folder, or one that holds it) if
// it is given, else that of python3's torch. NOT_FOUND says what was tried. Runs programs, each
// with a deadline.
absl::StatusOr<std::string> LocateTorch(const std::string& rank_binary,
                                        const std::string& torch_dir);

}  // namespace sft::worker
