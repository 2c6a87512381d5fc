#include "server/store/node_holds.h"

#include <fmt/format.h>

#include "server/store/states.h"

namespace sft::server::store {
namespace {

// A column of the attempts on a node that are not over, each value once.
absl::StatusOr<std::vector<std::string>> LiveOnNode(Database& db, std::string_view column,
                                                    const std::string& node) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare(fmt::format("SELECT DISTINCT {0} FROM attempt_nodes n JOIN attempts a ON a.uid = "
                             "n.attempt_uid WHERE n.node = ? AND n.forgotten = 0 AND n.lost = 0 "
                             "AND a.state " SFT_IS_LIVE " ORDER BY {0} LIMIT 1000",
                             column)
                     .c_str()));
  list.Bind(node);
  std::vector<std::string> values;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return values;
    values.push_back(list.Text(0));
  }
}

}  // namespace

absl::Status PutHold(Database& db, const NodeHold& hold) {
  SFT_ASSIGN_OR_RETURN(Statement put,
                       db.Prepare("INSERT OR REPLACE INTO node_holds (node, mode, reason, who, "
                                  "since_us, move_us) VALUES (?, ?, ?, ?, ?, ?)"));
  put.Bind(hold.node).Bind(static_cast<int>(hold.mode)).Bind(hold.reason).Bind(hold.who);
  return put.Bind(hold.since_us).Bind(hold.move_us).Run();
}

absl::Status DeleteHold(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM node_holds WHERE node = ?"));
  return remove.Bind(node).Run();
}

absl::StatusOr<std::map<std::string, NodeHold>> Holds(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT node, mode, reason, who, since_us, move_us FROM "
                                  "node_holds ORDER BY node LIMIT 10000"));
  std::map<std::string, NodeHold> holds;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return holds;
    holds[list.Text(0)] = {list.Text(0), static_cast<HoldMode>(list.Int(1)),
                           list.Text(2), list.Text(3),
                           list.Int(4),  list.Int(5)};
  }
}

absl::StatusOr<std::vector<std::string>> JobsOnNode(Database& db, const std::string& node) {
  return LiveOnNode(db, "a.job_id", node);
}

absl::StatusOr<std::vector<std::string>> AttemptsOnNode(Database& db, const std::string& node) {
  return LiveOnNode(db, "a.uid", node);
}

absl::Status PutFacts(Database& db, const std::string& node, const std::string& facts,
                      int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(Statement put,
                       db.Prepare("INSERT INTO node_facts (node, facts, first_seen_us) VALUES (?, "
                                  "?, ?) ON CONFLICT (node) DO UPDATE SET facts = "
                                  "excluded.facts"));
  return put.Bind(node).BindBlob(facts).Bind(now_us).Run();
}

absl::StatusOr<std::string> FactsOf(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT facts FROM node_facts WHERE node = ?"));
  get.Bind(node);
  SFT_ASSIGN_OR_RETURN(const bool row, get.Step());
  return row ? get.Text(0) : std::string();
}

absl::StatusOr<std::map<std::string, NodeFacts>> AllFacts(Database& db, bool removed) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT node, facts, first_seen_us FROM node_facts JOIN nodes ON name = node "
                 "WHERE ? OR removed != 1 ORDER BY node LIMIT 30000"));
  list.Bind(removed);
  std::map<std::string, NodeFacts> facts;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return facts;
    facts[list.Text(0)] = {list.Text(1), list.Int(2)};
  }
}

}  // namespace sft::server::store
