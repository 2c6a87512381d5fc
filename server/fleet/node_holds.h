#pragma once

#include <string>

#include "server/core/ages.h"
#include "server/database/sqlite.h"
#include "server/fleet/worker_registry.h"
#include "server/gangs/gang_life.h"
#include "server/state/records.h"
#include "server/store/node_holds.h"
#include "sft/v1/node.pb.h"

// Operators' holds on nodes (drain, cordon), and removal of nodes. Functions run inside a
// transaction of the store.

namespace sft::server {

// Stores the hold; NOT_FOUND lists the existing nodes. Jobs are moved off from the next tick on.
absl::Status HoldNode(Database& db, const store::NodeHold& hold);
// Removes a hold, in the name of `who`, also that of a node that has left and would come again with
// it; NOT_FOUND as HoldNode.
absl::Status ReleaseNode(Database& db, const std::string& node, const std::string& who,
                         int64_t now_us);

// Removes a node from the fleet that is gone for good; OK if it is removed already. Its slots stay
// held by what ran there until the node comes back. With `force` the next tick gives up what may
// still run there. NOT_FOUND as HoldNode; FAILED_PRECONDITION when the node is connected or,
// without `force`, when jobs may still run there, which it names.
absl::Status RemoveNode(Database& db, const std::string& node, const WorkerRegistry::Live& live,
                        bool force, const std::string& who, int64_t now_us);

// Asks the jobs on drained nodes to move once their time has come. True when some still have time
// left.
absl::StatusOr<bool> MoveOffDrained(Database& db, Ages& ages, int64_t now_us, ChangedJobs& changed);

// Why nothing new is placed on the node now; empty: it takes work. `hold` may be null.
std::string WhyUnusable(const NodeRecord& node, const WorkerRegistry::Live& live,
                        const store::NodeHold* hold);

// "drained by ann: fan is loud"
std::string HoldText(const store::NodeHold& hold);
// The hold as shown to operators, with the jobs that are on the node.
absl::StatusOr<v1::NodeHold> ToProto(Database& db, const store::NodeHold& hold);

}  // namespace sft::server
