#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/database/sqlite.h"
#include "sft/v1/node.pb.h"
#include "sft/v1/worker_service.pb.h"

// Which worker is a node, when two of them say that they are.

namespace sft::server {

// A life of a worker, as it registered.
struct Claim {
  std::string incarnation, hostname, data_dir_id;
  v1::DataDirPlace place;  // all empty: a worker of an earlier version
};
Claim ClaimOf(const v1::Register& message);
// Of the worker that registered last; NOT_FOUND for a node that is not there or was removed.
absl::StatusOr<Claim> StoredClaim(Database& db, const std::string& node);

// Whether `newcomer`, which is not `holder`, may take its place while that one is heard: it may
// when it is the same worker started again, which its data folder tells. ALREADY_EXISTS otherwise.
absl::Status CheckTakeOver(const v1::Register& newcomer, const Claim& holder, Nanos suspect_after);

// Refuses a life that was replaced, for good: FAILED_PRECONDITION, for which WasReplaced is true.
absl::Status CheckNotReplaced(Database& db, const v1::Register& message);
bool WasReplaced(const absl::Status& status);
// What is to be stored of the node's facts when `message` becomes its worker: the life that it
// replaces is remembered in them. As CheckNotReplaced; inside the transaction that writes the node,
// before its row changes.
absl::StatusOr<v1::NodeFacts> TakeOver(Database& db, const v1::Register& message, int64_t now_us);

// What the worker that stays is told of one that was refused.
std::string RivalText(const v1::Register& refused, WallTime now);

}  // namespace sft::server
