#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "worker/base/rank_user.h"

namespace sft::worker {

// How the rank program starts on this node.
struct RankProgram {
  std::string library_path;  // LD_LIBRARY_PATH; empty: it starts without
  std::string build;         // as it says itself: "0.1.0 (build 664b20f74e9a881c)"
};

// Starts the rank program as ranks will be and returns how that worked. With `torch_dir` (a torch
// package's folder, or one that holds it) LD_LIBRARY_PATH has LibTorch's folder there and those of
// the CUDA libraries beside it; else it is empty if the program starts without, or names python3's
// torch. The error says what was run, how it ended and what to do. Runs programs as `user`, as
// ranks will be, each with a deadline.
absl::StatusOr<RankProgram> LocateTorch(const std::string& rank_binary,
                                        const std::string& torch_dir,
                                        const std::optional<RankUser>& user = std::nullopt);

}  // namespace sft::worker
