#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "worker/base/rank_user.h"

namespace sft::worker {

// Whether programs that grade answers can be confined on this node, asked in a process of `user`,
// as whom they would run; none: of this one's. `program` is sft-worker.
absl::Status ProbeConfinement(const std::string& program, const std::optional<RankUser>& user);

// Asks this in this process and prints what is missing; returns the exit code.
int ConfinementProbeMain();

}  // namespace sft::worker
