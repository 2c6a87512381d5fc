#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// Rows of nodes, their slots and models, and variants. As jobs.h.

namespace sft::server::store {

// What a worker registered, removed before or not: its node and slots replace what was known, and a
// variant TYPE-Nx is added for each N from 1 to the number of slots of a type. A slot it does not
// report any more stays as a row (history refers to it) but is not listed.
absl::Status PutNode(Database& db, const NodeRecord& node);
absl::Status PutSlots(Database& db, const std::string& node, const std::vector<SlotRecord>& slots);
absl::Status PutModels(Database& db, const std::string& node,
                       const std::vector<ModelRecord>& models);
absl::Status SetNodeState(Database& db, const std::string& node, NodeState state,
                          const std::string& reason, int64_t last_seen_us);

// The node is gone for good: rows of history refer to it, but it is not listed, and its models,
// faults and holds are deleted.
absl::Status RemoveNode(Database& db, const std::string& node);

// A node with a lease has left, and was heard last at `last_seen_us` (0: as its row says). As
// RemoveNode, but an operator's hold stays for when it comes again, and the slots and models of the
// last one of its kind stay known (LeftNodes): jobs for such a node are accepted and planned while
// none is there. Of two kinds are nodes of which neither has all slots of the other.
absl::Status LetNodeGo(Database& db, const std::string& node, int64_t last_seen_us);

// Deletes all rows of removed nodes that were heard last before that time, up to `limit` of them,
// and returns their names. Nodes that an attempt was on, and LeftNodes, stay, without their holds.
absl::StatusOr<std::vector<std::string>> DropOldNodes(Database& db, int64_t before_us, int limit);

// By name, with slots and their holders; names above `after`. None of these has removed ones.
absl::StatusOr<std::vector<NodeRecord>> ListNodes(Database& db, const std::string& after,
                                                  int limit);
// Every node, with slots and their holders, by name, in a fixed number of queries.
absl::StatusOr<std::vector<NodeRecord>> AllNodes(Database& db);
// The removed ones alone, likewise; those that have left included.
absl::StatusOr<std::vector<NodeRecord>> RemovedNodes(Database& db);
// Of those that have left, the last one of each kind.
absl::StatusOr<std::vector<NodeRecord>> LeftNodes(Database& db);
absl::StatusOr<bool> HasNode(Database& db, const std::string& name);
// Removed or not.
absl::StatusOr<NodeRecord> GetNode(Database& db, const std::string& name);
absl::StatusOr<std::vector<VariantRecord>> ListVariants(Database& db);
// Of nodes that are there, by id, then node.
absl::StatusOr<std::vector<ModelRecord>> ListModels(Database& db, int offset, int limit);
// The copies of a model of this id, or at this path, on all nodes, LeftNodes included; those that
// can be used first.
absl::StatusOr<std::vector<ModelRecord>> CopiesOf(Database& db, const std::string& model,
                                                  int limit = 200);
// The first of them.
absl::StatusOr<std::optional<ModelRecord>> FindModel(Database& db, const std::string& model);
// The snapshots of that commit in hub caches of all nodes, those that can be used first.
absl::StatusOr<std::vector<ModelRecord>> SnapshotsOf(Database& db, const std::string& id,
                                                     const std::string& commit);
// The snapshot of that commit in a hub cache, under whatever id a node lists it.
absl::StatusOr<std::optional<ModelRecord>> FindSnapshot(Database& db, const std::string& id,
                                                        const std::string& commit);

}  // namespace sft::server::store
