#pragma once

#include <string>

#include "server/core/ages.h"
#include "server/database/sqlite.h"
#include "server/fleet/worker_registry.h"
#include "server/gangs/gang_life.h"
#include "server/state/records.h"
#include "server/store/node_holds.h"
#include "sft/v1/node.pb.h"

// What operators say about nodes. Inside a transaction of the store.

namespace sft::server {

// Stores the hold; NOT_FOUND names the nodes there are. Its move begins with the next tick.
absl::Status HoldNode(Database& db, const store::NodeHold& hold);
// Takes a hold back; NOT_FOUND as HoldNode.
absl::Status ReleaseNode(Database& db, const std::string& node);

// Takes a node out of the fleet that is gone for good; one that is removed already is fine. Its
// slots stay held by what ran there until it comes back. With `force` the next tick gives up what
// may still run there. NOT_FOUND as HoldNode; FAILED_PRECONDITION where it is connected, or without
// `force` names the jobs that may still run there.
absl::Status RemoveNode(Database& db, const std::string& node, const WorkerRegistry::Live& live,
                        bool force);

// Asks the jobs on drained nodes whose time has come to move. True: for some it is still to come.
absl::StatusOr<bool> MoveOffDrained(Database& db, Ages& ages, int64_t now_us, ChangedJobs& changed);

// Why nothing new is placed on the node now; empty: it takes work. `hold` may be null.
std::string WhyUnusable(const NodeRecord& node, const WorkerRegistry::Live& live,
                        const store::NodeHold* hold);

// As shown, with the jobs that are on the node.
absl::StatusOr<v1::NodeHold> ToProto(Database& db, const store::NodeHold& hold);

}  // namespace sft::server
