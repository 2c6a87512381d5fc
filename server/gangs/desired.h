#pragma once

#include "server/database/sqlite.h"
#include "server/state/records.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// The complete set of attempts that shall be on a node, from the database: RUN with the dispatch
// for attempts the node has not reported yet, STOP while an attempt ends, FORGET when it is over.
// With it the checkpoints that shall stay there.
absl::StatusOr<v1::Desired> BuildDesired(Database& db, const NodeRecord& node, int64_t now_us);

// Adds what only the node knows: an attempt that the server has no open business with (its data
// folder was replaced, or FORGET was lost) is forgotten once it is done; until then its absence
// from the set tells the node to stop it.
void ForgetStrangers(const v1::Observed& observed, v1::Desired& desired);

}  // namespace sft::server
