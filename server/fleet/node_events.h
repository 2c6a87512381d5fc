#pragma once

#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// What happens to nodes, for the feed of events (server/store/feed.h). Functions run inside one
// transaction of the store.

namespace sft::server {

// `type`: as sft.v1.ClusterEvent.
absl::Status NoteNodeEvent(Database& db, const std::string& node, const std::string& type,
                           const std::string& message, int64_t now_us);
// Before a worker's registration is stored: a life that was not known, and what it says of slots.
absl::Status NoteRegistered(Database& db, const NodeRecord& node, int64_t now_us);
// Before these are stored: slots that are healthy no longer, or again.
absl::Status NoteSlots(Database& db, const std::string& node, const std::vector<SlotRecord>& slots,
                       int64_t now_us);

}  // namespace sft::server
