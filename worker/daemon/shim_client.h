#pragma once

#include <string>

#include "common/base/status.h"
#include "worker/channel/launch.h"

namespace sft::worker {

// Starts sft-shim, which detaches itself; returns when its control socket answers. The error is
// what the shim said.
absl::Status StartShim(const std::string& shim_binary, const std::string& shim_json);

// Sends one command; a bounded wait. UNAVAILABLE when no shim answers.
absl::StatusOr<channel::Answer> AskShim(const std::string& socket_path,
                                        const channel::Command& command);

// Whether the shim that wrote this status still runs: its process is there and is not a later one
// that got its number.
bool ShimAlive(const channel::ShimStatus& status);

}  // namespace sft::worker
