#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "worker/base/rank_user.h"

namespace sft::worker {

// The value of LD_LIBRARY_PATH that ranks need: the folders of LibTorch and of the CUDA libraries
// beside it, empty when the rank program starts without. They are those of `torch_dir` (a torch
// package's folder, or one that holds it) if it is given, else those of python3's torch. The error
// says what was run, how it ended and what to do. Runs programs as `user`, like ranks, each with a
// deadline.
absl::StatusOr<std::string> LocateTorch(const std::string& rank_binary,
                                        const std::string& torch_dir,
                                        const std::optional<RankUser>& user = std::nullopt);

}  // namespace sft::worker
