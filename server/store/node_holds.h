#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"

// Rows of what operators said about nodes, of the moves that follow from it, and of what workers
// found on their nodes. As jobs.h.

namespace sft::server::store {

// Numbers of sft.v1.NodeHold.Mode. Stored: never renumber.
enum class HoldMode : int { kCordon = 1, kDrain = 2 };

// An operator's word about a node.
struct NodeHold {
  std::string node;
  HoldMode mode = HoldMode::kCordon;
  std::string reason;
  std::string who;
  int64_t since_us = 0;
  int64_t move_us = 0;  // from then on its jobs are moved; 0: they end by themselves
};

absl::Status PutHold(Database& db, const NodeHold& hold);
absl::Status DeleteHold(Database& db, const std::string& node);
// By node.
absl::StatusOr<std::map<std::string, NodeHold>> Holds(Database& db);

// Jobs with an attempt on the node that is not over, each once, by id.
absl::StatusOr<std::vector<std::string>> JobsOnNode(Database& db, const std::string& node);
// Those attempts, by uid.
absl::StatusOr<std::vector<std::string>> AttemptsOnNode(Database& db, const std::string& node);

// A serialized sft.v1.NodeFacts, and since when the node is known.
struct NodeFacts {
  std::string facts;
  int64_t first_seen_us = 0;
};
absl::Status PutFacts(Database& db, const std::string& node, const std::string& facts,
                      int64_t now_us);
// Of one node, serialized; empty where there are none.
absl::StatusOr<std::string> FactsOf(Database& db, const std::string& node);
// By node. With `removed` those of removed nodes, too; without, those of LeftNodes.
absl::StatusOr<std::map<std::string, NodeFacts>> AllFacts(Database& db, bool removed = false);

}  // namespace sft::server::store
