#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "worker/base/rank_user.h"
#include "worker/channel/event.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// The artifact that a rank reported, from the event file of global rank 0. NOT_FOUND when it
// reported none. INVALID_ARGUMENT when it is outside the folder that ranks were given. Both
// functions read with the rights of `rank_user`.
absl::StatusOr<channel::ArtifactEvent> FindArtifact(
    const std::string& attempt_dir, const std::optional<RankUser>& rank_user = std::nullopt);

// Hashes the files below `artifact.path`, uploads those of an adapter (a full model stays where it
// is) and registers them. Idempotent up to the registration. Links and other special files are
// refused. At most kMaxArtifactFiles.
inline constexpr size_t kMaxArtifactFiles = 4096;
absl::Status DeliverArtifact(const channel::ArtifactEvent& artifact, const std::string& attempt_uid,
                             int64_t epoch, const std::string& node, ServerApi& server,
                             const StopCheck& stop,
                             const std::optional<RankUser>& rank_user = std::nullopt);

}  // namespace sft::worker
