#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/database/sqlite.h"
#include "sft/v1/node.pb.h"
#include "sft/v1/worker_service.pb.h"

// Decides which of two workers that register under the same node name is the node.

namespace sft::server {

// One incarnation of a worker, as it registered.
struct Claim {
  std::string incarnation, hostname, data_dir_id;
  v1::DataDirPlace place;  // all empty for a worker of an earlier version
};
Claim ClaimOf(const v1::Register& message);
// The claim of the worker that registered last; NOT_FOUND for a node that does not exist or was
// removed.
absl::StatusOr<Claim> StoredClaim(Database& db, const std::string& node);

// OK when `newcomer` may replace `holder`, another incarnation that is still connected: only if it
// is the same worker restarted, which its data folder shows. ALREADY_EXISTS otherwise.
absl::Status CheckTakeOver(const v1::Register& newcomer, const Claim& holder, Nanos suspect_after);

// Refuses, permanently, an incarnation that was replaced: FAILED_PRECONDITION, for which
// WasReplaced is true.
absl::Status CheckNotReplaced(Database& db, const v1::Register& message);
bool WasReplaced(const absl::Status& status);
// The facts to store when `message` becomes the node's worker; they record the incarnation that it
// replaces. Errors as CheckNotReplaced. Call it inside the transaction that writes the node, before
// its row changes.
absl::StatusOr<v1::NodeFacts> TakeOver(Database& db, const v1::Register& message, int64_t now_us);

// Tells the remaining worker about one that was refused.
std::string RivalText(const v1::Register& refused, WallTime now);

}  // namespace sft::server
